"""Tests frozen from results: from the cases of a run, and from typical questions in traces."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field

from geval_cli.errors import ConfigError, UsageError
from geval_cli.extras.generation.generating import row_id
from geval_cli.extras.generation.options import GenerateTestsOptions
from geval_cli.extras.generation.questions import GROUPED_AT, KnownQuestions, grouped, similar_pairs, tf_idf
from geval_cli.extras.traces.importing import ModelAnswer, TraceReading, chosen_answers, read_traces
from geval_cli.gateway.gateway import BoundModel
from geval_cli.json_codec import decode_json
from geval_cli.judge.prompt import user_message
from geval_cli.numbers import plural
from geval_cli.records import TEST_TEXTS, CaseResult, JsonValue, ModelRequest, Purpose, Role, Status, to_json
from geval_cli.report.case_view import case_number, case_reason
from geval_cli.report.sanitize import one_line
from geval_cli.runs.event_loop import all_or_first_error
from geval_cli.runs.stored import open_report
from geval_cli.source.secrets import mask_text
from geval_cli.version import install_hint

FAILED, FROZEN, TRACE = "failed", "frozen", "trace"
"""Kinds of tests, in their metadata."""

MOST_GROUPED = 3_000
"""Every question is compared with every other one, so of more traces than this a random sample is used."""

_GROUPS_SHOWN = 10
_LEFT_TO_DECIDE = "is the expected output right, or the judge wrong, or was the answer bad?"


class FrozenTests(Struct):
    """Rows of a tests file, a sentence about them, and further lines and figures."""

    rows: list[dict[str, JsonValue]] = field(default_factory=list)
    said: str = ""
    hint: str = ""
    lines: list[str] = field(default_factory=list)
    facts: dict[str, JsonValue] = field(default_factory=dict)


def freeze_run(
    name: str, home: Path | None, *, failed: bool, most: int | None, known: Sequence[str]
) -> FrozenTests:
    """Return a test for each test of a run with a case to freeze: its inputs, and what was found about the outputs.

    Raises:
        UsageError: there is no such run.
    """
    cases: dict[int, list[CaseResult]] = {}
    with open_report(name, home, os.environ) as (report, _):
        run_id = report.run.id
        for result in report.results():
            if not failed or result.status is Status.FAILED:
                cases.setdefault(result.test_index, []).append(result)
        columns = {
            column.index: " / ".join((column.prompt_label, column.provider_label))
            for column in report.columns
        }
    asked = KnownQuestions(known)
    frozen = FrozenTests()
    in_suite = 0
    have_media: list[bool] = []
    for index in sorted(cases):
        results = cases[index]
        first = results[0]
        question = (first.asked.input if first.asked is not None else None) or "\n".join(
            value for value in first.vars.values() if isinstance(value, str)
        )
        if question and asked.has(question):
            in_suite += 1
            continue
        frozen.rows.append(_case_row(results, question, run_id, columns))
        have_media.append(first.asked is not None and bool(first.asked.images or first.asked.audio))
    frozen.rows = frozen.rows[:most]
    kind = "failed" if failed else "judged"
    frozen.said = f"{plural(len(cases), f'{kind} test')} of run {run_id}"
    if cases and not frozen.rows:
        frozen.said += ", and the suite has each of them"
    frozen.facts = {"run": run_id, "in_suite": in_suite}
    if in_suite:
        frozen.lines.append(f"{in_suite:,} left out: the suite asks the same")
    if bare := sum(have_media[:most]):
        frozen.lines.append(
            f"{plural(bare, 'test')} without images and audio, which a run does not keep: add the files to `images` or"
            " `audio`"
        )
    frozen.lines.append(f"a person is to decide of each: {_LEFT_TO_DECIDE}")
    if not frozen.rows:
        frozen.hint = (
            "leave out --failed to freeze all cases" if failed and not cases else "choose another run"
        )
    return frozen


def _case_row(
    results: Sequence[CaseResult], question: str, run_id: str, columns: Mapping[int, str]
) -> dict[str, JsonValue]:
    first = results[0]
    asked: dict[str, JsonValue] = {} if first.asked is None else to_json(first.asked)
    row: dict[str, JsonValue] = {"description": first.description} if first.description else {}
    if first.vars:
        row["vars"] = dict(first.vars)
    if users := [turn.content for turn in first.turns if turn.role == "user"]:
        row["turns"] = [{"user": text} for text in users]
    for name in TEST_TEXTS:
        if asked.get(name) is not None:
            row[name] = asked[name]
    row["metadata"] = {
        **first.metadata,
        "id": row_id("run", run_id, question, case_number(first)),
        "kind": FAILED if any(result.status is Status.FAILED for result in results) else FROZEN,
        "run": run_id,
        "case": case_number(first),
        "decide": _LEFT_TO_DECIDE,
        "outputs": [
            {
                "column": columns.get(result.column, ""),
                "status": str(result.status),
                "reason": one_line(case_reason(result), 500),
                "output": result.output,
            }
            for result in results
        ],
    }
    return row


async def freeze_traces(
    path: Path, embedder: BoundModel | None, given: GenerateTestsOptions, known: Sequence[str]
) -> FrozenTests:
    """Return typical questions from a file of traces, with the groups that they represent.

    Raises:
        ConfigError: no line can be used.
        UsageError: no trace has a question.
        ProviderError: the `--embeddings` model does not answer.
    """
    reading, silent = TraceReading(), 0
    answers: list[ModelAnswer] = []
    texts: list[str] = []
    for answer in chosen_answers(read_traces(path, reading), (), MOST_GROUPED, given.seed):
        question = next((turn.content for turn in reversed(answer.turns) if turn.role == "user"), "").strip()
        if question:
            answers.append(answer)
            texts.append(mask_text(question))
        else:
            silent += 1
    over = reading.answers - len(texts) - silent
    if not texts:
        if reading.problems:
            raise ConfigError(reading.problems)
        raise UsageError(
            f"no trace in {path} has a user's message",
            hint="see docs/reference/traces.md for the supported spans",
        )
    method = "tf-idf" if embedder is None else "embeddings"
    least = GROUPED_AT[method]
    near = similar_pairs(tf_idf(texts), least) if embedder is None else await _near(texts, embedder, least)
    groups = grouped(texts, near, least)
    asked = KnownQuestions(known)
    frozen = FrozenTests()
    in_suite = 0
    for number, group in enumerate(groups, start=1):
        taken = 0
        for place in group.members:
            if taken == given.per_group:
                break
            if asked.has(texts[place]):
                in_suite += 1
                continue
            taken += 1
            row = _trace_row(answers[place], texts[place])
            row["metadata"] |= {
                "group": number,
                "group_size": group.size,
                "group_words": " ".join(group.words),
            }
            frozen.rows.append(row)
    frozen.rows = frozen.rows[: given.count]
    frozen.said = f"{plural(len(groups), 'group')} of {plural(len(texts), 'trace')}"
    if not frozen.rows:
        frozen.said += ", and the suite has a question of each"
    for group in groups[:_GROUPS_SHOWN]:
        words = ", ".join(group.words) or one_line(texts[group.members[0]], 40)
        frozen.lines.append(f"{group.size:>5,} {words}")
    single = sum(group.size == 1 for group in groups)
    if len(groups) > _GROUPS_SHOWN:
        frozen.lines.append(
            f"and {plural(len(groups) - _GROUPS_SHOWN, 'smaller group')}, {single:,} of one trace"
        )
    covered = {row["metadata"]["group"] for row in frozen.rows}
    sizes = sum(group.size for number, group in enumerate(groups, start=1) if number in covered)
    frozen.lines.append(f"these groups hold {sizes:,} of {plural(len(texts), 'trace')}")
    for count, what in (
        (in_suite, "left out: the suite asks the same"),
        (silent, "skipped: no user's message"),
        (reading.silent, "skipped: no answer"),
        (reading.bad, "unreadable lines skipped"),
        (over, f"left out: {MOST_GROUPED:,} are drawn at random and grouped"),
    ):
        if count:
            frozen.lines.append(f"{count:,} {what}")
    frozen.lines.append(
        "the file has text of your users: keys are masked, names and other personal data are not"
    )
    frozen.facts = {
        "traces": len(texts),
        "groups": [
            {"size": group.size, "words": list(group.words), "example": texts[group.members[0]]}
            for group in groups
        ],
        "in_suite": in_suite,
    }
    return frozen


def _trace_row(answer: ModelAnswer, question: str) -> dict[str, JsonValue]:
    """Return the question as a test. The answer goes into its metadata, since whether it was right is unknown."""
    row: dict[str, JsonValue] = _masked(answer.row())
    output = row.pop("output", None)
    row.pop("trace", None)
    metadata = row.get("metadata") or {}
    row["metadata"] = {
        "id": row_id("trace", str(metadata.get("trace_id") or metadata.get("response_id") or ""), question),
        "kind": TRACE,
        **metadata,
        "answered": output,
    }
    return row


def _masked(value: JsonValue) -> JsonValue:
    if isinstance(value, str):
        return mask_text(value)
    if isinstance(value, dict):
        return {name: _masked(item) for name, item in value.items()}
    return [_masked(item) for item in value] if isinstance(value, list) else value


async def _near(texts: Sequence[str], embedder: BoundModel, least: float) -> list[dict[int, float]]:
    """Return the pairs of texts whose embeddings are similar."""
    try:
        import numpy as np  # noqa: PLC0415 - an extra
    except ImportError as error:
        hint = f"install it {install_hint('trust')}, or leave out --embeddings to group by words"
        raise UsageError("grouping by embeddings needs the package numpy", hint=hint) from error

    requests = [
        ModelRequest(user_message(text), role=Role.JUDGE, purpose=Purpose.EMBEDDING) for text in texts
    ]
    replies = await all_or_first_error([*map(embedder.complete, requests)])
    try:
        matrix = np.array([decode_json(reply.choices[0].text) for reply in replies], dtype=np.float64)
    except (ValueError, IndexError) as error:
        hint = "name an embedding model, for example openai:embedding:text-embedding-3-small"
        raise UsageError(f"{embedder.public_id} does not return embeddings", hint=hint) from error
    matrix /= np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), 1e-12)
    near: list[dict[int, float]] = [{} for _ in texts]
    for place in range(len(texts)):
        cosines = matrix[:place] @ matrix[place]
        for other in np.flatnonzero(cosines >= least).tolist():
            near[place][other] = near[other][place] = float(cosines[other])
    return near
