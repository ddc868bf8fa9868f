"""`GEval`, a metric for Python programs. Importing it is cheap: the rest is imported when it is needed."""

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
"""Seconds between two looks at a provider's batch, at first."""


@dataclass(frozen=True, slots=True, eq=False)
class GEval:
    """A criterion: a named `dimension`, or `criteria` and/or `evaluation_steps` of your own.

    The judge's steps are asked for once and then belong to the metric; so do its connections, which are closed when
    nobody refers to the metric any more. A metric may be used from any number of threads and event loops.

    Attributes:
        name: shown in results.
        criteria: what is valued, in a sentence or two; of several, each is judged for itself and the mean counts.
        dimension: one of G-Eval's, such as fluency or coherence; docs/reference/geval.md has a table of them.
        evaluation_params: which of input, images, actual_output, expected_output, context and retrieval_context the
            judge sees; None for all that a test case has.
        evaluation_steps: the procedure that the judge follows; None has it written once from the criteria.
        rubric: what earns which rating: {10: "...", 0: "..."}, or a list of (10, "..."), of {score, description}, or
            of {score_range, expected_outcome}.
        score_range: lowest and highest rating.
        strict_mode: all or nothing: the judge answers 0 or 1, and only 1 passes.
        model: who judges, "openai:gpt-4o", ("openai", "gpt-4o") or "gpt-4o"; a provider as a config file has it,
            {"id": ..., "config": {...}}; a client of the openai library with its model, (client, "gpt-4.1"); or an
            object with the methods of `geval_cli.judge.metric.Judge`. None for openai:gpt-4.1.
        threshold: the least score (0..1) that passes.
        scoring: how ratings become a score: auto, logprobs, samples or single.
        samples: how many ratings are asked for when `scoring` is, or falls back to, samples; {"upto": 20} asks for no
            more than settle the verdict, {"upto": 20, "stop_error": 0.01} until it is surer.
        min_valid: the least share (0..1) of samples that must be readable.
        cache: whether the judge's answers are kept in the state folder (GEVAL_HOME, or `.geval` in the current folder),
            as those of `geval run` are, so that later programs do not pay for them again.
        judges: several judges in place of `model`, each as `model` has it: a jury.
        jury: how their verdicts become one: {"combine": "mean"} (or median, majority), with "min_judges".
        checklist: what the output is to have, instead of criteria: texts, or {"item": ..., "weight": 2,
            "required": True}; the score is the weighted share that is met.
        joint: all dimensions that are rated in the same call, `dimension` among them; `for_dimensions` fills it in.
        guidelines: sentences that tell the judge how to apply the criterion.
        examples: rated outputs that the judge sees: {"output": ..., "rating": 4, "reason": ..., "input": ...}, the
            rating on the judge's scale.
        over: of a case with turns, "conversation" rates all of it at once, "answers" each answer; then the mean counts.
        window: with over="answers", how many turns the judge sees, the answer among them; 5 if None.

    Raises:
        UsageError: naming everything that is wrong with the arguments. What is only doubtful is warned about.
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
        """Pickle the arguments alone: a copy starts anew and shares neither connections nor steps."""
        return GEval, tuple(self.arguments.values())

    @property
    def arguments(self) -> dict[str, Any]:
        """Everything that the metric was made with, by name."""
        return {item.name: getattr(self, item.name) for item in fields(self) if item.init}

    @classmethod
    def for_dimensions(
        cls, dimensions: Sequence[str] | Mapping[str, float], **arguments: Any
    ) -> "tuple[GEval, ...]":
        """Return a metric for each of several dimensions, which one call of the judge rates.

        Args:
            dimensions: their names, or their names with the threshold of each.
            arguments: of the constructor, for all of them.

        Raises:
            UsageError: as the constructor does.
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
        for metric in metrics[1:]:  # who asks second finds the answer there
            object.__setattr__(metric, "_session", metrics[0]._session)
        return metrics

    def evaluate(
        self, test_case: TestCase, model: "Model | None" = None, adapter: str | None = None
    ) -> Result:
        """Return the verdict on `test_case`. Blocks until it is there, inside a running event loop too.

        Args:
            test_case: what to judge.
            model: who judges this once, as in the constructor.
            adapter: the provider that `model` belongs to, for example "anthropic".

        Raises:
            MissingParamsError: the test case lacks a parameter that `evaluation_params` names; nothing was asked.
            UsageError: the judge does not exist, or has no key.
            ApiError: the judge could not answer.
            JudgeError: the judge answered, but no verdict can be read.
        """
        from geval_cli.library.evaluation import evaluate_case

        evaluation = self._evaluation(model, adapter)
        return self._session.run(lambda judges: evaluate_case(judges, evaluation, test_case))

    async def aevaluate(
        self, test_case: TestCase, model: "Model | None" = None, adapter: str | None = None
    ) -> Result:
        """Evaluate as `evaluate` does, without blocking the event loop."""
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
        model: who judges this once, as in the constructor.
        adapter: the provider that `model` belongs to.
        batch: ask the judge in the provider's batches: hours later, at half the price. What was submitted is in the
            state folder, so that a program that was ended finds its answers when it asks the same again. A number
            says how many seconds lie between two looks at a batch, at first; True means 15.

    Raises:
        UsageError: the judge does not exist, has no key, or has no batch API, so that no case can be judged.
        ProviderError: the provider does not let its batches be looked at.
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
    """Evaluate a batch as `evaluate_batch` does, without blocking the event loop."""
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
