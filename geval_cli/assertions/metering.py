"""Counts what a judge's calls cost, so that they are in the result even when no verdict came of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from geval_cli.judge.metric import Judge, KeepingJudge, identity_of, public_id_of
from geval_cli.providers.base import ProviderIdentity
from geval_cli.records import JsonValue, ModelRequest, ModelResponse, Usage


class Meter(msgspec.Struct):
    """The sum of what was used."""

    usage: Usage = msgspec.field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class MeteredJudge:
    """A judge that adds the usage of every answer to `meter`, and is the same judge with any meter."""

    judge: Judge
    meter: Meter = field(compare=False)

    @property
    def label(self) -> str:
        return self.judge.label

    @property
    def provider_params(self) -> Mapping[str, JsonValue]:
        return self.judge.provider_params

    @property
    def identity(self) -> ProviderIdentity | None:
        return identity_of(self.judge)

    @property
    def public_id(self) -> str:
        return public_id_of(self.judge)

    async def complete(self, request: ModelRequest) -> ModelResponse:
        response = await self.judge.complete(request)
        self.meter.usage = self.meter.usage + response.usage
        return response

    async def forget(self, request: ModelRequest) -> None:
        if isinstance(self.judge, KeepingJudge):
            await self.judge.forget(request)
