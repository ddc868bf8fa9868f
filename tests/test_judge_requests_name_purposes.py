"""Whoever asks a judge says what for: plans and sums by purpose would count it among the answers otherwise."""

import ast
import re

import pytest
from support.own_code import module_texts, nodes_of

MODULES = module_texts()
_ROLE = list(ast.parse(MODULES["records.py"]).body)


def fields_before_role() -> int:
    """How many arguments of a `ModelRequest` come before `role`: whoever passes more passes a role by its place."""
    body = next(node.body for node in _ROLE if isinstance(node, ast.ClassDef) and node.name == "ModelRequest")
    names = [
        node.target.id
        for node in body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]
    assert names.index("role") < names.index("purpose")
    return names.index("role")


def purposeless(where: str, source: str) -> list[str]:
    """Requests to a judge, or with a role that is not written out, that name no purpose."""
    found = []
    asks_judges = where.startswith(
        ("judge/", "assertions/")
    )  # where a request is a judge's, whatever role it has
    for call in nodes_of(source):
        if not isinstance(call, ast.Call) or _name(call.func) != "ModelRequest":
            continue
        words = {word.arg: word.value for word in call.keywords}
        is_generation = (
            ast.unparse(words["role"]) == "Role.GENERATION" if "role" in words else not asks_judges
        )
        is_hidden = None in words or any(isinstance(item, ast.Starred) for item in call.args)
        is_hidden = is_hidden or len(call.args) > fields_before_role()
        if (is_hidden or not is_generation) and "purpose" not in words:
            found.append(f"{where}:{call.lineno}")
    return found


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def test_every_request_to_a_judge_names_its_purpose() -> None:
    assert [line for where, source in MODULES.items() for line in purposeless(where, source)] == []


ASKING = [
    where for where, source in MODULES.items() if "role=Role.JUDGE" in source and "ModelRequest(" in source
]


@pytest.mark.parametrize("where", ASKING)
def test_without_its_purpose_each_module_that_asks_would_be_found(where: str) -> None:
    assert purposeless(where, re.sub(r"\bpurpose=", "repeat_index=", MODULES[where]))


def test_the_modules_that_ask_are_known() -> None:
    assert len(ASKING) >= 5


@pytest.mark.parametrize(
    "planted",
    [
        "ModelRequest(messages, role=Role.JUDGE)",
        "records.ModelRequest(messages, params=params, role=records.Role.JUDGE)",
        "ModelRequest(messages, role=role)",
        "ModelRequest(messages)",
        "ModelRequest(messages, **more)",
        "ModelRequest(*parts)",
        "ModelRequest(a, b, c, d, e, f, g, Role.JUDGE)",
    ],
)
def test_a_planted_request_without_a_purpose_is_found(planted: str) -> None:
    assert purposeless("judge/x.py", f"\nrequest = {planted}\n") == ["judge/x.py:2"]
    assert purposeless("judge/x.py", f"request = {planted[:-1]}, purpose=Purpose.VERDICT)") == []


@pytest.mark.parametrize(
    "harmless", ["ModelRequest(messages)", "ModelRequest(messages, role=Role.GENERATION)"]
)
def test_what_a_model_under_test_is_asked_is_an_answer(harmless: str) -> None:
    assert purposeless("engine/x.py", harmless) == []
