"""What the models of a config's parts are built from: the base of them all, bounds, and the model of a provider."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from geval_cli.config.place import Place
from geval_cli.config.secrets import mask_text
from geval_cli.json_codec import encode_json

_IDS_KEPT = 64

Score = Annotated[float, Field(ge=0, le=1)]
Text = Annotated[str, Field(strict=True)]
SampleCount = Annotated[int, Field(ge=1, le=1000)]
EvaluationParsing = Literal["strict", "tolerant"]
WrittenSchema = dict[str, Any] | bool | str
"""A JSON Schema as a config may have it: written out, or as JSON text."""


_masked = lru_cache(maxsize=_IDS_KEPT)(mask_text)  # every result shows the id of its provider


class Spec(BaseModel):
    """A part of a config. `place` knows the file, line and column of the part and of each of its keys."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        arbitrary_types_allowed=True,
        populate_by_name=True,
        defer_build=True,  # a config uses a few of the sixty models, and building them all took a fifth of the start
    )

    place: Place = Field(default_factory=Place.nowhere, exclude=True, repr=False)


class ProviderSpec(Spec):
    """A model endpoint. `config` goes to the wire, except geval's own keys (base_url, api_key_env, timeout_s, ...)."""

    id: str = Field(description="Which model, for example openai:gpt-4.1 or local:smollm2.")
    label: str = Field("", description="What tables show for this provider.")
    config: dict[str, Any] = Field(
        default_factory=dict,
        repr=False,
        description="Settings of the model, sent as they are, and geval's own: base_url, api_key_env, timeout_s, ...",
    )

    @property
    def fingerprint(self) -> bytes:
        """The same for specs that say the same. It holds what they hold, keys too."""
        return encode_json([self.id, self.label, self.config])

    def __repr_args__(self) -> Iterable[tuple[str, str]]:
        return [("id", self.public_id), ("label", self.label)]

    @property
    def public_id(self) -> str:
        """The id without the keys that may stand in it (`http://...?api_key=***`), as everybody may see it."""
        return _masked(self.id)

    @property
    def title(self) -> str:
        """What tables, files and messages show for this provider."""
        return self.label or self.public_id


Scoring = Literal["auto", "logprobs", "samples", "single"]


class RubricPromptSpec(Spec):
    """Both judge prompts of the criteria form, each a template."""

    steps: str | None = Field(None, description="The prompt that asks for evaluation steps. Text or file://.")
    evaluate: str | None = Field(None, description="The prompt that asks for the rating. Text or file://.")
