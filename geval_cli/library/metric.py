"""`GEval`, a metric for Python programs. Importing it is cheap: everything else is imported when needed."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

from geval_cli.errors import GevalError, UsageError
from geval_cli.library.records import JudgingOptions, Result, TestCase
from geval_cli.library.session import LibrarySession

if TYPE_CHECKING:
    from geval_cli.judge.metric import Judge, Metric
    from geval_cli.library.definition import Jury, Model
    from geval_cli.library.evaluation import Evaluation
    from geval_cli.providers.base import ClientModel
    from geval_cli.specs.base import ProviderSpec

DEFAULT_CONCURRENCY = 10
"""How many cases of a batch are judged at a time."""

DEFAULT_POLL_S = 15.0
"""The initial interval between two polls of a provider's batch, in seconds."""


@dataclass(frozen=True, slots=True, eq=False)
class GEval:
    """A criterion: a named `dimension`, your own `criteria` and/or `evaluation_steps`, or a `checklist`.

    A metric has the judge write its steps once and keeps them, as well as its connections, which are closed when the
    metric is garbage-collected. It may be used from any number of threads and event loops.

    Attributes:
        name: shown in results.
        criteria: what makes an output good, in a sentence or two; several are judged separately, and the mean counts.
        dimension: one of G-Eval's, such as fluency or coherence; docs/reference/geval.md has a table of them.
        evaluation_params: which of input, images, actual_output, expected_output, context and retrieval_context the
            judge sees; None for all that a test case has.
        evaluation_steps: the procedure that the judge follows; None to have it written once from the criteria.
        rubric: what earns which rating: {10: "...", 0: "..."}, or a list of (10, "..."), of {score, description}, or
            of {score_range, expected_outcome}.
        score_range: lowest and highest rating.
        strict_mode: all or nothing: the judge answers 0 or 1, and only 1 passes.
        model: the judge: "openai:gpt-4o", ("openai", "gpt-4o") or "gpt-4o"; a provider as in a config file,
            {"id": ..., "config": {...}}; a client of the openai library with its model, (client, "gpt-4.1"); or an
            object with the methods of `geval_cli.judge.metric.Judge`. None for openai:gpt-4.1.
        threshold: the lowest passing score (0..1).
        scoring: how ratings become a score: auto, logprobs, samples or single.
        samples: number of ratings to request if `scoring` is, or falls back to, samples; {"upto": 20} stops as soon as
            the verdict is settled, {"upto": 20, "stop_error": 0.01} when it is more certain.
        min_valid: the minimum share (0..1) of samples that must be readable.
        cache: whether the judge's answers are stored in the state folder (GEVAL_HOME, or `.geval` in the current
            folder), like those of `geval run`, so that later programs do not pay for them again.
        judges: several judges (a jury) instead of `model`, each in a form that `model` takes.
        jury: how their verdicts are combined: {"combine": "mean"} (or median, majority), with "min_judges".
        checklist: what the output must have, instead of criteria: texts, or {"item": ..., "weight": 2,
            "required": True}; the score is the weighted share that is met.
        joint: all dimensions rated in the same call, `dimension` among them; `for_dimensions` fills it in.
        guidelines: sentences that tell the judge how to apply the criterion.
        examples: rated outputs that the judge sees: {"output": ..., "rating": 4, "reason": ..., "input": ...}, with the
            rating on the judge's scale.
        over: for a case with turns, "conversation" rates it as a whole, "answers" each answer; the mean then counts.
        window: with over="answers", how many turns the judge sees, including the answer; 5 if None.

    Raises:
        UsageError: the arguments are not valid; names every problem. Doubtful arguments only cause warnings.
    """

    name: str
    criteria: str | Sequence[str] | None = None
    dimension: str | None = None
    evaluation_params: Sequence[str] | None = None
    evaluation_steps: Sequence[str] | None = None
    rubric: Mapping[float, str] | Sequence[Any] | None = None
    score_range: tuple[float, float] = (0, 10)
    strict_mode: bool = False
    model: "Model | None" = field(default=None, repr=False)
    threshold: float = 0.5
    scoring: Literal["auto", "logprobs", "samples", "single"] = "auto"
    samples: int | Mapping[str, float] = 20
    min_valid: float = 0.5
    judges: "Sequence[Model]" = field(default=(), repr=False)
    jury: Mapping[str, Any] | None = None
    joint: Sequence[str] = ()
    cache: bool = False
    checklist: Sequence[str | Mapping[str, Any]] | None = None
    over: Literal["conversation", "answers"] | None = None
    window: int | None = None
    guidelines: Sequence[str] | None = None
    examples: Sequence[Mapping[str, Any]] | None = None
    _metric: "Metric" = field(init=False, repr=False)
    _judge: "ProviderSpec | ClientModel | Judge | Jury" = field(init=False, repr=False)
    _session: LibrarySession = field(init=False, repr=False)

    def __post_init__(self) -> None:
        from geval_cli.library.definition import define

        definition = define(self.arguments)
        for doubt in definition.doubts:
            warnings.warn(doubt, stacklevel=3)
        object.__setattr__(self, "_metric", definition.metric)
        object.__setattr__(self, "_judge", definition.judge)
        object.__setattr__(self, "_session", LibrarySession(JudgingOptions(uses_cache=bool(self.cache))))

    def __reduce__(self) -> tuple[type["GEval"], tuple[Any, ...]]:
        """Pickle only the arguments: a copy shares neither connections nor steps."""
        return GEval, tuple(self.arguments.values())

    @property
    def arguments(self) -> dict[str, Any]:
        """Return the arguments that the metric was constructed with, by name."""
        return {item.name: getattr(self, item.name) for item in fields(self) if item.init}

    @classmethod
    def for_dimensions(
        cls, dimensions: Sequence[str] | Mapping[str, float], **arguments: Any
    ) -> "tuple[GEval, ...]":
        """Return a metric for each of several dimensions, all rated in one judge call.

        Args:
            dimensions: their names, or a threshold for each name.
            arguments: further constructor arguments, shared by all metrics.

        Raises:
            UsageError: as for the constructor.
        """
        own = dict(dimensions) if isinstance(dimensions, Mapping) else {}
        names = tuple(dimensions)
        metrics = tuple(
            cls(
                name=name.capitalize(),
                dimension=name,
                joint=names,
                **arguments | ({"threshold": own[name]} if name in own else {}),
            )
            for name in names
        )
        for metric in metrics[1:]:  # so that the other metrics find the first one's answer
            object.__setattr__(metric, "_session", metrics[0]._session)
        return metrics

    def evaluate(
        self, test_case: TestCase, model: "Model | None" = None, adapter: str | None = None
    ) -> Result:
        """Return the verdict on `test_case`. Blocks, even inside a running event loop.

        Args:
            test_case: what to judge.
            model: the judge for this call, as in the constructor.
            adapter: the provider that `model` belongs to, for example "anthropic".

        Raises:
            MissingParamsError: the test case lacks a parameter that `evaluation_params` names; no request was sent.
            UsageError: the judge does not exist, or has no key.
            ApiError: the judge could not answer.
            JudgeError: the judge answered, but no verdict could be read.
        """
        from geval_cli.library.evaluation import evaluate_case

        evaluation = self._evaluation(model, adapter)
        return self._session.run(lambda judges: evaluate_case(judges, evaluation, test_case))

    async def aevaluate(
        self, test_case: TestCase, model: "Model | None" = None, adapter: str | None = None
    ) -> Result:
        """Do the same as `evaluate`, without blocking the event loop."""
        from geval_cli.library.evaluation import evaluate_case

        evaluation = self._evaluation(model, adapter)
        return await self._session.arun(lambda judges: evaluate_case(judges, evaluation, test_case))

    def _evaluation(self, model: "Model | None", adapter: str | None) -> "Evaluation":
        from geval_cli.library.definition import choose_judge
        from geval_cli.library.evaluation import Evaluation

        judge = self._judge if model is None and adapter is None else choose_judge(model, adapter)
        return Evaluation(self._metric, judge)


def evaluate_batch(
    metric: GEval,
    cases: Iterable[TestCase],
    *,
    concurrency: int = DEFAULT_CONCURRENCY,
    model: "Model | None" = None,
    adapter: str | None = None,
    batch: bool | float = False,
) -> list[Result | GevalError]:
    """Return the verdicts on `cases`, in order: for each a Result, or the error that `evaluate` would have raised.

    Args:
        metric: the criterion.
        cases: what to judge.
        concurrency: how many cases are judged at a time, at least 1.
        model: the judge for this call, as in the constructor.
        adapter: the provider that `model` belongs to.
        batch: whether to use the provider's batch API: hours later, at half the price. Submitted batches are recorded
            in the state folder, so that a restarted program with the same requests finds its answers. A number is the
            initial interval between two polls in seconds; True means 15.

    Raises:
        UsageError: the judge does not exist, has no key, or has no batch API, so that no case can be judged.
        ProviderError: the provider cannot report on its batches.
    """
    from geval_cli.library.evaluation import evaluate_cases, evaluate_in_batches

    evaluation = metric._evaluation(model, adapter)
    listed = list(cases)
    if not batch:
        return metric._session.run(lambda judges: evaluate_cases(judges, evaluation, listed, concurrency))
    session = _batch_session(batch)
    try:
        return session.run(lambda judges: evaluate_in_batches(judges, evaluation, listed, concurrency))
    finally:
        session.close()


async def aevaluate_batch(
    metric: GEval,
    cases: Iterable[TestCase],
    *,
    concurrency: int = DEFAULT_CONCURRENCY,
    model: "Model | None" = None,
    adapter: str | None = None,
    batch: bool | float = False,
) -> list[Result | GevalError]:
    """Do the same as `evaluate_batch`, without blocking the event loop."""
    from geval_cli.library.evaluation import evaluate_cases, evaluate_in_batches

    evaluation = metric._evaluation(model, adapter)
    listed = list(cases)
    if not batch:
        return await metric._session.arun(
            lambda judges: evaluate_cases(judges, evaluation, listed, concurrency)
        )
    session = _batch_session(batch)
    try:
        return await session.arun(lambda judges: evaluate_in_batches(judges, evaluation, listed, concurrency))
    finally:
        session.close()


def _batch_session(batch: bool | float) -> LibrarySession:
    poll_s = DEFAULT_POLL_S if batch is True else batch
    if not poll_s > 0:
        raise UsageError(f"batch must be True or a number of seconds above 0, found {batch}")
    return LibrarySession(JudgingOptions(uses_cache=True, batch_poll_s=poll_s))
