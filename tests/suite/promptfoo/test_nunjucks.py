"""Templates of promptfoo's dialect: what nunjucks makes of them.

The values of nunjucks_values.json are what nunjucks 3.2.4 wrote for these templates, which are our own.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from geval_cli.errors import TemplateError
from geval_cli.extras.promptfoo.nunjucks import NunjucksTemplates
from geval_cli.specs.dialect import PROMPTFOO_RULES

TEMPLATES = NunjucksTemplates(PROMPTFOO_RULES, {"HOME": "/root"})


@pytest.mark.parametrize(
    ("template", "variables", "text"),
    [
        ("{{a}}|{{a.b.c}}|{{ a[0] }}", {}, "||"),
        ("{{ 5 | length }}|{{ x | length }}|{{ 'É b' | wordcount }}", {}, "|0|1"),
        ("{{a}} {{b}} {{c}}", {"a": True, "b": None, "c": 1.0}, "true  1"),
        ("{{a}}|{{b}}", {"a": [1, [2, None], "x"], "b": {"q": 1}}, "1,2,,x|[object Object]"),
        ("{{ (s | load).tone }}", {"s": '{"tone": "kind"}'}, "kind"),
        ("{{ o | dump }} {{ o | dump(1) }}", {"o": {"a": [1.0]}}, '{"a":[1]} {\n "a": [\n  1\n ]\n}'),
        ("{{ a + 1 }} {{ '1' + 1 }} {{ 4 / 2 }} {{ 7 // 2 }} {{ '6' * 2 }}", {"a": 2}, "3 11 2 3 12"),
        (
            "{{ 1 == '1' }} {{ none == x }} {{ 'a' in l }} {{ 'k' in o }}",
            {"l": ["a"], "o": {"k": 1}},
            "true " * 3 + "true",
        ),
        ("{% if a === 'x' %}1{% elseif b !== 2 %}2{% else %}3{% endif %}", {"a": "y", "b": 2}, "3"),
        ("{% if empty %}yes{% endif %}{% if '' %}no{% endif %}", {"empty": []}, "yes"),
        (
            "{% for k, v in o %}{{k}}{{v}}{{ ',' if not loop.last }}{% endfor %}",
            {"o": {"a": 1, "b": 2}},
            "a1,b2",
        ),
        ("{% for x in l %}{{loop.index}}{{x.n}}{% else %}none{% endfor %}", {"l": [{"n": "z"}]}, "1z"),
        ("{% for x in nothing %}x{% else %}none{% endfor %}{% for x in 5 %}x{% endfor %}", {}, "none"),
        (
            "{{ l.length }} {{ s.toUpperCase() }} {{ s.split(',') | join('-') }}",
            {"l": [1, 2], "s": "a,b"},
            "2 A,B a-b",
        ),
        (
            "{{ s.slice(-2) }} {{ s.includes('b') }} {{ s.substring(2, 0) }} {{ n.toFixed(2) }}",
            {"s": "abc", "n": 1},
            "bc true ab 1.00",
        ),
        (
            "{{ m | default('x') }} {{ n | default('x') }}{{ e | default('x', true) }}",
            {"n": None, "e": ""},
            "x x",
        ),
        (
            "{{ l | join(', ') }} {{ l | first }} {{ l | last }} {{ l | length }} {{ l | reverse }}",
            {"l": ["p", "q"]},
            "p, q p q 2 q,p",
        ),
        (
            "{{ 'a b' | title }} {{ 'xY' | capitalize }} {{ ' x ' | trim }} {{ 'aa' | replace('a', 'b') }}",
            {},
            "A B Xy x bb",
        ),
        (
            "{{ 7.5 | round }} {{ 2.345 | round(2) }} {{ 1.5 | round(0, 'floor') }} {{ '3px' | int }}",
            {},
            "8 2.35 1 3",
        ),
        (  # as nunjucks 3.2.4 prints it
            "{{ h | int }} {{ h | int(7) }} {{ h | int(7, 16) }} {{ h | int(7, 0) }} {{ h | int(7, none) }} "
            "{{ h | int(base=16) }} {{ '-0X1f' | int(7, 16) }} {{ '0x' | int(7, 16) }} {{ '0x' | int }} "
            "{{ '0b1' | int }} {{ '1e3' | int }} {{ '12' | int(7, 1) }} {{ '12' | int(7, 37) }} "
            "{{ '12' | int(7, '8') }} {{ '12' | int(7, -3) }} {{ 'x' | int(7) }}",
            {"h": "0x1f"},
            "0 0 31 31 31 31 -31 7 0 0 1 7 7 10 7 7",
        ),
        (
            "{{ [3, 1, 2] | sort | join(',') }} {{ l | sort(false, false, 'n') | dump }}",
            {"l": [{"n": 2}, {"n": 1}]},
            '1,2,3 [{"n":1},{"n":2}]',
        ),
        (
            "{{ l | groupby('k') | dump }}",
            {"l": [{"k": "a"}, {"k": "b"}]},
            '{"a":[{"k":"a"}],"b":[{"k":"b"}]}',
        ),
        (
            "{{ 'hello world foo' | truncate(8) }} {{ 'a\nb' | nl2br }} {{ 'a&b' | urlencode }}",
            {},
            "hello... a<br />\nb a%26b",
        ),
        (
            "{{ '<b>' | escape }} {{ '<b>' | safe }} {{ '<b>x</b>' | striptags }} {{ 'a b' | wordcount }}",
            {},
            "&lt;b&gt; <b> x 2",
        ),
        (
            "{{ l | sum }} {{ o | sum('n') }} {{ l | batch(2) | dump }}",
            {"l": [1, 2, 3], "o": [{"n": 2}]},
            "6 2 [[1,2],[3]]",
        ),
        (
            "{{ x is defined }} {{ y is defined }} {{ 2 is even }} {{ l is truthy }}",
            {"x": 1, "l": []},
            "true false true true",
        ),
        ("{% set y = 3 %}{{ y }}{% macro f(a) %}<{{a}}>{% endmacro %}{{ f('b') }}", {}, "3<b>"),
        ("{% raw %}{{x}}{% endraw %}{# gone #}", {}, "{{x}}"),
        ("{{ env.HOME }}{{ env.NOT_THERE }}", {}, "/root"),
        ("a\r\nb{{x}}\n", {"x": 1}, "a\r\nb1\n"),
        ("{{ o.items }}{{ o.keys }}{{ s.format }}{{ ''.__class__ }}", {"o": {"x": 1}, "s": "s"}, ""),
        ("{{ 'a' ~ true ~ 1.0 }} {{ -x }}", {"x": "5"}, "atrue1 -5"),
    ],
)
def test_what_nunjucks_writes(template: str, variables: dict[str, object], text: str) -> None:
    assert TEMPLATES.render(template, variables) == text


VALUES = json.loads(Path(__file__).with_name("nunjucks_values.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("table", VALUES, ids=[table["about"] for table in VALUES])
def test_values_are_those_of_nunjucks(table: dict[str, Any]) -> None:
    written = [[row, TEMPLATES.render(row, table["variables"])] for row, _ in table["rows"]]
    assert written == table["rows"]


@pytest.mark.parametrize(
    ("template", "variables", "text"),
    [
        ("{{ s | length }} {{ s.length }} {{ s.indexOf('b') }} {{ s.slice(2) }}", {"s": "😀b"}, "3 3 2 b"),
        ("{{ s[0] }}{{ s.slice(0, 1) }}", {"s": "😀"}, "\ufffd\ufffd"),
        ("{{ a < b }} {{ ['b', 'a'] | sort }}", {"a": "😀", "b": "\uffee"}, "true a,b"),
        ("{{ big }} {{ big + 1 }}", {"big": 10**20}, "100000000000000000000 100000000000000000000"),
        ("{{ 9007199254740993 + 0 }}", {}, "9007199254740992"),
        ("{{ x ** 400 }} {{ -x ** 401 }} {{ 0 / 0 or 'none' }}", {"x": 10}, "Infinity -Infinity none"),
        ("{{ (0 / 0) + 1 }} {{ [0 / 0] | dump }} {{ not (0 / 0) }}", {}, "NaN [null] true"),
        ("{% set x, y = n %}{{ x }}{{ y }}", {"n": 4}, "44"),
        ("{{ True }}|{{ None ~ '' }}|{{ null ~ '' }}", {}, "|undefined|null"),
        ("{{ q if x is defined if y else 'n' }}", {}, "n"),
        ("{{ '\\u0041\\x\\'' }}", {}, "u0041x'"),
        ("{{ o.toString }}{{ o.pop }}", {"o": {"a": 1}}, ""),
        ("{% for k, v in o %}{{ k }}{{ v }} {% endfor %}", {"o": {"b": 0, "10": 1, "9": 2}}, "92 101 b0 "),
        ("{% for x in l %}{% for x in l %}{% set x = 1 %}{% endfor %}{{ x }}{% endfor %}", {"l": ["a"]}, "a"),
        ("{% for x in l %}{% set b %}{{ b }}{{ x }}{% endset %}{% endfor %}{{ b }}", {"l": ["a", "b"]}, ""),
        (
            "{% set b = '' %}{% for x in l %}{% set b %}{{ b }}{{ x }}{% endset %}{% endfor %}{{ b }}",
            {"l": ["a", "b"]},
            "ab",
        ),
    ],
)
def test_values_where_python_s_differ(template: str, variables: dict[str, object], text: str) -> None:
    assert TEMPLATES.render(template, variables) == text


def test_a_rendering_changes_no_variable() -> None:
    variables: dict[str, Any] = {"l": [1, [2]]}
    template = "{{ l.push(3) }}{{ l[1].push(4) }}{{ l.reverse() }}{{ l.pop() }}"
    assert [TEMPLATES.render(template, variables) for _ in range(2)] == ["323,2,4,11"] * 2
    assert variables == {"l": [1, [2]]}


@pytest.mark.parametrize("text", ["{{ name", "{% if x", "{# c", "a {{ b }} {{ c", "}} {{"])
def test_text_with_an_unfinished_tag_stays_as_it_is(text: str) -> None:
    assert TEMPLATES.render(text, {"b": 1}) == text


@pytest.mark.parametrize(
    "text",
    [
        "{{ a b }}",
        "{{ x | nofilter }}",
        "{% if x %}",
        "{{ f() }}",
        "{{ 'x'.repeat(99999999) }}",
        "{{ '{' | load }}",
        "{% set l = [1] %}{% for x in range(40) %}{% set l = l.concat(l) %}{% endfor %}",
        "{% set l = [] %}{% for x in range(2) %}{% set y = l.push(l) %}{% endfor %}{{ l }}",
        "{{ x.missing() }}",
        "{{ 1.5.toFixed(101) }}",
        "{{ (1.5).toFixed(101) }}",
        "{{ range(0, 1, 0.0000001) }}",
    ],
)
def test_a_broken_template_is_an_error(text: str) -> None:
    with pytest.raises(TemplateError):
        TEMPLATES.render(text, {})


def test_values_are_never_rendered() -> None:
    assert TEMPLATES.render("{{x}}", {"x": "{{ env.HOME }}"}) == "{{ env.HOME }}"


def test_a_text_that_is_joined_stays_whole() -> None:
    assert (
        TEMPLATES.render("{{ s | join(', ') }}{{ l | join(', ') }}", {"s": "Ann", "l": ["a", "b"]})
        == "Anna, b"
    )
