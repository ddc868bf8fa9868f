from typing import Any

import pytest
from support.calls import ask

from geval_cli.extras.http_provider.placeholders import (
    PlaceholderValues,
    has_place,
    variables_in,
    without_spaces,
)

TRICKY = 'say "{{ vars.b }}" & \\n'
PLACES = PlaceholderValues(
    ask(
        "the prompt",
        variables={"a": TRICKY, "b": 5, "user": {"id": "u-1", "tags": ["x"]}, "none": None},
    )
)


@pytest.mark.parametrize(
    ("template", "filled"),
    [
        ("{{ vars.a }}", TRICKY),
        ("{{vars.b}}", 5),
        ("n={{ vars.b }}", "n=5"),
        ("{{ vars.user.id }}", "u-1"),
        ("{{ vars.user.tags }}", ["x"]),
        ("tags: {{ vars.user.tags }}", 'tags: ["x"]'),
        ("{{ vars.none }}", None),
        ({"k": ["{{ prompt }}", 1]}, {"k": ["the prompt", 1]}),
        ("{{ vars }} {{ other }} {{ env.KEY }}", "{{ vars }} {{ other }} {{ env.KEY }}"),
    ],
)
def test_values_are_put_in_as_they_are(template: Any, filled: Any) -> None:
    assert PLACES.fill(template) == filled


@pytest.mark.parametrize(
    ("template", "filled"),
    [
        ('{"a": "{{ vars.a }}"}', '{"a": "say \\"{{ vars.b }}\\" & \\\\n"}'),
        (r'{"a": "he said: \"{{ vars.b }}\"", "b": {{ vars.b }}}', r'{"a": "he said: \"5\"", "b": 5}'),
        (r'{"a": "he said: \"{{ vars.a }}"}', '{"a": "he said: \\"say \\"{{ vars.b }}\\" & \\\\n"}'),
        (r'{"a": "\\", "b": {{ vars.b }}}', r'{"a": "\\", "b": 5}'),
        ('{"b": {{ vars.b }}, "u": {{ vars.user | tojson }}}', '{"b": 5, "u": {"id": "u-1", "tags": ["x"]}}'),
    ],
)
def test_json_text_stays_json(template: str, filled: str) -> None:
    assert PLACES.fill_json_text(template) == filled


def test_an_address_is_encoded() -> None:
    assert PLACES.fill_url("/{{ vars.b }}?q={{ vars.a }}").startswith("/5?q=say%20%22%7B%7B%20vars.b")
    assert PlaceholderValues(ask("half \ud800", variables={})).fill_url("/{{ prompt }}") == "/half%20%3F"


@pytest.mark.parametrize("name", ["missing", "user.missing", "a.length", "user.tags.x"])
def test_a_variable_that_the_test_does_not_have_is_named(name: str) -> None:
    with pytest.raises(LookupError, match=rf"no variable for `\{{\{{ vars\.{name} \}}\}}`"):
        PLACES.fill(f"{{{{ vars.{name} }}}}")


def test_the_variables_of_a_template_are_found_at_any_depth() -> None:
    template = ["{{ vars.b }}{{prompt}}", {"x": [{"y": "{{ vars.user.id }} {{ vars.b }}"}]}, None, 3]
    assert variables_in(template) == ("b", "user")
    assert has_place(template)
    assert has_place(template, "prompt")
    assert not has_place(template, "messages")
    assert without_spaces("run --user {{ vars.user.id }}  x") == "run --user {{vars.user.id}}  x"
