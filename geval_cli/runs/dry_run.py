"""One assertion followed through all that it would ask its judges, who answer from the cache or not at all."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from geval_cli.assertions.base import Assertion
from geval_cli.assertions.graded.geval_fields import GEvalFields
from geval_cli.errors import GevalError
from geval_cli.gateway.identity import choice_keys
from geval_cli.judge.forecast import STEPS_STAND_IN, Purpose
from geval_cli.judge.metric import Judge
from geval_cli.providers.base import Provider
from geval_cli.providers.judge_kinds import is_embedding
from geval_cli.records import Choice, JsonValue, ModelRequest, ModelResponse
from geval_cli.runs.cost_estimate import Assumption, Ledger
from geval_cli.specs.base import ProviderSpec

_RATINGS = frozenset({Purpose.RATING, Purpose.SAMPLES})
_PURPOSES = {
    "answer-relevance": Purpose.QUESTIONS,
    "context-faithfulness": Purpose.CLAIMS,
    "select-best": Purpose.CHOICE,
}
_CLAIM_ASSUMPTION = Assumption("one for each output that claims something")
_QUESTION_ASSUMPTION = Assumption("of made-up questions, as far as they differ")
_CODE_ASSUMPTION = Assumption("none, if the cache knows what is asked after code of the config has run")


Judges = Callable[[ProviderSpec], Judge]
"""Finds the judge that a spec names."""


class NotAskedError(GevalError):
    """A judge was to be asked: no further can a judgement be followed without an answer."""


class DryRun(msgspec.Struct):
    """What one assertion asks about one output, or about a row of them.

    Where it asks for something to ask about (steps, claims, questions), a stand-in is answered, and what is asked
    about that is as often as the config says, or not sure. At any other question it ends.

    Attributes:
        is_after_code: whether code of the config, which a plan does not run, makes what is judged out of something
            that the cache knows.
        unasked: the requests at which it ended, with their purposes.
    """

    spec: Assertion
    ledger: Ledger
    is_after_code: bool = False
    unasked: list[tuple[Purpose, ModelRequest]] = msgspec.field(default_factory=list)
    _made_up: list[str] = msgspec.field(default_factory=list)
    _is_rated: bool = False
    _notes: "list[asyncio.Future[ModelResponse | None]]" = msgspec.field(default_factory=list)

    async def follow(self, ask: Callable[[Judges], Awaitable[None]]) -> None:
        """Have `ask` judge with judges of this dry_run. How it ends does not matter: there is no verdict."""
        await asyncio.gather(ask(self._judge_for), return_exceptions=True)
        # Of questions that are asked side by side, the first that ends the judgement leaves the others under way.
        await asyncio.gather(*self._notes, return_exceptions=True)

    async def answer(self, provider: Provider, request: ModelRequest) -> ModelResponse:
        """Count `request`, and answer it from the cache or by a stand-in.

        Raises:
            NotAskedError: neither is possible.
        """
        purpose = self._purpose_of(provider, request)
        note = asyncio.ensure_future(
            self.ledger.note(provider, request, purpose, self._assumption_about(purpose, request))
        )
        self._notes.append(note)
        found = await note
        if found is not None:
            self._is_rated = self._is_rated or purpose in _RATINGS
            return found
        if purpose is Purpose.STEPS:
            return _stand_in(STEPS_STAND_IN)
        if purpose in {Purpose.CLAIMS, Purpose.QUESTIONS}:
            return self._make_up(provider, request)
        self.unasked.append((purpose, request))
        raise NotAskedError("nothing is sent")

    def _judge_for(self, spec: ProviderSpec) -> Judge:
        return _SilentJudge(self.ledger.provider(spec), self)

    def _purpose_of(self, provider: Provider, request: ModelRequest) -> Purpose:
        if is_embedding(provider.id):
            return Purpose.EMBEDDING
        if not isinstance(self.spec, GEvalFields):
            first = _PURPOSES.get(self.spec.base_type, Purpose.VERDICT)
            return Purpose.VERDICT if first is Purpose.CLAIMS and len(self._notes) else first
        if "steps" in (request.response_schema or {}).get("properties", {}):
            return Purpose.STEPS
        is_sampled = len(request.sample_indexes) > 1
        if self._is_rated and self.spec.dimension is not None and 0 in request.sample_indexes:
            return Purpose.FALLBACK_SAMPLES if is_sampled else Purpose.EXPLANATION
        return Purpose.SAMPLES if is_sampled else Purpose.RATING

    def _assumption_about(self, purpose: Purpose, request: ModelRequest) -> Assumption | None:
        if purpose is Purpose.STEPS:
            return None
        if purpose is Purpose.EMBEDDING:
            is_made_up = any(
                text == message.content for text in self._made_up for message in request.messages
            )
            if is_made_up:
                return _QUESTION_ASSUMPTION
        elif self._made_up:
            return _CLAIM_ASSUMPTION
        return _CODE_ASSUMPTION if self.is_after_code else None

    def _make_up(self, provider: Provider, request: ModelRequest) -> ModelResponse:
        """Answers that no other question has, as if each output led to something else."""
        self._made_up = [f"Something about {key}" for key in choice_keys(provider.identity, request)]
        return _stand_in(*self._made_up)


@dataclass(frozen=True, slots=True)
class _SilentJudge:
    """A judge of an dry_run. Judges of different inquiries are the same judge when their provider is."""

    provider: Provider
    dry_run: DryRun = field(compare=False, repr=False)

    @property
    def label(self) -> str:
        return self.provider.label

    @property
    def provider_params(self) -> Mapping[str, JsonValue]:
        return self.provider.identity.params

    async def complete(self, request: ModelRequest) -> ModelResponse:
        return await self.dry_run.answer(self.provider, request)


@dataclass(frozen=True, slots=True)
class _MuteJudge:
    """A judge that is not asked, and of whose questions nothing is known."""

    label: str = ""
    provider_params: Mapping[str, JsonValue] = field(default_factory=dict, compare=False)

    async def complete(self, request: ModelRequest) -> ModelResponse:
        del request
        raise NotAskedError("nothing is asked here")


def mute_judge(spec: ProviderSpec) -> Judge:
    """Stands for a judge where questions are followed elsewhere."""
    del spec
    return _MuteJudge()


def _stand_in(*texts: str) -> ModelResponse:
    return ModelResponse(tuple(Choice(text, "stop") for text in texts))
