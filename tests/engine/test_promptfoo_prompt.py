"""How promptfoo's rules put variables into a prompt, down to single characters."""

import pytest

from geval_cli.engine.promptfoo_prompt import render_text, resolved_variables, shown_text
from geval_cli.records import JsonValue
from geval_cli.templating.nunjucks import NunjucksTemplates

TEMPLATES = NunjucksTemplates()


@pytest.mark.parametrize(
    ("prompt", "variables", "text"),
    [
        ("a {{ x\n | upper }} {{x}}", {"x": "v"}, "a {{ x\n | upper }} {{x}}"),
        ("{# two\nlines #}{{x}}", {"x": "v"}, "{# two\nlines #}{{x}}"),
        ("{# one line #}{{x}}\n", {"x": "v"}, "v\n"),
        ("{{doc}}", {"doc": "Doc {{gone}} {{x}}", "x": "v"}, "Doc {{gone}} {{x}}"),
        ("{{doc}}", {"doc": "{{ x | upper }}", "x": "v"}, "V"),
        ("{{doc}}", {"doc": "{% for i in l %}{{ i }}{% endfor %}", "l": [1, 2]}, "12"),
        (
            "{{doc}}",
            {"doc": "{% for i in gone %}{{ i }}{% endfor %}"},
            "{% for i in gone %}{{ i }}{% endfor %}",
        ),
        ("{{doc}}", {"doc": "{{ 7 * 7 }} {{ env.NOPE }}"}, "49 "),
    ],
)
def test_prompts(prompt: str, variables: dict[str, JsonValue], text: str) -> None:
    assert render_text(prompt, variables, TEMPLATES) == text


def test_null_inside_another_variable_is_written_out() -> None:
    assert resolved_variables({"x": "{{y}}!", "y": None}) == {"x": "null!", "y": None}


def test_json_in_the_texts_of_a_json_prompt_is_shown_without_spaces() -> None:
    assert shown_text('[{"content": "{\\"a\\": [1, 2]}"}]') == '[{"content":"{\\"a\\":[1,2]}"}]'
    assert shown_text('[{"content": "say {\\"a\\": 1}"}]') == '[{"content":"say {\\"a\\": 1}"}]'
