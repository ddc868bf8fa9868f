"""The parts that only promptfoo configs have: options of a test, filters of a provider, judges by kind."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from pydantic import AliasChoices, Field

from geval_cli.errors import Location
from geval_cli.json_codec import encode_json
from geval_cli.specs.base import PromptSpec, ProviderSpec, RunOptionsSpec, Spec
from geval_cli.specs.dialect import PROMPTFOO_RULES, DialectRules


class PromptfooTestOptions(Spec):
    """The options of how a test is run, apart from its inputs and assertions.

    These four attributes are derived; the others are keys of the config.

    Attributes:
        params: sent to the model with each request.
        file_params: the names of the parameters whose value is in a file.
        output_replaces_answer: no model is called, and the test's own output is judged.
        made_vars: the variables that programs produce, each with its program.
    """

    __test__ = False  # not a pytest class

    prompts: tuple[str, ...] | None = None
    providers: tuple[str, ...] | None = None
    prefix: str | None = None
    suffix: str | None = None
    store_output_as: str | None = Field(None, validation_alias=AliasChoices("storeOutputAs"))
    disable_var_expansion: bool | None = Field(None, validation_alias=AliasChoices("disableVarExpansion"))
    disable_default_asserts: bool | None = Field(None, validation_alias=AliasChoices("disableDefaultAsserts"))
    disable_conversation_var: bool | None = Field(
        None, validation_alias=AliasChoices("disableConversationVar")
    )
    assert_scoring_function: str | None = Field(None, validation_alias=AliasChoices("assertScoringFunction"))
    params: dict[str, Any] = Field(default_factory=dict)
    file_params: frozenset[str] = frozenset()
    output_replaces_answer: bool = False
    made_vars: dict[str, str] = Field(default_factory=dict)

    def over(self, below: "PromptfooTestOptions") -> "PromptfooTestOptions":
        """Return these options, completed by those of `below` where unset; parameters are merged.

        An empty prefix or suffix counts as unset, as in rows of a table with a column for them.
        """
        others = {"place", "params", "file_params"}
        others |= {name for name in ("prefix", "suffix") if not getattr(self, name)}
        given = {name: getattr(self, name) for name in self.model_fields_set - others}
        files = (below.file_params - self.params.keys()) | self.file_params
        params = {**below.params, **self.params}
        return below.model_copy(update={**given, "params": params, "file_params": files, "place": self.place})


EXEC_PREFIX = "exec:"
"""The prefix of a prompt that a command produces."""


class NamedPromptSpec(PromptSpec):
    """A prompt with all names by which tests and providers can select it.

    Attributes:
        made_by: the program that produces the text for each case: `file://` with a path and optionally a function, or
            `exec:` with a command that runs in `folder`.
        sees_conversation: whether the prompt uses earlier turns.
        params: sent to the model with each request, and to the program as `config`.
        file_params: the names of the parameters whose value is in a file.
    """

    names: tuple[str, ...] = ()
    made_by: str = ""
    folder: str = ""
    sees_conversation: bool = False
    params: dict[str, Any] = Field(default_factory=dict)
    file_params: frozenset[str] = frozenset()


class EnvProviderSpec(ProviderSpec):
    """A provider with its own environment values, which take precedence over those of the config."""

    rules: ClassVar[DialectRules] = PROMPTFOO_RULES

    env: dict[str, str] = Field(default_factory=dict, repr=False)

    @property
    def fingerprint(self) -> bytes:
        """Return the fingerprint as for any provider; different environment values make it different."""
        return super().fingerprint + (encode_json(self.env) if self.env else b"")


def own_env_of(spec: ProviderSpec) -> dict[str, str]:
    """Return the environment values that only this provider sees."""
    return spec.env if isinstance(spec, EnvProviderSpec) else {}


class FilteredProviderSpec(EnvProviderSpec):
    """A provider that answers only some of the prompts, or whose answers are transformed.

    `prompts` are labels or ids of prompts; None means all of them. `file_params` are the keys of `config` whose value
    is in a file.
    """

    prompts: tuple[str, ...] | None = None
    file_params: frozenset[str] = frozenset()
    transform: str | None = None


class JudgesSpec(EnvProviderSpec):
    """A judge of texts, and providers for other kinds of judgement: `embedding`, `classification`, ..."""

    by_kind: Mapping[str, ProviderSpec] = Field(default_factory=dict)


class PromptfooOptions(RunOptionsSpec):
    """Options of the run that promptfoo configs may have. Paths in `outputs` are relative to the current folder."""

    repeats: Annotated[int, Field(ge=1, le=10_000)] | None = None
    uses_cache: bool | None = None
    delay_ms: Annotated[float, Field(ge=0)] = 0
    grader: str | None = None
    outputs: tuple[str, ...] = ()


JUDGE_KINDS = ("text", "embedding", "classification", "moderation")
"""The kinds of judgement that a map of providers may have."""


@dataclass(frozen=True, slots=True)
class TemplateFilter:
    """A template filter: its name, and `file://` with the absolute path of its JavaScript."""

    name: str
    written: str
    location: Location | None = field(default=None, compare=False)
