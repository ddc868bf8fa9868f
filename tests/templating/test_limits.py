"""Templates that would fill the memory or never end are stopped, in both dialects."""

import pytest

from geval_cli.errors import TemplateError
from geval_cli.extras.promptfoo.nunjucks import NunjucksTemplates
from geval_cli.specs.dialect import PROMPTFOO_RULES
from geval_cli.templating import Templates
from geval_cli.templating.limits import MAX_CHARACTERS

_RECURSION = "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}"
_LOOPS = "".join(f"{{% for {name} in range(99999) %}}" for name in "abc") + "{% endfor %}" * 3
_BLOCKS = "{% set x = 'abcdefgh' %}" + "{% set x %}{{ x }}{{ x }}{% endset %}" * 40 + "{{ x | length }}"
_SUMS = "{% set x = 'abcdefgh' %}" + "{% set x = x ~ x %}" * 40 + "{{ x | length }}"
_PLUS = "{% set x = 'abcdefgh' %}" + "{% set x = x + x %}" * 40 + "{{ x | length }}"
_REPLACED = "{% set x = 'aaaaaaaa' %}" + "{% set x = x.replace('a', x) %}" * 9 + "{{ x | length }}"
_REPLACED_BY_FILTER = (
    "{% set x = 'aaaaaaaa' %}" + "{% set x = x | replace('a', x) %}" * 9 + "{{ x | length }}"
)


@pytest.mark.parametrize(
    "text",
    [
        "{{ 'a' * 1000000000 }}",
        "{{ 1000000000 * [1] }}",
        "{{ 10 ** 1000000000 }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (1000000000, 1) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ '{:{}}'.format(1, 1000000000) }}",
        "{{ '{:{n[0]}}'.format(1, n=[1000000000]) }}",
        "{{ '{:>{n[w]}}'.format_map({'': 1, 'n': {'w': 1000000000}}) }}",
        "{{ '{:.1000000000f}'.format(1.5) }}",
        "{{ ('a' * 10000000) | wordwrap(1) }}",
        "{{ ('a ' * 5000000) | urlize }}",
        "{{ 'a'.ljust(1000000000) }}",
        "{{ ('a' * 4000000).join(range(99999) | map('string') | list) }}",
        "{{ range(99999) | join('a' * 4000000) }}",
        "{{ ''.join(['a' * 1000000] * 3000) | length }}",
        "{{ ''.join(['a' * 1000000] * 3000 | map('string')) | length }}",
        "{{ (['a' * 1000000] * 3000) | join | length }}",
        "{{ (['a' * 1000000] * 3000) | map('string') | join('-') | length }}",
        "{{ ([{'t': 'a' * 1000000}] * 3000) | join(attribute='t') | length }}",
        "{{ 'a' | center(1000000000) }}",
        "{{ 'a' | indent(1000000000, true) }}",
        "{{ '%1000000000d' | format(1) }}",
        "{{ [1] | batch(1000000000, 'x') | list }}",
        "{{ 1.5 | round(1000000000, 'ceil') }}",
        "{{ [1] | tojson(1000000000) }}",
        "{% for i in range(1000000000) %}x{% endfor %}",
        "{{ range(1000000000) | list }}",
        _LOOPS,
        _RECURSION,
        _BLOCKS,
        _SUMS,
        _PLUS,
        _REPLACED,
        _REPLACED_BY_FILTER,
    ],
)
def test_what_is_far_too_much_is_stopped(text: str) -> None:
    with pytest.raises(TemplateError, match=r"stopped|cannot be rendered"):
        Templates().render(text, {})


@pytest.mark.parametrize(
    "text",
    [
        "{{ 'a'.repeat(1000000000) }}",
        "{{ 'a'.padEnd(1000000000) }}",
        "{{ 'a' | center(1000000000) }}",
        "{{ 'a' | indent('1000000000', true) }}",
        "{{ [1] | dump(1000000000) }}",
        "{{ [1] | batch(1000000000, 'x') }}",
        "{% for i in range(1000000000) %}x{% endfor %}",
        _LOOPS,
        _RECURSION,
        _BLOCKS,
        _SUMS,
        _PLUS,
        _REPLACED.replace("replace", "replaceAll"),
        _REPLACED_BY_FILTER,
    ],
)
def test_promptfoo_s_templates_have_the_same_limits(text: str) -> None:
    with pytest.raises(TemplateError, match=r"stopped|cannot be rendered"):
        NunjucksTemplates(PROMPTFOO_RULES).render(text, {})


def test_the_message_says_what_is_too_much_and_what_to_do() -> None:
    with pytest.raises(TemplateError) as caught:
        Templates().render("{{ 'a' * 1000000000 }}", {})
    assert caught.value.message == "the template was stopped: it makes text of more than 16 MB"
    assert caught.value.hint == "build the text outside the template and pass it in as a variable"


def test_a_stretched_text_says_so_and_asks_the_machine_for_nothing() -> None:
    for text in ("{{ '{:>9999999999}'.format(1) }}", "{{ '{:{n[0]}}'.format(1, n=[9999999999]) }}"):
        with pytest.raises(TemplateError, match="`format` makes fields of more than 100,000 characters"):
            Templates().render(text, {})


@pytest.mark.parametrize("templates", [Templates(), NunjucksTemplates(PROMPTFOO_RULES)])
def test_large_but_sensible_templates_are_rendered(templates: Templates) -> None:
    rows = [{"n": str(number)} for number in range(5_000)]
    text = "{% for row in rows %}{{ loop.index }}/{{ loop.length }} {{ row.n ~ ';' }}{% endfor %}"
    found = templates.render(text, {"rows": rows})
    assert found.startswith("1/5000 0;2/5000 1;")
    large = "x" * (MAX_CHARACTERS - 10)
    assert templates.render("{{ large }}", {"large": large}) == large


def test_loops_over_what_has_no_length_are_counted_too() -> None:
    found = Templates().render(
        "{% for n in ns | map('upper') %}{{ n }}{{ ',' if not loop.last }}{% endfor %}", {"ns": ["a", "b"]}
    )
    assert found == "A,B"
    assert (
        Templates().render("{% for k, v in d.items() %}{{ k }}={{ v }}{% else %}none{% endfor %}", {"d": {}})
        == "none"
    )
