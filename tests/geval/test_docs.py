"""docs/reference/geval.md tells the truth: its configs run, its outputs are what is printed, its tables are true."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import AliasChoices
from support.loopback import Reply, chat_reply
from support.model_server import ModelServer, verdict, weighed
from support.product import Product

from geval_cli.assertions.geval import GEvalAssertion
from geval_cli.assertions.geval_metric import ChecklistItemSpec
from geval_cli.judge.estimate import normalise_rating
from geval_cli.judge.metric import DEFAULT_MIN_VALID, DEFAULT_SAMPLES, DEFAULT_THRESHOLD
from geval_cli.judge.prompt import DIMENSIONS, example_variables

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "geval.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


def table(first_column: str) -> dict[str, list[str]]:
    """The table whose first column has this heading: first cell -> the other cells, without back-quotes."""
    _, rest = re.split(rf"^\| {re.escape(first_column)} \|.*\n", PAGE, maxsplit=1, flags=re.MULTILINE)
    lines = rest.split("\n\n", 1)[0].splitlines()[1:]
    rows = [[cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: row[1:] for row in rows}


STEPS = [
    "Note the facts of the source.",
    "Check every statement of the output against them.",
    "Lower the rating for each unsupported statement.",
]


def of_the_page(**says: Any) -> ModelServer:
    """The judge of the page's first example."""
    return ModelServer(
        steps=json.dumps({"steps": STEPS}),
        form=lambda body: weighed({"4": 0.6, "3": 0.3, "5": 0.1}, body),
        explain="The building took four years, not five; the rest agrees with the article.",
        answer=fills_in_a_form,
        **says,
    )


def fills_in_a_form(body: Any) -> Reply:
    return chat_reply("4")


@pytest.mark.parametrize("config", blocks("yaml"), ids=range(len(blocks("yaml"))))
def test_every_config_of_the_page_runs(config: str, product: Product) -> None:
    path = product.folder / "page.yaml"
    path.write_text(config, encoding="utf-8")
    with of_the_page(evaluate=verdict(8)) as server:
        finished = product.run(path, server)

    assert finished.code in {0, 1}, finished.stderr
    assert (finished.stderr.count("warning"), finished.results["summary"]["errored"]) == (0, 0)


def test_the_outputs_of_the_page_are_those_of_its_first_config(product: Product) -> None:
    path = product.folder / "terminal.yaml"
    path.write_text(blocks("yaml")[0], encoding="utf-8")
    # Token probabilities for every reply: whichever is asked for first shows what the judge can do.
    with of_the_page(evaluate=lambda body: chat_reply(verdict(9), logprobs=[{"{": 0.0}])) as server:
        finished = product.run(path, server, "-v")

    shown = next(block for block in blocks("text") if "consistency" in block)
    assert shown in re.sub(r"(?<= · )[\d.]+ m?s$", "740 ms", finished.stdout, flags=re.MULTILINE)
    detail = finished.verdicts[0]["detail"]
    documented = json.loads(blocks("json")[0])
    assert {name: detail[name] for name in documented} == {
        **documented,
        "distribution": pytest.approx(documented["distribution"]),
    }


def test_the_output_of_the_checklist_is_that_of_its_config(product: Product) -> None:
    path = product.folder / "refund.yaml"
    path.write_text(next(block for block in blocks("yaml") if "checklist:" in block), encoding="utf-8")
    answers = [
        ("yes", "refund of 5 euros", "It names the amount."),
        ("yes", "within two days", "It gives a time."),
        ("no", "", "There is no apology."),
        ("yes", "", "None is named."),
    ]
    reply = {
        str(number): {"reason": reason, "evidence": evidence, "answer": word}
        for number, (word, evidence, reason) in enumerate(answers, 1)
    }
    with of_the_page(checklist=json.dumps(reply)) as server:
        finished = product.run(path, server, "-v", "--scoring", "single")

    shown = next(block for block in blocks("text") if "items" in block)
    assert shown in finished.stdout, finished.stdout
    entry = finished.verdicts[0]["detail"]["checklist"][0]
    named = re.findall(r"each entry of `detail.checklist` has (.*?)\. If a reply", " ".join(PAGE.split()))[0]
    assert set(entry) == set(re.findall(r"`(\w+)`", named))


def test_the_table_of_keys_has_every_key_and_its_default() -> None:
    documented = table("key")
    keys = {name.strip() for names in documented for name in names.split(",")}
    assert keys == {spelling_of(name) for name in GEvalAssertion.model_fields if name != "place"} | {"value"}
    defaults = {name: cells[0] for name, cells in documented.items()}
    assert {name: defaults[name] for name in ("threshold", "samples", "min_valid", "explain", "weight")} == {
        "threshold": str(DEFAULT_THRESHOLD),
        "samples": str(DEFAULT_SAMPLES),
        "min_valid": str(DEFAULT_MIN_VALID),
        "explain": str(GEvalAssertion.model_fields["explain"].default),
        "weight": "1",
    }


def test_the_table_of_items_has_every_key_and_its_default() -> None:
    documented = {name: cells[0] for name, cells in table("key of an item").items()}
    assert documented == {
        name: "" if info.is_required() else json.dumps(info.default).removesuffix(".0")
        for name, info in ChecklistItemSpec.model_fields.items()
        if name != "place"
    }


def test_the_section_on_own_prompts_names_every_variable_that_they_see() -> None:
    section = PAGE.partition("## A prompt of your own")[2].partition("\n## ")[0]
    told = set(re.findall(r"`(\w+)`", section.rpartition("```")[2]))
    assert set(example_variables((1, 5), {})) <= told


def spelling_of(name: str) -> str:
    alias = GEvalAssertion.model_fields[name].validation_alias
    return str(alias.choices[0]) if isinstance(alias, AliasChoices) else name


def test_the_table_of_dimensions_has_their_ranges() -> None:
    ranges = {name: "{:.0f}-{:.0f}".format(*one.score_range) for name, one in DIMENSIONS.items()}
    assert {name: cells[0] for name, cells in table("dimension").items()} == ranges


def test_the_table_of_thresholds_is_computed_as_the_program_does() -> None:
    scales = ((1, 3), (1, 5), (0, 10))
    for score, ratings in table("score").items():
        found = [
            normalise_rating(float(rating), scale) for rating, scale in zip(ratings, scales, strict=True)
        ]
        assert found == pytest.approx([float(score)] * 3)
