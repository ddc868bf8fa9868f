import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geval_cli.errors import Location, TemplateError
from geval_cli.extras.promptfoo.nunjucks import NunjucksTemplates
from geval_cli.specs.dialect import PROMPTFOO_RULES
from geval_cli.templating import Templates, template_problem

TEMPLATES = Templates()


def test_text_without_template_marks_is_returned_as_it_is() -> None:
    assert TEMPLATES.render("100 % { sure }", {}) == "100 % { sure }"


@pytest.mark.parametrize(
    ("value", "text"),
    [("a", "a"), (3, "3"), (True, "true"), (None, ""), ([1, "é"], '[1, "é"]'), ({"a": None}, '{"a": null}')],
)
def test_values_are_written_as_prompts_want_them(value: object, text: str) -> None:
    assert TEMPLATES.render("{{ x }}", {"x": value}) == text


def test_a_trailing_line_break_is_kept() -> None:
    assert TEMPLATES.render("{{ x }}\n", {"x": "a"}) == "a\n"


def test_an_undefined_name_is_an_error_that_knows_the_names_that_exist() -> None:
    with pytest.raises(TemplateError) as caught:
        TEMPLATES.render("{{ topc }}", {"topic": 1, "other": 2})
    assert (caught.value.missing, caught.value.known) == ("topc", ("other", "topic"))


def test_a_misspelt_attribute_is_an_error_too() -> None:
    with pytest.raises(TemplateError, match="has no attribute 'nmae'"):
        TEMPLATES.render("{{ user.nmae }}", {"user": {"name": "x"}})


ORDER = {"order": {"items": ["tea"], "get": 1}, "words": ["a", "b"]}


@pytest.mark.parametrize(
    ("text", "rendered"),
    [
        ("{{ order.items }}", '["tea"]'),
        ("{{ order.items[0] }} {{ order['items'][0] }}", "tea tea"),
        ("{% for key, value in order.items() %}{{ key }} {% endfor %}", "items get "),
        ("{{ order.get }} {{ order.get('items')[0] }}", "1 tea"),
        ("{{ order.keys() }}", '["items", "get"]'),
        ("{{ order | dictsort | first | first }}", "get"),
        ("{{ words | map('upper') }}", '["A", "B"]'),
        ("{{ words | reject('eq', 'a') }}", '["b"]'),
        ("{{ range(2) }}", "[0, 1]"),
        ("{{ words[0].upper() }}", "A"),
    ],
)
def test_data_is_shown_and_never_an_object_of_python(text: str, rendered: str) -> None:
    assert TEMPLATES.render(text, ORDER) == rendered


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{ order.keys }}", r"`keys` is a function: write `keys\(\)` to call it"),
        ("{{ words[0].upper }}", "`upper` is a function"),
        ("{{ range }}", "`range` is a function"),
        ("{{ self }}", "`loop`, `self` and macros cannot be shown as text"),
        (
            "{% for word in words %}{{ loop }}{% endfor %}",
            "`loop`, `self` and macros cannot be shown as text",
        ),
        ("{% macro m() %}x{% endmacro %}{{ m }}", "`loop`, `self` and macros cannot be shown as text"),
        ("{{ words[0].encode() }}", "bytes cannot be shown as text"),
        ("{{ 'a long text' | truncate(2) }}", "expected length >= 3, got 2"),
    ],
)
def test_what_is_no_data_is_an_error(text: str, message: str) -> None:
    with pytest.raises(TemplateError, match=message):
        TEMPLATES.render(text, ORDER)


def test_values_are_not_rendered_again() -> None:
    assert TEMPLATES.render("{{ x }}", {"x": "{{ 7 * 7 }}"}) == "{{ 7 * 7 }}"


@pytest.mark.parametrize(
    "hostile",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ x.__init__.__globals__ }}",
        "{% include '/etc/passwd' %}",
        "{{ lipsum.__globals__ }}",
        "{{ cycler }}",
        "{% for a in range(1000000000) %}x{% endfor %}",
    ],
)
def test_the_sandbox_holds(hostile: str) -> None:
    with pytest.raises(TemplateError):
        TEMPLATES.render(hostile, {"x": "text"})


@pytest.mark.parametrize(
    "broken",
    [
        "{{ 1 / 0 }}",
        "{{ 'a' + 1 }}",
        "{{ [1]|map('nofilter')|list }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
)
def test_a_broken_template_is_an_error_of_our_own(broken: str) -> None:
    with pytest.raises(TemplateError):
        TEMPLATES.render(broken, {"x": 1})


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("Hi\n{{ x", "line 2: `{{` is never closed"),
        ("{{", "`{{` is never closed"),
        ("{% if x", "`{%` is never closed"),
        ("{# x", "`{#` is never closed"),
        ("{% raw %} x", "`{% raw %}` is never closed"),
        ("{{ x }", "unexpected `}`"),
        ("{{ 'x }}", "a quote is never closed"),
        ("{% if x %}a", "`{% if %}` is never closed: add `{% endif %}`"),
        ("{% for y in x %}a{% endif %}", "`{% endif %}` appears while `{% for %}` is still open"),
        ("{% endif %}", "`{% endif %}` closes nothing"),
        ("{% iff x %}", "there is no tag `{% iff %}`"),
        ("{% if %}", "expected an expression, got `%}`"),
        ("{{ x | nofilter }}", "there is no filter `nofilter`"),
        ("{{ x is notest }}", "there is no test `notest`"),
        ("{{ x y }}", "expected token `}}`, got `y`"),
    ],
)
def test_what_is_wrong_with_a_template_is_said_in_its_own_marks(broken: str, said: str) -> None:
    with pytest.raises(TemplateError) as caught:
        TEMPLATES.render(broken, {"x": 1})
    assert str(caught.value).endswith(said)


@pytest.mark.parametrize(
    ("broken", "hint"),
    [
        ("{{ x }", "close it with `}}`"),
        ("{{ y }} {{ x } {{ y }}", "close it with `}}`"),
        ("{{ x", "close it with `}}`"),
        ("{% if x } a {% endif %}", "close it with `%}`"),
        ("{{ y }}{% if x", "close it with `%}`"),
        ("{# x", "close it with `#}`"),
        ("{% raw %} x", "close it with `{% endraw %}`"),
        ("{{ x y }}", "put {% raw %}...{% endraw %} around text that is not a template"),
    ],
)
def test_the_hint_for_an_open_tag_closes_it(broken: str, hint: str) -> None:
    with pytest.raises(TemplateError) as caught:
        TEMPLATES.render(broken, {"x": 1})
    assert caught.value.hint == hint


def test_an_undefined_name_without_a_guess_lists_what_is_defined_once() -> None:
    error = TemplateError("undefined variable `zz`", missing="zz", known=("q",))
    problem = template_problem(error, where="in test 1", location=None)
    assert (problem.hint, problem.notes) == ("defined here: q", ())
    error = TemplateError("undefined variable `zz`", missing="zz", known=())
    assert template_problem(error, where="in test 1", location=None).hint == "no variables are defined"


def test_the_problem_of_an_undefined_name_suggests_the_nearest() -> None:
    error = TemplateError("undefined variable `topc`", missing="topc", known=("other", "topic"))
    problem = template_problem(error, where="in prompt `p` for test 3", location=Location("c.yaml", 2, 5))
    assert problem.message == "undefined variable `topc` (in prompt `p` for test 3)"
    assert problem.hint == "did you mean `topic`?"
    assert problem.notes == ("defined here: other, topic",)


class ATextOfAnotherType(str):
    """A text that Jinja2 itself fills in."""


PIECES = st.sampled_from(
    [
        *("{{ a }}", "{{a}}", "{{- b -}}", "{{ c }}", "{{ self }}", "{{ loop }}", "{{ range }}", "{{ 'a' }}"),
        *("{{ a | upper }}", "{# a #}", "{% raw %}{{ a }}{% endraw %}", "{% if a %}b{% endif %}"),
        *("x", " \n", "\r\n", "}}", "{ a }", "é\u2028"),
    ]
)
VALUES = st.text(st.characters(exclude_categories=["Cs"]), max_size=5) | st.sampled_from(
    ["{{ b }}", "<a>&", "\r"]
)


@pytest.mark.parametrize(
    "templates", [Templates(), NunjucksTemplates(PROMPTFOO_RULES)], ids=["own", "nunjucks"]
)
@given(pieces=st.lists(PIECES, max_size=6), values=st.lists(VALUES, min_size=5, max_size=5))
def test_a_template_of_names_alone_is_filled_as_jinja_fills_it(
    templates: Templates, pieces: list[str], values: list[str]
) -> None:
    variables = dict(zip(("a", "b", "self", "loop", "range"), values, strict=True))

    def rendered(kind: type[str]) -> str:
        try:
            return templates.render("".join(pieces), {name: kind(text) for name, text in variables.items()})
        except TemplateError as error:
            return f"error: {error.message}"

    assert rendered(str) == rendered(ATextOfAnotherType)


DEEP = {
    "parentheses": ("(", "x", ")"),
    "lists": ("[", "x", "]"),
    "negations": ("not ", "x", ""),
    "signs": ("-", "1", ""),
    "sums": ("x + ", "x", ""),
    "joined": ("x ~ ", "x", ""),
    "filters": ("", "x", " | upper"),
    "attributes": ("", "x", ".a"),
    "calls": ("range(", "1", ")"),
    "conditions": (" }}{% if x %}{{ ", "x", " }}{% endif %}{{ "),
    "loops": (" }}{% for y in [1] %}{{ ", "x", " }}{% endfor %}{{ "),
}


@pytest.mark.parametrize(
    "templates", [Templates(), NunjucksTemplates(PROMPTFOO_RULES)], ids=["own", "nunjucks"]
)
@pytest.mark.parametrize("shape", DEEP)
def test_a_template_that_python_cannot_compile_is_an_error_of_the_config(
    templates: Templates, shape: str
) -> None:
    """Python refuses it in different ways, by how deep it is."""
    before, inside, after = DEEP[shape]
    refused = 0
    for depth in (30, 90, 500, 2_000) if shape == "loops" else (90, 210, 500, 2_000):
        text = f"{{{{ {before * depth}{inside}{after * depth} }}}}".replace("{{  }}", "")
        for use in (templates.check, lambda text: templates.render(text, {"x": "a"})):
            try:
                use(text)
            except TemplateError as error:
                refused += "nested too deeply" in error.message
    assert refused or shape == "joined"  # which Jinja2 keeps in one list, however long it is


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{ 1e999 }}", "inf"),
        ("{{ -1e999 * n }}", "-inf"),
        ("{{ [1e999] }}", "[Infinity]"),
        ("{% set y = 1e999 %}{{ y }}", "inf"),
        ("{{ n if n < 1e999 }}", "2"),
        ("{{ {'a': 1e999}['a'] == 1e999 }}", "true"),
    ],
)
def test_a_number_that_is_too_large_is_infinite(text: str, expected: str) -> None:
    assert Templates().render(text, {"n": 2}) == expected


@pytest.mark.parametrize(
    "templates", [Templates(), NunjucksTemplates(PROMPTFOO_RULES)], ids=["own", "nunjucks"]
)
@pytest.mark.parametrize("shape", ["filters", "negations", "attributes", "joined"])
def test_the_time_to_compile_does_not_grow_with_the_cube_of_the_depth(
    templates: Templates, shape: str
) -> None:
    before, inside, after = DEEP[shape]

    def processor_time(depth: int) -> float:
        started = time.process_time()
        templates.check(f"{{{{ {before * depth}{inside}{after * depth} }}}}")
        return time.process_time() - started

    # A busy machine, or a collection of garbage, hits one of three.
    assert any(processor_time(144 + turn) < 25 * max(processor_time(24 + turn), 0.002) for turn in range(3))
