"""Define the parts that only promptfoo configs have: options of a test, filters of a provider, judges by kind."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from pydantic import AliasChoices, Field

from geval_cli.errors import Location
from geval_cli.json_codec import encode_json
from geval_cli.specs.base import PromptSpec, ProviderSpec, RunOptionsSpec, Spec
from geval_cli.specs.dialect import PROMPTFOO_RULES, DialectRules


class PromptfooTestOptions(Spec):
    """How a test is run, besides its inputs and its assertions.

    `params` go to the model with each request; `file_params` names those whose value is in a file. With
    `output_replaces_answer` no model is asked: the test's own output is judged. `made_vars` are the variables that a
    program makes, with the program. These four are found out, the others are written as keys.
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
        """Return these options, and those of `below` where these are unset; parameters are merged.

        An empty prefix or suffix says nothing, as in rows of a table that has a column for them.
        """
        others = {"place", "params", "file_params"}
        others |= {name for name in ("prefix", "suffix") if not getattr(self, name)}
        given = {name: getattr(self, name) for name in self.model_fields_set - others}
        files = (below.file_params - self.params.keys()) | self.file_params
        params = {**below.params, **self.params}
        return below.model_copy(update={**given, "params": params, "file_params": files, "place": self.place})


EXEC_PREFIX = "exec:"
"""Begins a prompt that a command makes."""


class NamedPromptSpec(PromptSpec):
    """A prompt with all the names by which tests and providers may choose it.

    With `made_by` a program makes its text for each case: `file://` with a path and perhaps a function, or `exec:` with
    a command that runs in `folder`; `sees_conversation` says that it asks for former turns. `params` go to the model
    with each request, and to the program as `config`; `file_params` names those whose value is in a file.
    """

    names: tuple[str, ...] = ()
    made_by: str = ""
    folder: str = ""
    sees_conversation: bool = False
    params: dict[str, Any] = Field(default_factory=dict)
    file_params: frozenset[str] = frozenset()


class EnvProviderSpec(ProviderSpec):
    """A provider with environment values of its own, which win over those of the config."""

    rules: ClassVar[DialectRules] = PROMPTFOO_RULES

    env: dict[str, str] = Field(default_factory=dict, repr=False)

    @property
    def fingerprint(self) -> bytes:
        """As of any provider; with other environment values it is another one."""
        return super().fingerprint + (encode_json(self.env) if self.env else b"")


def own_env_of(spec: ProviderSpec) -> dict[str, str]:
    """Return the environment values that only this provider sees."""
    return spec.env if isinstance(spec, EnvProviderSpec) else {}


class FilteredProviderSpec(EnvProviderSpec):
    """A provider that answers only some of the prompts, or whose answers are transformed.

    `prompts` are labels or ids of prompts; None means all of them. `file_params` names the keys of `config` whose value
    is in a file.
    """

    prompts: tuple[str, ...] | None = None
    file_params: frozenset[str] = frozenset()
    transform: str | None = None


class JudgesSpec(EnvProviderSpec):
    """A judge for texts, with providers for other kinds of judgement beside it: `embedding`, `classification`, ..."""

    by_kind: Mapping[str, ProviderSpec] = Field(default_factory=dict)


class PromptfooOptions(RunOptionsSpec):
    """Options of the run that promptfoo configs may hold. Paths of `outputs` are relative to the current folder."""

    repeats: Annotated[int, Field(ge=1, le=10_000)] | None = None
    uses_cache: bool | None = None
    delay_ms: Annotated[float, Field(ge=0)] = 0
    grader: str | None = None
    outputs: tuple[str, ...] = ()


JUDGE_KINDS = ("text", "embedding", "classification", "moderation")
"""The kinds of judgement that a provider map names."""


@dataclass(frozen=True, slots=True)
class TemplateFilter:
    """A filter of templates: its name, and `file://` with the whole path of its JavaScript."""

    name: str
    written: str
    location: Location | None = field(default=None, compare=False)
