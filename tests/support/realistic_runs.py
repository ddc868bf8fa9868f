"""Made-up runs of realistic size and kind, for tests, benchmarks and a look at the pages.

    python tests/support/realistic_runs.py FOLDER && geval serve FOLDER --home FOLDER/.geval

fills FOLDER with a config, five finished runs of it and an interrupted one, and the labels of two people. Three prompts
and three models answer forty tests twice: in several scripts and directions, with errors, fallbacks, long outputs,
flaky tests, pairwise comparisons and gates. The numbers are the same every time.
"""

# ruff: noqa: RUF001 - the answers are in several scripts

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from random import Random

from msgspec.structs import replace

from geval_cli.engine.aggregate import Tally, flaky_tests
from geval_cli.engine.columns import with_columns
from geval_cli.engine.gates import judge_gates
from geval_cli.extras.rankings import RankingSums
from geval_cli.records import (
    AssertionResult,
    CaseResult,
    Column,
    ErrorInfo,
    GitState,
    JsonValue,
    ProviderRef,
    RenderedPrompt,
    Role,
    RunRecord,
    RunStatus,
    RunSummary,
    Status,
    Usage,
)
from geval_cli.report.report import RunReport
from geval_cli.report.sanitize import output_digest
from geval_cli.source.source_map import SourcePath
from geval_cli.store.runs import RunOrigin, RunStore, StoredLabel, config_file
from geval_cli.suite.gates import Gate, parse_gate
from geval_cli.version import __version__

CONFIG_NAME = "helpdesk.yaml"
PROMPTS = ("short", "friendly", "with sources, step by step")
MODELS = {
    # label: (id, quality, US dollars per answer, milliseconds)
    "gpt-4.1-mini": ("openai:gpt-4.1-mini", 0.78, 0.00041, 900),
    "claude-haiku": ("anthropic:claude-haiku-4-5", 0.84, 0.00112, 1400),
    "mistral 7B (local)": ("ollama:mistral:7b-instruct-q4", 0.6, 0.0, 3200),
}
COLUMNS = tuple(
    Column(number, prompt, model)
    for number, (model, prompt) in enumerate((model, prompt) for model in MODELS for prompt in PROMPTS)
)
GATES = ("pass_rate >= 60%", "faithfulness.mean >= 0.7", "errors <= 5%", "latency.p95 < 9000")
QUESTIONS = (
    ("How do I return a coffee grinder that I have opened?", "en", "returns"),
    ("Wo ist mein Paket? Laut Sendungsverfolgung liegt es seit neun Tagen in Köln.", "de", "shipping"),
    ("領収書の宛名を会社名に変更してもらえますか。", "ja", "billing"),
    ("متى يصل طلبي رقم ٤٤١٧؟ لقد دفعت ثمن التوصيل السريع.", "ar", "shipping"),
    ("האם אפשר לבטל את המינוי ולקבל החזר על החודש האחרון?", "he", "billing"),
    ("我的咖啡机漏水，保修期还剩三天，怎么办？", "zh", "returns"),
    ("Can I pay with two gift cards at once?", "en", "billing"),
    ("Die Mühle macht „krrk“ 😖 und riecht verbrannt – ist das gefährlich?", "de", "safety"),
    ("Please delete my account and everything you know about me.", "en", "privacy"),
    ("¿Tienen café descafeinado sin disolventes? Soy alérgica al cloruro de metileno.", "es", "safety"),
)
ANSWERS = {
    "en": "You can do that within 28 days. Keep the receipt, print the label from your account, and drop the parcel"
    " at any pick-up point. We refund the amount to the card you paid with, usually within five working days.",
    "de": "Das geht innerhalb von 28 Tagen. Bitte heben Sie den Beleg auf, drucken Sie den Aufkleber aus Ihrem Konto"
    " und geben Sie das Paket an einer Annahmestelle ab.",
    "ja": "はい、可能です。購入履歴の画面から「領収書を再発行」を選び、宛名を入力してください。"
    "28日以内であれば何度でも変更できます。",
    "ar": "يصل طلبك خلال يومي عمل. سنرسل إليك رقم التتبع (TRK-4417) بالبريد الإلكتروني،"
    " وإذا تأخر أكثر من ٢٨ يوماً نعيد المبلغ.",
    "he": "כן. אפשר לבטל בכל עת בהגדרות החשבון, וההחזר על החודש האחרון (₪39.90) יגיע תוך 28 ימים.",
    "zh": "可以。请在 28 天内登录账户打印退货标签，把机器寄回；我们会免费维修或更换。",
    "es": "Sí: «Noche clara» se descafeína con agua, sin disolventes. Puede devolverlo en 28 días si no le convence.",
}
STEPS = (
    "Read the policy and list the claims of the answer.",
    "Mark each claim that the policy does not support.",
    "Rate from 1 (most claims are invented) to 5 (all are supported).",
)
_STARTED = datetime(2026, 11, 2, 8, 30, tzinfo=UTC)
_MARKDOWN = """

## What to do

1. Open **Orders** and choose the parcel.
2. Print the label: `geval-coffee/labels?order=4417`.

| when | what you get back |
| --- | --- |
| within 28 days | all of it |
| later | a voucher |

See [our terms](https://coffee.example/terms) or ![a map](https://coffee.example/map.png)."""


@dataclass(frozen=True)
class Shape:
    """The size of the runs. `drift` makes all outputs better or worse, from -1 to 1."""

    tests: int = 40
    repeats: int = 2
    columns: tuple[Column, ...] = COLUMNS
    drift: float = 0.0
    seed: int = 1
    has_pairs: bool = True


def realistic_results(shape: Shape = Shape()) -> Iterator[CaseResult]:
    """Yield the results test by test, as the store does."""
    for test in range(shape.tests):
        for repeat in range(shape.repeats):
            for column in shape.columns:
                yield _case(shape, test, repeat, column)


def realistic_report(shape: Shape = Shape(), **changes: object) -> RunReport:
    """Return a run that is not stored; `changes` apply to its record."""
    results, summary = _judged_run(shape)
    return RunReport(replace(_record(shape, 0), **changes), summary, lambda: iter(results))


@cache
def _judged_run(shape: Shape) -> tuple[Sequence[CaseResult], RunSummary]:
    """Return the results and the summary of a run; takes two seconds of CPU time for 720 results."""
    results = tuple(realistic_results(shape))
    return results, summary_of(shape.columns, results)


def summary_of(columns: tuple[Column, ...], results: Sequence[CaseResult]) -> RunSummary:
    """Return the summary of a run with these results."""
    tally, rankings = Tally(), RankingSums(columns)
    for result in results:
        rankings.add(result)
        tally.add(result)
    summary = rankings.with_rankings(tally.summary())
    summary = with_columns(summary, columns, results, baseline=None, has_clusters=tally.has_clusters)
    flaky, count = flaky_tests(results)
    gates = judge_gates([_gate(text) for text in GATES], results, max_errors=None)
    return replace(summary, flaky=flaky, flaky_count=count, gates=gates)


def store_realistic_run(
    folder: Path, shape: Shape = Shape(), number: int = 0, *, done: int | None = None
) -> str:
    """Store a run in `folder/.geval`, with its config; with `done`, one interrupted after that many tests."""
    config = folder / CONFIG_NAME
    if not config.exists():
        config.write_text(json.dumps(_config(), indent=2, ensure_ascii=False), encoding="utf-8")
    run = _record(shape, number, is_whole=done is None)
    results, summary = _judged_run(shape if done is None else dataclasses.replace(shape, tests=done))
    runs = RunStore.open(folder / ".geval")
    try:
        begun = replace(run, status=RunStatus.RUNNING, finished_at=None, duration_ms=None)
        planned = shape.tests * shape.repeats * len(shape.columns)
        runs.begin(begun, RunOrigin(config_file(config), planned, {}))
        for result in results:
            runs.add(run.id, result)
        runs.finish(run, summary)
    finally:
        runs.close()
    return run.id


def store_history(folder: Path, shape: Shape = Shape(), runs: int = 5) -> list[str]:
    """Store an interrupted run and `runs` finished ones, the last the best, with labels; return the ids in order."""
    ids = [store_realistic_run(folder, shape, 0, done=max(shape.tests // 4, 1))]
    for number in range(1, runs + 1):
        drift = 0.05 * (number - runs)
        ids.append(store_realistic_run(folder, dataclasses.replace(shape, drift=drift), number))
    store_labels(folder, ids[-1], shape)
    return ids


def store_labels(folder: Path, run_id: str, shape: Shape = Shape()) -> int:
    """Store two people's labels of the faithfulness of the first repeat of every third test; return their number."""
    labels = []
    for result in realistic_results(shape):
        score = result.named_scores.get("faithfulness")
        if result.test_index % 3 or result.repeat_index or score is None:
            continue
        for annotator, harshness in (("ana", 0.0), ("bo", 0.1)):
            noise = Random(f"{annotator}/{result.id}").gauss(0, 0.12)
            is_good = score + noise - harshness >= 0.5
            labels.append(_label(result, run_id, annotator, is_good=is_good))
    runs = RunStore.open(folder / ".geval")
    try:
        runs.labels().put(run_id, labels)
    finally:
        runs.close()
    return len(labels)


def _label(result: CaseResult, run_id: str, annotator: str, *, is_good: bool) -> StoredLabel:
    digest = output_digest(result.output)
    row: dict[str, JsonValue] = {
        "id": result.id,
        "metric": "faithfulness",
        "label": "pass" if is_good else "fail",
        "annotator": annotator,
        "run_id": run_id,
        "output_sha256": digest,
    }
    return StoredLabel(result.id, "faithfulness", annotator, digest, row)


def _record(shape: Shape, number: int, *, is_whole: bool = True) -> RunRecord:
    began = _STARTED + timedelta(days=3 * number, minutes=17 * number)
    ended = began + timedelta(minutes=4, seconds=11)
    return RunRecord(
        id=f"{began:%Y%m%d-%H%M%S}-r{number:03}",
        status=RunStatus.COMPLETED if is_whole else RunStatus.INTERRUPTED,
        started_at=began.isoformat(timespec="milliseconds"),
        finished_at=ended.isoformat(timespec="milliseconds"),
        duration_ms=251_000.0,
        tool_version=__version__,
        config_path=CONFIG_NAME,
        config_digest="5f0c",
        config=_config(),
        columns=shape.columns,
        warnings=("openai:gpt-4.1-mini does not accept `seed`, which is now left out",),
        description="Answers of the help desk: true to the policy, kind, and short enough",
        judges=("openai:gpt-4.1",),
        tags={"branch": "main", "why": "nightly"},
        git=GitState("0f3c9a1d2b4e5f60718293a4b5c6d7e8f9012345", "main", dirty=False),
    )


def _config() -> dict[str, JsonValue]:
    return {
        "description": "Answers of the help desk",
        "prompts": [{"id": name, "raw": "{{ question }}"} for name in PROMPTS],
        "providers": [{"id": name, "label": label} for label, (name, *_) in MODELS.items()],
        "gates": list(GATES),
        "tests": [
            {
                "vars": {"question": question},
                "metadata": {"lang": lang, "area": area},
                "assert": [{"type": "contains", "value": "28"}],
            }
            for question, lang, area in QUESTIONS
        ],
    }


def _gate(text: str) -> Gate:
    gate = parse_gate(text, SourcePath.nowhere())
    assert isinstance(gate, Gate), gate
    return gate


def _quality(shape: Shape, test: int, column: Column) -> float:
    """Return how good the answers are, from 0 to 1; some tests are hard for all columns."""
    hard, own = _luck(shape.seed, test, column.index)
    prompt = 0.06 * PROMPTS.index(column.prompt_label) if column.prompt_label in PROMPTS else 0.0
    base = MODELS[column.provider_label][1] if column.provider_label in MODELS else 0.7
    return min(max(base + prompt + shape.drift - 0.6 * hard + own, 0.02), 0.99)


@cache
def _luck(seed: int, test: int, column: int) -> tuple[float, float]:
    """Return how hard a test is, and how much better than usual a column does in it; cached, as it is used often."""
    hard = Random(f"test {seed}/{test}").betavariate(1.4, 5)
    return hard, Random(f"{seed}/{test}/{column}").gauss(0, 0.08)


def _case(shape: Shape, test: int, repeat: int, column: Column) -> CaseResult:
    random = Random(f"case {shape.seed}/{test}/{repeat}/{column.index}/{shape.drift}")
    question, lang, area = QUESTIONS[test % len(QUESTIONS)]
    quality = _quality(shape, test, column)
    model_id, _, price, pace = MODELS.get(column.provider_label, (column.provider_label, 0.7, 0.001, 1000))
    latency = pace * random.uniform(0.7, 1.9)
    values: dict[str, object] = {
        "id": f"{test:04}-{repeat}-{column.index}",
        "test_index": test,
        "repeat_index": repeat,
        "column": column.index,
        "description": None if test % 4 == 3 else f"{question[:60]} (#{test + 1})",
        "prompt": RenderedPrompt(column.prompt_label, column.prompt_label, _prompt(column, question)),
        "provider": ProviderRef(model_id, column.provider_label),
        "vars": {"question": question, "customer": {"since": 2019 + test % 7, "tier": "gold"}, "n": test},
        "metadata": {"lang": lang, "area": area, "hard": quality < 0.5},
        "latency_ms": latency,
        "cached": random.random() < 0.15,
        "finish_reason": "length" if random.random() < 0.03 else "stop",
        "usage": {Role.GENERATION: Usage(1, 412, 96, 0, price)},
        "cost_usd_generated": price,
    }
    if random.random() < 0.012:
        error = ErrorInfo(
            "ProviderServerError",
            f"{model_id} answered 503 six times: upstream connect error or disconnect/reset before headers",
            "run `geval run --retry-errors` later",
            "<html><h1>503</h1></html>",
        )
        return _finished(values, None, (), Status.ERROR, error)
    if test % 20 == 19:
        return _finished(values, _answer(random, lang, quality), (), Status.NOT_EVALUATED, None)
    output = _answer(random, lang, quality)
    judged = (
        _faithfulness(random, quality),
        _tone(random, quality, column),
        _contains(str(output)),
        *([_helpful(shape, test, repeat, column)] if shape.has_pairs else []),
    )
    statuses = {item.status for item in judged}
    order = (Status.ERROR, Status.FAILED, Status.PASSED)
    return _finished(values, output, judged, next(item for item in order if item in statuses), None)


def _finished(
    values: dict[str, object],
    output: JsonValue,
    assertions: tuple[AssertionResult, ...],
    status: Status,
    error: ErrorInfo | None,
) -> CaseResult:
    scores = [item.score for item in assertions if item.score is not None]
    named = {item.metric: item.score for item in assertions if item.metric and item.score is not None}
    usage = dict(values.pop("usage"))  # type: ignore[call-overload]
    judge = sum((item.usage for item in assertions), Usage())
    if judge.requests:
        usage[Role.JUDGE] = judge
    return CaseResult(
        **values,  # type: ignore[arg-type]
        output=output,
        status=status,
        score=sum(scores) / len(scores) if scores and status is not Status.ERROR else None,
        named_scores=named,
        error=error,
        usage=usage,
        assertions=assertions,
    )


def _prompt(column: Column, question: str) -> str:
    messages = [
        {
            "role": "system",
            "content": f"You answer for a coffee shop. Style: {column.prompt_label}. Policy: returns within 28 days;"
            " the customer pays for the way back unless the machine is broken; gift cards are never paid out.",
        },
        {"role": "user", "content": question},
    ]
    return json.dumps(messages, ensure_ascii=False)


def _answer(random: Random, lang: str, quality: float) -> JsonValue:
    text = ANSWERS[lang]
    if quality + random.gauss(0, 0.1) < 0.25:
        text = "I am sorry, I cannot help with that.\u200b Ask \u202eesle ydobemos\u202c."
    kind = random.random()
    if kind < 0.12:
        return text + _MARKDOWN
    if kind < 0.17:
        return "\n\n".join([text] * random.randint(20, 60))
    if kind < 0.2:
        return {"answer": text, "sources": ["policy §4", "policy §9"], "confidence": round(quality, 3)}
    if kind < 0.21:
        return ""
    return f"{text} ({random.randint(1, 999)})"


def _faithfulness(random: Random, quality: float) -> AssertionResult:
    mean = 1 + 4 * min(max(quality + random.gauss(0, 0.11), 0.0), 1.0)
    weights = {str(rating): 2.0 ** -((rating - mean) ** 2 * 2) for rating in range(1, 6)}
    total = sum(weights.values())
    spread = {rating: weight / total for rating, weight in weights.items()}
    rating = sum(int(name) * share for name, share in spread.items())
    score = (rating - 1) / 4
    is_good = score >= 0.5
    claim = "pays for the way back" if quality < 0.6 else "refund within five working days"
    reason = (
        "All claims follow from the policy; the limit of 28 days is given."
        if is_good
        else f"The answer says “{claim}”, which the policy does not support, and leaves out that gift cards are never"
        " paid out."
    )
    return AssertionResult(
        "g-eval",
        "faithfulness",
        Status.PASSED if is_good else Status.FAILED,
        score,
        threshold=0.5,
        reason=reason,
        location=f"{CONFIG_NAME}:31:9",
        latency_ms=700 * random.uniform(0.8, 1.4),
        usage=Usage(1, 900, 60, 0, 0.0021),
        detail={
            "judge": "openai:gpt-4.1",
            "estimator": "logprobs",
            "rating": rating,
            "score_range": [1, 5],
            "coverage": random.uniform(0.93, 1.0),
            "distribution": spread,
            "criteria": "The answer claims nothing that the policy does not say.",
            "evaluation_steps": list(STEPS),
        },
    )


def _tone(random: Random, quality: float, column: Column) -> AssertionResult:
    if random.random() < 0.015:
        error = ErrorInfo(
            "JudgeParseError",
            "3 of 20 samples could be read, fewer than half",
            "use a larger judge, or lower `min_valid`",
            "As a language model I would rather not rate this\x07.",
        )
        detail = {"estimator": "samples", "requested": 20, "valid": 3, "judge": "openai:gpt-4.1"}
        return AssertionResult(
            "g-eval", "tone", Status.ERROR, None, threshold=0.4, error=error, detail=detail
        )
    is_friendly = column.prompt_label == "friendly"
    score = round(min(max(random.gauss(0.55 + 0.2 * quality + 0.2 * is_friendly, 0.14), 0), 1) * 20) / 20
    return AssertionResult(
        "g-eval",
        "tone",
        Status.PASSED if score >= 0.4 else Status.FAILED,
        score,
        threshold=0.4,
        reason="Warm, and to the point."
        if score >= 0.4
        else "Curt: it neither greets nor thanks the customer.",
        location=f"{CONFIG_NAME}:38:9",
        usage=Usage(20, 8_000, 20, 4, 0.0037),
        detail={
            "judge": "openai:gpt-4.1",
            "estimator": "samples",
            "requested": 20,
            "valid": 20,
            "rating": 10 * score,
            "score_range": [0, 10],
            "distribution": {f"{round(10 * score)}": 1.0},
            "criteria": "The answer is friendly.",
            **(
                {"fallback": "the judge gives no token probabilities, so it was sampled"}
                if score > 0.9
                else {}
            ),
        },
    )


def _contains(output: str) -> AssertionResult:
    is_there = "28" in output
    reason = 'the output contains "28"' if is_there else 'the output does not contain "28"'
    return AssertionResult(
        "contains",
        None,
        Status.PASSED if is_there else Status.FAILED,
        float(is_there),
        weight=2.0,
        reason=reason,
        location=f"{CONFIG_NAME}:44:9",
    )


def _helpful(shape: Shape, test: int, repeat: int, column: Column) -> AssertionResult:
    """Compare the output with those of all other columns; both outputs of a pair get the same outcome."""
    pairs = [_pair(shape, (test, repeat), column, other) for other in shape.columns if other is not column]
    outcomes = [str(pair["outcome"]) for pair in pairs]
    return AssertionResult(
        "pairwise",
        "helpful",
        Status.PASSED,
        sum(pair["share"] for pair in pairs) / len(pairs) if pairs else None,
        reason="preferred to most others"
        if outcomes.count("win") > outcomes.count("loss")
        else "tied or beaten",
        usage=Usage(2 * len(pairs), 6_000, 16, 0, 0.0012),
        detail={
            "judge": "openai:gpt-4.1",
            "against": "all",
            "scored_by": "single",
            "wins": outcomes.count("win"),
            "ties": outcomes.count("tie"),
            "losses": outcomes.count("loss"),
            "pairs": pairs,
        },
    )


def _pair(shape: Shape, place: tuple[int, int], own: Column, other: Column) -> dict[str, JsonValue]:
    test, repeat = place
    first, second = sorted((own, other), key=lambda column: column.index)
    random = Random(f"pair {shape.seed}/{test}/{repeat}/{first.index}/{second.index}")
    lead = _quality(shape, test, first) - _quality(shape, test, second) + random.gauss(0, 0.15)
    outcome = "tie" if abs(lead) < 0.08 else "win" if lead > 0 else "loss"
    if own is not first:
        outcome = {"win": "loss", "loss": "win"}.get(outcome, outcome)
    share = {"win": 1.0, "tie": 0.5, "loss": 0.0}[outcome]
    return {
        "column": other.index,
        "label": f"{other.prompt_label} / {other.provider_label}",
        "outcome": outcome,
        "share": share,
        "consistent": outcome != "tie",
    }


def main() -> None:
    """Fill a folder, as specified on the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tests", type=int, default=40)
    parser.add_argument("--runs", type=int, default=5)
    chosen = parser.parse_args()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    for run_id in store_history(chosen.folder, Shape(tests=chosen.tests), chosen.runs):
        sys.stdout.write(f"{run_id}\n")


if __name__ == "__main__":
    main()
