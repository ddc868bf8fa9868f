"""Build the text that a judge is shown from the files in `prompts/`; whatever is the same for all tests comes first.

The criteria are the user's own, or a dimension of G-Eval (Liu et al. 2023; the definitions are geval's own).
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from importlib.resources import files
from string import Template
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from geval_cli.errors import UsageError
from geval_cli.judge.metric import ChecklistItem, Metric, RatedExample, RubricBand, ScoreRange, format_number
from geval_cli.judge.source import PARAM_LABELS, fence
from geval_cli.records import JsonValue, Message
from geval_cli.source.problems import hint_among

Render = Callable[[str, Mapping[str, JsonValue]], str]
"""Render a template with variables; raises TemplateError. Callers pass geval's sandboxed renderer."""

DIMENSION_PARAMS = ("Source", "Output")
"""The labels that generated steps of a dimension refer to, the same for all tests."""

_WORDINGS_KEPT = 256
_NOTHING_TO_QUOTE = " (nothing to quote)"

_PROMPT_FOLDER = "geval_cli.judge.prompts"
_TAG = re.compile(r"\{[{%]([^{}]*)[}%]\}")


class Criterion(Struct, frozen=True):
    """One criterion or dimension as shown to a judge; `label` is the dimension's name, or the metric's."""

    label: str
    criteria: str
    score_range: ScoreRange
    score_step: float
    rubric: tuple[RubricBand, ...] = ()
    is_form: bool = False
    is_strict: bool = False
    guidelines: tuple[str, ...] = ()
    examples: tuple[RatedExample, ...] = ()


class Block(Struct, frozen=True):
    """A labelled text of the test case."""

    label: str
    text: str


@cache
def read_prompt(name: str) -> str:
    """Return the text of `prompts/<name>.md`."""
    return files(_PROMPT_FOLDER).joinpath(f"{name}.md").read_text(encoding="utf-8")


@cache
def prompt_digest(name: str) -> str:
    """Return a digest of one prompt file, for judgements whose prompt file is not part of `prompt_version`."""
    return hashlib.sha256(read_prompt(name).encode()).hexdigest()[:12]


@cache
def prompt_version() -> str:
    """Return a digest of the prompt files used by many ratings: the top-level files and those of the dimensions."""
    digest = hashlib.sha256()
    folder = files(_PROMPT_FOLDER)
    entries = [*folder.iterdir(), *folder.joinpath("dimensions").iterdir()]
    for entry in sorted((item for item in entries if item.name.endswith(".md")), key=lambda item: item.name):
        digest.update(f"{entry.name}\n{entry.read_text(encoding='utf-8')}\n".encode())
    return digest.hexdigest()[:12]


@cache
def joint_prompt_version() -> str:
    """Return a digest of the files in `prompt_version` and those for rating several dimensions in one call."""
    return _version_with("joint/form", "joint/dimension")


@cache
def checklist_prompt_version() -> str:
    """Return a digest of the files in `prompt_version` and the one for checklists."""
    return _version_with("checklist/form")


@cache
def examples_prompt_version() -> str:
    """Return a digest of the files in `prompt_version` and the one for rated examples."""
    return _version_with("examples/rated")


def _version_with(*names: str) -> str:
    text = "\n".join([prompt_version(), *(read_prompt(name) for name in names)])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def steps_text(criteria: str, param_labels: Sequence[str]) -> str:
    """Return the request for evaluation steps. It has nothing from a test case, so all tests share one answer."""
    relation = "in relation to one another" if len(param_labels) > 1 else "on its own"
    return _fill("steps", params=join_labels(param_labels), relation=relation, criteria=criteria)


def evaluate_text(criterion: Criterion, steps: Sequence[str], blocks: Sequence[Block]) -> str:
    """Return the request for a rating: as JSON in the criteria form, as the number alone in the dimension form."""
    kind = "form" if criterion.is_form else "evaluate"
    name = f"{kind}_strict" if criterion.is_strict else kind
    before, after = _around_blocks(name, criterion, tuple(steps), tuple(block.label for block in blocks))
    return f"{before}{_fenced(blocks)}{after}"


def joint_text(asked: Sequence[tuple[Criterion, Sequence[str]]], blocks: Sequence[Block]) -> str:
    """Return the request for one JSON object that rates each criterion, in this order, by its own steps."""
    dimensions = [_fill("joint/dimension", **_shared_values(*pair)) for pair in asked]
    form = [
        f'    "{criterion.label}": <your rating from {low} (worst) to {high} (best), as a number>'
        for criterion, _ in asked
        for low, high in [map(format_number, criterion.score_range)]
    ]
    return _fill(
        "joint/form",
        count=str(len(asked)),
        dimensions="\n\n".join(dimensions),
        data_rule=read_prompt("data_rule").rstrip("\n"),
        form=",\n".join(form),
        blocks=_fenced(blocks),
    )


def checklist_text(items: Sequence[ChecklistItem], blocks: Sequence[Block]) -> str:
    """Return the request for one JSON object with a yes or no for each item, keyed by its number from 1."""
    listed = [f"{' '.join(item.text.split())}{'' if item.evidence else _NOTHING_TO_QUOTE}" for item in items]
    answer = '{"reason": <text>, "evidence": <text>, "answer": <"yes" or "no">}'
    return _fill(
        "checklist/form",
        items=numbered(listed),
        params=join_labels([block.label for block in blocks]),
        data_rule=read_prompt("data_rule").rstrip("\n"),
        form=",\n".join(f'    "{number}": {answer}' for number in range(1, len(items) + 1)),
        blocks=_fenced(blocks),
    )


def rotation(blocks: Sequence[Block], count: int) -> int:
    """Return which of `count` dimensions is rated first, from 0; it depends on the texts alone, not on the run."""
    texts = "\0".join(block.text for block in blocks)
    digest = hashlib.sha256(texts.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") % count


def explain_text(
    criterion: Criterion, steps: Sequence[str], blocks: Sequence[Block], *, rating: float
) -> str:
    """Return the request for an explanation of a rating that was given without one."""
    values = _shared_values(criterion, steps)
    return _fill("explain", **values, blocks=_fenced(blocks), rating=format_number(round(rating, 2)))


def question_text(name: str, blocks: Sequence[Block], *, prompt: str = "") -> str:
    """Return the question from `prompt`, or else from `prompts/<name>.md`, filled with the texts of a test case."""
    template = Template((prompt or read_prompt(name)).rstrip("\n"))
    return template.substitute(data_rule=read_prompt("data_rule").rstrip("\n"), blocks=_fenced(blocks))


def reread_text(problem: str) -> str:
    """Return the reminder that is added to a request whose first reply could not be read."""
    return _fill("reread", problem=problem)


def number_alone_text(criterion: Criterion, problem: str) -> str:
    """Return the request for the number alone, sent after a reply whose rating could not be read."""
    low, high = (format_number(end) for end in criterion.score_range)
    return _fill(
        "number_alone", problem=problem, kind_of_number=_kind_of_number(criterion), low=low, high=high
    )


def numbered(steps: Sequence[str]) -> str:
    """Return the steps as a numbered list, one a line."""
    return "\n".join(f"{number}. {step}" for number, step in enumerate(steps, 1))


def join_labels(labels: Sequence[str]) -> str:
    """Join labels as in a sentence: `Input, Actual Output and Expected Output`."""
    return " and ".join(filter(None, (", ".join(labels[:-1]), *labels[-1:])))


def label_params(params: Sequence[str]) -> tuple[str, ...]:
    """Return the labels under which a judge sees evaluation parameters."""
    return tuple(PARAM_LABELS[name] for name in params)


# -- the user's own prompts -------------------------------------------------------------------------------------


def uses_steps(template: str) -> bool:
    """Return whether a rubric prompt mentions `steps` in a tag, so that the judge has to be asked for them."""
    return any(re.search(r"\bsteps\b", match[1]) for match in _TAG.finditer(template))


def rubric_prompt_variables(
    criterion: Criterion, steps: Sequence[str], shown: Mapping[str, JsonValue], own: Mapping[str, JsonValue]
) -> dict[str, JsonValue]:
    """Return the variables of a rubric prompt: geval's own, overridden by the test's vars.

    `shown` holds the parameters of the test case as the judge would see them, including input and output.
    """
    low, high = (int(end) if float(end).is_integer() else end for end in criterion.score_range)
    output = shown["output"]
    ours = {
        "dimension": criterion.label,
        "criteria": criterion.criteria,
        "min": low,
        "max": high,
        "maxScore": high,
        "steps": numbered(steps),
        **shown,
        **dict.fromkeys(("Summary", "summary", "response"), output),
    }
    return {**ours, **own}


def example_variables(score_range: ScoreRange, own: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return placeholder values for all variables of a rubric prompt, to validate it; `own` are the test's vars."""
    criterion = Criterion("Coherence", "how well it holds together", score_range, score_step=1)
    return rubric_prompt_variables(criterion, ("Read it.",), {"input": "input", "output": "output"}, own)


def render_messages(
    template: str, variables: Mapping[str, JsonValue], render: Render | None
) -> tuple[Message, ...]:
    """Return a rubric prompt as messages: a single user message, or the chat if it is a JSON list of messages.

    In a template that is JSON, each text is rendered by itself, so that no output breaks the JSON or adds a message.

    Raises:
        UsageError: there is no renderer.
        TemplateError: the template cannot be rendered.
    """
    if render is None:
        raise UsageError("a rubric prompt needs a template renderer", hint="pass `render` to grade()")
    if written := _chat_messages(template, lambda item: render(item, variables)):
        return written
    text = render(template, variables)
    return _chat_messages(text) or user_message(text)


def user_message(text: str) -> tuple[Message, ...]:
    """Return a conversation with one user message."""
    return (Message("user", text),)


def _chat_messages(text: str, render: Callable[[str], str] = str) -> tuple[Message, ...]:
    """Return the messages of a JSON list of {role, content}, texts rendered; empty if `text` is anything else."""

    def rendered(item: dict[str, JsonValue]) -> dict[str, JsonValue]:
        return {key: render(value) if isinstance(value, str) else value for key, value in item.items()}

    try:
        entries = json.loads(text, object_hook=rendered) if text.lstrip().startswith("[") else ()
    except (ValueError, RecursionError):
        return ()
    if not all(isinstance(entry, dict) and {"role", "content"} <= entry.keys() for entry in entries):
        return ()
    return tuple(Message(str(entry["role"]), entry["content"]) for entry in entries)


# -- pieces -----------------------------------------------------------------------------------------------------


def _fill(name: str, **values: str) -> str:
    """Return a prompt file with `values` filled in, in a single pass: the values are never scanned for placeholders."""
    return Template(read_prompt(name).rstrip("\n")).substitute(values)


@lru_cache(maxsize=_WORDINGS_KEPT)
def _around_blocks(
    name: str, criterion: Criterion, steps: tuple[str, ...], labels: tuple[str, ...]
) -> tuple[str, str]:
    """Return the parts of a prompt before and after the texts of a test case; usually the same for all tests."""
    values = {**_shared_values(criterion, steps), "params": join_labels(labels)}
    before, _, after = read_prompt(name).rstrip("\n").partition("$blocks")
    return Template(before).substitute(values), Template(after).substitute(values)


def _fenced(blocks: Sequence[Block]) -> str:
    return "\n\n".join(f"{block.label}:\n{fence(block.label, block.text)}" for block in blocks)


def _shared_values(criterion: Criterion, steps: Sequence[str]) -> dict[str, str]:
    low, high = criterion.score_range
    return {
        "dimension": criterion.label,
        "criteria": criterion.criteria,
        "low": format_number(low),
        "high": format_number(high),
        "kind_of_number": _kind_of_number(criterion),
        "yardstick": _criterion_text(criterion, steps),
        "data_rule": read_prompt("data_rule").rstrip("\n"),
    }


def _criterion_text(criterion: Criterion, steps: Sequence[str]) -> str:
    sections = []
    if criterion.criteria and not criterion.is_form:
        sections.append(f"Evaluation Criteria:\n{criterion.criteria}")
    if steps:
        sections.append(f"Evaluation Steps:\n{numbered(steps)}")
    if criterion.rubric:
        title = "Rubric (for guidance)" if criterion.is_strict else "Rubric"
        bands = sorted(criterion.rubric, key=lambda band: -band.high)
        rubric_text = "\n".join(
            [f"{title}:", *(f"- {_band_label(band)}: {band.description}" for band in bands)]
        )
        sections.append(rubric_text)
    if criterion.guidelines:
        sections.append("\n".join(["Guidelines:", *(f"- {text}" for text in criterion.guidelines)]))
    if criterion.examples:
        shown = [read_prompt("examples/rated").rstrip("\n")]
        for number, example in enumerate(criterion.examples, start=1):
            parts = (
                f"Example {number}",
                _example_part(number, "Input", example.input),
                _example_part(number, "Output", example.output),
                f"Rating: {format_number(round(example.rating, 2))}",
                _example_part(number, "Reason", example.reason),
            )
            shown.append("\n".join(filter(None, parts)))
        sections.append("\n\n".join(shown))
    return "\n\n".join(sections)


def _example_part(number: int, label: str, text: str) -> str:
    return f"{label}:\n{fence(f'Example {number} {label}', text)}" if text else ""


def _band_label(band: RubricBand) -> str:
    low, high = format_number(band.low), format_number(band.high)
    return high if band.low == band.high else f"{low} to {high}"


def _kind_of_number(criterion: Criterion) -> str:
    if is_whole_scale(criterion.score_range, criterion.score_step):
        return "a whole number"
    return f"a number in steps of {format_number(criterion.score_step)}"


def is_whole_scale(score_range: ScoreRange, score_step: float) -> bool:
    """Return whether every rating of the scale is a whole number."""
    low, high = score_range
    return float(low).is_integer() and float(high).is_integer() and float(score_step).is_integer()


def criteria_of(metric: Metric, label: str, definitions: Sequence[str]) -> tuple[Criterion, ...]:
    """Return one criterion per definition: that of the dimension, or each of the metric's criteria."""
    return tuple(
        Criterion(
            label=label,
            criteria=definition,
            score_range=metric.asked_range,
            score_step=metric.asked_step,
            rubric=metric.rubric,
            is_form=metric.dimension is not None,
            is_strict=metric.strict_mode,
            guidelines=metric.guidelines,
            examples=metric.examples,
        )
        for definition in definitions
    )


METRICS_KEPT = 64  # cached per run, so that a metric's criteria are built once and not for every test
_THREE: ScoreRange = (1.0, 3.0)
_FIVE: ScoreRange = (1.0, 5.0)


class Dimension(Struct, frozen=True):
    """One aspect of quality; `label` is its name as shown to a judge, such as `Coherence`."""

    name: str
    score_range: ScoreRange

    @property
    def label(self) -> str:
        return self.name.capitalize()

    @property
    def definition(self) -> str:
        """Return the definition: a paragraph on what to reward and what to penalise."""
        return " ".join(read_prompt(f"dimensions/{self.name}").split())


COMPARED = frozenset({"consistency", "relevance", "groundedness"})
"""The dimensions that mean nothing without a source."""

DIMENSIONS: Mapping[str, Dimension] = MappingProxyType(
    {
        name: Dimension(name, score_range)
        for name, score_range in (
            ("fluency", _THREE),
            ("coherence", _FIVE),
            ("consistency", _FIVE),
            ("relevance", _FIVE),
            ("engagingness", _THREE),
            ("groundedness", _FIVE),
            ("naturalness", _THREE),
        )
    }
)


def find_dimension(name: str) -> Dimension:
    """Return the dimension with this name.

    Raises:
        UsageError: there is none.
    """
    if name not in DIMENSIONS:
        raise UsageError(f"there is no dimension `{name}`", hint=hint_among(name, DIMENSIONS))
    return DIMENSIONS[name]


@lru_cache(maxsize=METRICS_KEPT)
def metric_criteria(metric: Metric) -> tuple[Criterion, ...]:
    """Return the criteria of a metric: its dimension, each of its criteria, or an empty one if it has only steps.

    Raises:
        UsageError: a criterion is empty, or there is neither a criterion nor a step.
    """
    if metric.dimension is not None:
        dimension = find_dimension(metric.dimension)
        return criteria_of(metric, dimension.label, (dimension.definition,))
    criteria = tuple(item.strip() for item in metric.criteria)
    if any(not item for item in criteria) or not (criteria or metric.evaluation_steps):
        hint = "write criteria, evaluation_steps or a dimension"
        raise UsageError(f"the metric {metric.name!r} has an empty criterion", hint=hint)
    return criteria_of(metric, metric.name, criteria or ("",))


@lru_cache(maxsize=METRICS_KEPT)
def joint_criteria(metric: Metric) -> tuple[Criterion, ...]:
    """Return the criteria of all dimensions that are rated together, in the order of the config."""
    found: list[Criterion] = []
    for name in metric.joint:
        dimension = find_dimension(name)
        alone = replace(metric, dimension=name, score_range=dimension.score_range)
        found += criteria_of(alone, dimension.label, (dimension.definition,))
    return tuple(found)


CRITERION_FACTS = (
    "dimension",
    "criteria",
    "evaluation_steps",
    "evaluation_params",
    "rubric",
    "score_range",
    "score_step",
    "strict_mode",
    "scoring",
    "samples",
    "rubric_prompt",
    "name",
)
"""The names of the values that `criterion_facts` always returns, in its order."""


def criterion_facts(metric: Metric) -> list[JsonValue]:
    """Return what affects a metric's ratings: all but the threshold, and the name only if the judge sees it."""
    own = metric.rubric_prompt
    is_sampled = metric.scoring == "samples" or (metric.scoring == "auto" and metric.dimension is not None)
    facts: list[JsonValue] = [
        metric.dimension,
        ["checklist", metric.checklist, checklist_prompt_version()]
        if metric.checklist
        else [criterion.strip() for criterion in metric.criteria],
        metric.evaluation_steps,
        metric.evaluation_params,
        metric.rubric,
        metric.asked_range,
        metric.asked_step,
        metric.strict_mode,
        metric.scoring,
        [metric.samples, metric.min_valid] if is_sampled else None,
        own,
        metric.name if own is not None and metric.dimension is None else None,
    ]
    if metric.joint:
        facts.append(["joint", metric.joint, joint_prompt_version()])
    if metric.stop_error is not None:
        facts.append(["stop_error", metric.stop_error])
    if metric.over != "conversation":
        facts.append(["over", metric.over, metric.window])
    if metric.guidelines:
        facts.append(["guidelines", metric.guidelines])
    if metric.examples:
        facts.append(["examples", metric.examples, examples_prompt_version()])
    return facts
