"""The base class of all models for parts of a config, value bounds, and models of providers, turns, traces and tools.

Types and values are described in plain words: what a key takes, what was found instead, what the user probably meant.

The model parameters that vendors agree on have their names and types here. Anything else in a provider's `config` is
sent as well, because vendors add parameters every month.
"""

import json
import re
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from msgspec import Struct
from pydantic import AliasChoices, BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

from geval_cli.json_codec import encode_json
from geval_cli.numbers import percent_hint, plural, share_of_percentage
from geval_cli.records import JsonValue, ToolDefinition
from geval_cli.source.problems import did_you_mean
from geval_cli.source.secrets import mask_text
from geval_cli.source.source_map import SourcePath
from geval_cli.specs.dialect import DEFAULT_RULES, DialectRules


class ValueKind(Struct, frozen=True):
    """The kind of a parameter's value: described in words, as a check, and as a JSON Schema."""

    expected: str
    is_valid: Callable[[Any], bool]
    schema: Mapping[str, JsonValue]


def _is_numeric(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_ANY = ValueKind("a value", lambda _: True, {})
_AMOUNT = ValueKind(
    "a number of at least 0",
    lambda value: _is_numeric(value) and value >= 0,
    {"type": "number", "minimum": 0},
)
_SHARE = ValueKind(
    "a number from 0 to 1",
    lambda value: _is_numeric(value) and 0 <= value <= 1,
    {"type": "number", "minimum": 0, "maximum": 1},
)
_NUMBER = ValueKind("a number", _is_numeric, {"type": "number"})
_WHOLE = ValueKind("a whole number", _is_whole, {"type": "integer"})
_COUNT = ValueKind(
    "a whole number of at least 1",
    lambda value: _is_whole(value) and value >= 1,
    {"type": "integer", "minimum": 1},
)
_FLAG = ValueKind("true or false", lambda value: isinstance(value, bool), {"type": "boolean"})
_FLAG_OR_WHOLE = ValueKind(
    "true or false, or a whole number",
    lambda value: isinstance(value, int),
    {"type": ["boolean", "integer"]},
)
_TEXT = ValueKind("a text", lambda value: isinstance(value, str), {"type": "string"})
_TEXTS = ValueKind(
    "a string or a list of strings",
    lambda value: (
        isinstance(value, str) or (isinstance(value, list) and all(isinstance(item, str) for item in value))
    ),
    {"type": ["string", "array"], "items": {"type": "string"}},
)
_MAPPING = ValueKind("a mapping", lambda value: isinstance(value, dict), {"type": "object"})

_NAMES: tuple[tuple[ValueKind, str], ...] = (
    (_AMOUNT, "temperature"),
    (_SHARE, "top_p topP min_p typical_p"),
    (
        _NUMBER,
        "frequency_penalty presence_penalty frequencyPenalty presencePenalty repetition_penalty repeat_penalty "
        "length_penalty top_a",
    ),
    (_WHOLE, "seed random_seed top_k topK min_tokens top_logprobs"),
    (
        _COUNT,
        "max_tokens max_completion_tokens max_output_tokens maxOutputTokens max_new_tokens best_of candidateCount "
        "dimensions",
    ),
    (_FLAG, "parallel_tool_calls ignore_eos skip_special_tokens responseLogprobs"),
    (_FLAG_OR_WHOLE, "logprobs"),
    (_TEXT, "reasoning_effort service_tier verbosity encoding_format"),
    (_TEXTS, "stop stop_sequences stopSequences"),
    (_MAPPING, "generationConfig logit_bias"),
    (
        _ANY,
        "response_format tools tool_choice functions function_call metadata store safetySettings toolConfig "
        "tool_config systemInstruction system_instruction system labels guided_json guided_regex guided_choice "
        "guided_grammar grammar transforms models route provider prompt previous_response_id conversation beta "
        "thinkingConfig safe_prompt prompt_mode input_type format options keep_alive moderation plugins effort "
        "user instructions suffix safety_identifier prompt_cache_key cachedContent task_type truncation modalities "
        "include audio prediction text reasoning thinking extra_body output_config web_search_options "
        "chat_template_kwargs stream_options background responseMimeType responseSchema responseJsonSchema",
    ),
)

WIRE_SETTINGS: Mapping[str, ValueKind] = {name: kind for kind, names in _NAMES for name in names.split()}
"""The known model parameters, and the kind of value that each takes."""


_IDS_KEPT = 64

Score = Annotated[float, Field(ge=0, le=1)]
SampleCount = Annotated[int, Field(ge=1, le=1000)]
EvaluationParsing = Literal["strict", "tolerant"]
WrittenSchema = dict[str, Any] | bool | str
"""A JSON Schema as a config may have it: as a mapping or boolean, or as JSON text."""


_masked = lru_cache(maxsize=_IDS_KEPT)(mask_text)  # every result shows the id of its provider


class Spec(BaseModel):
    """A part of a config; `place` knows the file, line and column of the part and of each of its keys."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        arbitrary_types_allowed=True,
        populate_by_name=True,
        allow_inf_nan=False,
        defer_build=True,  # a config uses a few of the sixty models, and building them all took a fifth of the start
    )

    place: SourcePath = Field(default_factory=SourcePath.nowhere, exclude=True, repr=False)


class ProviderSpec(Spec):
    """A model. `config` is sent with each request, except for geval's own keys (base_url, api_key_env, ...)."""

    rules: ClassVar[DialectRules] = DEFAULT_RULES

    id: str = Field(description="The model, for example openai:gpt-4.1 or local:smollm2.")
    label: str = Field("", description="The name of this provider in results and tables.")
    config: dict[str, Any] = Field(
        default_factory=dict,
        repr=False,
        description=(
            "Model parameters, sent as is, and geval's own settings: base_url, api_key_env, timeout_s, ..."
        ),
    )

    @property
    def fingerprint(self) -> bytes:
        """Return bytes that are equal for equal specs. They contain the spec's values, including API keys."""
        return encode_json([self.id, self.label, self.config])

    def __repr_args__(self) -> Iterable[tuple[str, str]]:
        return [("id", self.public_id), ("label", self.label)]

    @property
    def public_id(self) -> str:
        """Return the id with any keys in it masked (`http://...?api_key=***`), safe to show to anyone."""
        return _masked(self.id)

    @property
    def title(self) -> str:
        """Return the name of this provider in tables, files and messages."""
        return self.label or self.public_id


class FunctionSpec(ProviderSpec):
    """A model that is a function or client of the program that built the suite; configs cannot name one."""

    function: Any = Field(exclude=True, repr=False)

    @property
    def fingerprint(self) -> bytes:
        """Return the fingerprint as for any provider, but different for every function."""
        return encode_json([self.id, self.label, self.config, id(self.function)])


class JurySpec(ProviderSpec):
    """Several judges instead of one. The jury itself is never called; its `members` are."""

    members: tuple[ProviderSpec, ...] = ()


CALIBRATED = "calibrated"
"""The value of `threshold` or `combine` that takes the threshold or the weights from the calibration file."""


class JuryRulesSpec(Spec):
    """How to combine the verdicts of several judges."""

    combine: Literal["mean", "median", "majority", "calibrated"] = Field(
        "mean",
        description=(
            "How to combine the judges: the mean or median score, the majority verdict, or the mean"
            " with the calibration file's weights."
        ),
    )
    min_judges: Annotated[int, Field(ge=1)] | None = Field(
        None, description="How many judges must give a verdict; by default more than half."
    )


Scoring = Literal["auto", "logprobs", "samples", "single"]


class EarlyStopSpec(Spec):
    """Sampling that stops early, once the verdict is settled."""

    upto: Annotated[int, Field(ge=2, le=1000)] = Field(description="Maximum number of ratings.")
    stop_error: Annotated[float, Field(ge=0, le=0.5)] = Field(
        0.02,
        description=(
            "Stop when the probability of a different verdict is at most this; 0 stops only when it is"
            " impossible."
        ),
    )


Samples = int | EarlyStopSpec
"""How many ratings to request: a number, or a maximum."""

UPTO = "upto:"
"""The prefix of the number in `--samples upto:20`."""


def samples_of(written: int | str | None) -> Samples | None:
    """Return the value of `--samples`: a number, or `upto:` and a number; it must have been validated."""
    return EarlyStopSpec(upto=int(written.removeprefix(UPTO))) if isinstance(written, str) else written


class RubricPromptSpec(Spec):
    """The two prompts of a judge with criteria, each a template."""

    steps: str | None = Field(
        None, description="The prompt that generates evaluation steps; text or file://."
    )
    evaluate: str | None = Field(None, description="The prompt that requests the rating; text or file://.")


@cache
def spellings(model: type[Spec]) -> Mapping[str, str]:
    """Return every key that a mapping for this model may have, with its field; the preferred spelling comes first."""
    found: dict[str, str] = {}
    for name, info in model.model_fields.items():
        if name == "place":
            continue
        alias = info.validation_alias
        choices = alias.choices if isinstance(alias, AliasChoices) else [alias or name]
        found.update((str(choice), name) for choice in choices)
    return found


class ChatMessageSpec(Spec):
    """One message of a chat prompt. String content is a template."""

    role: Literal["system", "developer", "user", "assistant", "tool"] = Field(
        description="The author of the message."
    )
    content: str | list[dict[str, Any]] = Field(
        description="The text: a template, file://, or a list of parts as in chat APIs."
    )


EvaluationMode = Literal["llm", "schema"]


class PromptSpec(Spec):
    """One prompt: exactly one of `raw` (text), `messages` (chat), `system` (the test's input is the user message)."""

    id: str = Field("", description="A unique id of this prompt.")
    label: str = Field("", description="The name of this prompt in results and tables.")
    raw: str | None = Field(None, description="The prompt: a template or file://.")
    messages: tuple[ChatMessageSpec, ...] | None = Field(
        None, description="The prompt as a list of chat messages."
    )
    system: str | None = Field(
        None, description="A system message; the test's `input` becomes the user message. Text or file://."
    )
    evaluation_mode: EvaluationMode | None = Field(
        None,
        validation_alias=AliasChoices("evaluation_mode", "evaluationMode"),
        description=(
            "How to evaluate answers: with a judge (llm), or with each test's evaluation_schema (schema)."
        ),
    )
    evaluation_criteria: str | None = Field(
        None,
        validation_alias=AliasChoices("evaluation_criteria", "evaluationCriteria"),
        description=(
            "The judge's criteria in llm mode; if empty, answers aren't evaluated. Template or file://."
        ),
    )
    evaluation_parsing: EvaluationParsing | None = Field(
        None,
        validation_alias=AliasChoices("evaluation_parsing", "evaluationParsing"),
        description="How to parse answers in schema mode, unless the test sets it: strict or tolerant.",
    )
    expected_schema: dict[str, Any] | str | None = Field(
        None,
        validation_alias=AliasChoices("expected_schema", "expectedSchema"),
        description=(
            "A JSON Schema for the provider's structured output, if it supports that; not used for"
            " evaluation."
        ),
    )

    @property
    def effective_mode(self) -> EvaluationMode | None:
        """Return how answers are evaluated; criteria without a mode imply `llm`."""
        if self.evaluation_mode is None and self.evaluation_criteria is not None:
            return "llm"
        return self.evaluation_mode


class FactualityWeightsSpec(Spec):
    """The score of each factuality category, from 0 to 1."""

    subset: Score = Field(1.0, description="Score if the output says less than the reference.")
    superset: Score = Field(1.0, description="Score if the output says more than the reference.")
    agree: Score = Field(1.0, description="Score if both say the same.")
    disagree: Score = Field(0.0, description="Score if they contradict each other.")
    differ_but_factual: Score = Field(
        1.0,
        validation_alias=AliasChoices("differButFactual", "differ_but_factual"),
        description="Score if they differ, but not in the facts.",
    )


class TestOptionsSpec(Spec):
    """Defaults for the judge of a test's assertions, and transforms."""

    __test__ = False  # not a pytest class

    provider: ProviderSpec | None = Field(None, description="The judge.")
    rubric_prompt: str | RubricPromptSpec | None = Field(
        None,
        validation_alias=AliasChoices("rubricPrompt", "rubric_prompt"),
        description="Your own judge prompt: a template, file://, chat messages, or {steps, evaluate}.",
    )
    scoring: Scoring | None = Field(None, description="How to compute the score from the judge's ratings.")
    samples: SampleCount | EarlyStopSpec | None = Field(
        None, description="The number of ratings, or {upto: 20} to stop early; implies `scoring: samples`."
    )
    factuality: FactualityWeightsSpec | None = Field(
        None, description="The score of each category of a factuality assertion."
    )
    transform: str | None = Field(
        None,
        description="Code that turns the answer into the output to check; inline or file://.",
    )
    transform_vars: str | None = Field(
        None,
        validation_alias=AliasChoices("transformVars", "transform_vars"),
        description="Code that changes the variables before the prompt is rendered; inline or file://.",
    )


DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)([smhd])")

Duration = Annotated[str, Field(pattern=rf"^(?:{DURATION.pattern})$")]
"""A duration as written in configs: 90s, 45m, 26h, 2d."""


class BatchSpec(Spec):
    """Settings of batches, for runs with --batch."""

    size: Annotated[int, Field(ge=1)] | None = Field(
        None,
        description="Maximum requests per batch; by default the provider's limit.",
    )
    poll_s: Annotated[float, Field(gt=0, le=3600)] = Field(
        15.0, description="Initial interval between two polls of a batch, in seconds."
    )
    max_wait: Duration = Field("26h", description="How long to wait for a batch: 90s, 45m, 26h, 2d.")
    fallback: Literal["direct", "error"] = Field(
        "direct",
        description=(
            "What to do with requests whose batch failed or timed out: send them directly, or report"
            " an error."
        ),
    )


class RunOptionsSpec(Spec):
    """Options of the run; the command line overrides them."""

    max_concurrency: Annotated[int, Field(ge=1, le=10_000)] | None = Field(
        None,
        validation_alias=AliasChoices("max_concurrency", "maxConcurrency"),
        description="Maximum number of concurrent model calls.",
    )
    batch: BatchSpec | None = Field(None, description="Batch settings, for --batch.")
    stop_when: Literal["decided"] | None = Field(
        None, description="Stop when the gates, or without gates the comparison of columns, are decided."
    )


_MAX_SHOWN = 40
_SIMPLE = {str: "text", bool: "true or false", int: "a whole number", float: "a number", dict: "a mapping"}
_YES = frozenset({"yes", "on", "y", "true"})
_NO = frozenset({"no", "off", "n", "false"})
_COUNTS = {2: "two", 3: "three", 4: "four"}


def expected_text(annotation: Any) -> str:
    """Return a field's type in words, for use after "must be": `a number from 0 to 1`, `text or a list of texts`."""
    options = [_option_text(option) for option in _options(annotation)]
    texts = list(dict.fromkeys(options))
    if "a number" in texts and "a whole number" in texts:
        texts.remove("a whole number")
    comma = "," if any(" or " in text for text in texts) and len(texts) > 1 else ""
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])}{comma} or {texts[-1]}"


def describe_value(value: JsonValue) -> str:
    """Return a value in words, for use after "found": `the text "high"`, `the number 7`, `an empty list`."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return f"the number {_shorten(str(value))}"
    if isinstance(value, str):
        text = json.dumps(_shorten(mask_text(value)), ensure_ascii=False)
        return f"the text {text}" if value else "an empty text"
    if isinstance(value, dict):
        return "a mapping"
    if not isinstance(value, Collection):  # of a program's
        return f"an object of the class {type(value).__name__}"
    return f"a list with {plural(len(value), 'entry', 'entries')}" if value else "an empty list"


def mismatch_hint(annotation: Any, value: JsonValue) -> str:
    """Return a hint on how to correct `value`, or ""."""
    bases = [_unwrap(option) for option in _options(annotation)]
    choices = [choice for base, _ in bases if get_origin(base) is Literal for choice in get_args(base)]
    kinds = {base for base, _ in bases}
    if isinstance(value, str):
        if choices:
            near = did_you_mean(value, [str(choice) for choice in choices])
            return f"did you mean `{near}`?" if near else ""
        if bool in kinds and value.lower() in _YES | _NO:
            return f"write `{'true' if value.lower() in _YES else 'false'}`"
        if kinds & {int, float} and _is_number(value):
            return "remove the quotes"
        share = share_of_percentage(value) if float in kinds else None
        return "" if share is None else f"write {share:g}"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if str in kinds:
            return "put quotes around it"
        ends = [(limits.get("minimum"), limits.get("maximum")) for base, limits in bases if base is float]
        if value > 1 and (0, 1) in ends:
            if percent_hint(value):
                return f"scores run from 0 to 1: {percent_hint(value)} for {value:g} %"
            return "scores run from 0 to 1; if you meant the rating scale: 7 of 10 is 0.7"
    if isinstance(value, bool) and str in kinds:
        return "put quotes around it"
    return ""


def annotation_at(info: FieldInfo, path: tuple[str | int, ...]) -> Any:
    """Return the annotation at `path` inside a field; for an index, the type of the list's items."""
    annotation: Any = info
    for part in path:
        for option in _options(annotation):
            base, _ = _unwrap(option)
            if isinstance(part, str) and get_origin(base) is dict:
                annotation = get_args(base)[1]
                break
            if isinstance(part, int) and get_origin(base) in (tuple, list):
                arguments = get_args(base)
                annotation = arguments[min(part, len(arguments) - 1)]
                annotation = arguments[0] if annotation is Ellipsis else annotation
                break
        else:
            return annotation
    return annotation


def spec_in(info: FieldInfo) -> "type[Spec] | None":
    """Return the spec class that a mapping in this field is read as; None if there is not exactly one."""
    bases = [_unwrap(option)[0] for option in _options(info)]
    specs = [base for base in bases if isinstance(base, type) and issubclass(base, Spec)]
    return specs[0] if len(specs) == 1 else None


@cache
def tuple_fields(model: type[Spec]) -> frozenset[str]:
    """Return the fields that take a tuple, which YAML can only write as a list."""
    return frozenset(
        name
        for name, info in model.model_fields.items()
        if any(get_origin(_unwrap(option)[0]) is tuple for option in _options(info))
    )


def limits_of(metadata: list[Any]) -> dict[str, float]:
    """Return the bounds in a field's metadata, by their JSON Schema names."""
    limits: dict[str, float] = {}
    for part in metadata:
        # A pydantic Field inside Annotated keeps its bounds in a list of its own.
        for bound in part.metadata if isinstance(part, FieldInfo) else [part]:
            match bound:
                case Ge(ge=value):
                    limits["minimum"] = value  # type: ignore[assignment]
                case Gt(gt=value):
                    limits["exclusiveMinimum"] = value  # type: ignore[assignment]
                case Le(le=value):
                    limits["maximum"] = value  # type: ignore[assignment]
                case Lt(lt=value):
                    limits["exclusiveMaximum"] = value  # type: ignore[assignment]
    return limits


def field_options(annotation: Any) -> list[tuple[Any, dict[str, float]]]:
    """Return the alternative types of a field or annotation, each with its bounds; None is left out."""
    return [_unwrap(option) for option in _options(annotation)]


def _options(annotation: Any) -> list[Any]:
    if isinstance(annotation, FieldInfo):
        inner = annotation.annotation
        if annotation.metadata and get_origin(inner) not in (Union, types.UnionType):
            return [Annotated[inner, *annotation.metadata]]
        return _options(inner)
    if get_origin(annotation) in (Union, types.UnionType):
        return [option for part in get_args(annotation) for option in _options(part)]
    return [] if annotation is type(None) else [annotation]


def _unwrap(annotation: Any) -> tuple[Any, dict[str, float]]:
    if get_origin(annotation) is Annotated:
        base, *metadata = get_args(annotation)
        return base, limits_of(metadata)
    return annotation, {}


def _option_text(option: Any) -> str:
    base, limits = _unwrap(option)
    origin = get_origin(base)
    arguments = get_args(base)
    if origin is Literal:
        named = [f"`{choice}`" for choice in arguments]
        return named[0] if len(named) == 1 else f"one of {', '.join(named)}"
    if origin is dict or (isinstance(base, type) and issubclass(base, BaseModel)):
        return "a mapping"
    if origin in (tuple, list):
        if origin is tuple and Ellipsis not in arguments:
            return (
                f"a list of {_COUNTS.get(len(arguments), len(arguments))} {expected_text(arguments[0])[2:]}s"
            )
        item = expected_text(arguments[0])
        if item.startswith("one of "):
            return f"a list with any of {item.removeprefix('one of ')}"
        plurals = {
            "text": "texts",
            "a mapping": "mappings",
            "a number": "numbers",
            "a whole number": "whole numbers",
            "a value": "values",
            "true or false": "booleans",
        }
        return "a list of " + re.sub("|".join(plurals), lambda found: plurals[found[0]], item)
    simple = _SIMPLE.get(base, "a value")
    low, above, high = limits.get("minimum"), limits.get("exclusiveMinimum"), limits.get("maximum")
    if low is not None:
        bounds_text = f" from {low} to {high}" if high is not None else f" of at least {low}"
    elif above is not None:
        bounds_text = f" above {above}" + (f" and at most {high}" if high is not None else "")
    else:
        bounds_text = f" of at most {high}" if high is not None else ""
    return simple + bounds_text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 1] + "…"


MAX_CALLS = 20
TurnRole = Literal["system", "developer", "user", "assistant", "tool"]


class TurnSpec(Spec):
    """One turn: `role` and `content` of a recorded message, or just `user` for a message to play."""

    role: TurnRole | None = Field(None, description="The author: system, developer, user, assistant or tool.")
    content: str | None = Field(None, description="The text, taken literally: no template, no file.")
    tool_calls: tuple[dict[str, Any], ...] = Field(
        (), description="The assistant's tool calls, as in chat APIs or as {name, args}."
    )
    tool_call_id: str | None = Field(None, description="The id of the call that this tool message answers.")
    user: str | None = Field(
        None, description="A user message in a played conversation; the model answers each one."
    )


StepType = Literal["tool", "llm", "step"]


class TraceStepSpec(Spec):
    """One step of an agent: a tool call, a model call or anything else."""

    type: StepType = Field(
        "tool", description="The kind of step: a tool call, a model call (llm) or another step."
    )
    name: Annotated[str, Field(min_length=1)] = Field(description="The name of the tool, model or step.")
    args: Any = Field(None, description="The arguments of the call.")
    output: Any = Field(None, description="The result.")
    error: str | None = Field(None, description="The error message, if it failed.")
    ms: Annotated[float, Field(ge=0)] | None = Field(None, description="The duration in milliseconds.")


class RecordedAnswerSpec(Spec):
    """One recorded answer of a tool: what it returned, or the error it gave."""

    name: Annotated[str, Field(min_length=1)] = Field(description="The name of the tool.")
    args: dict[str, Any] | None = Field(
        None, description="The arguments it answers, possibly among others; by default any."
    )
    result: Any = Field(None, description="What the tool returns.")
    error: str | None = Field(None, description="The error that the tool gives instead of a result.")


class ToolSet(Struct, frozen=True):
    """The tools of a test.

    Attributes:
        definitions: the definitions sent to the model.
        functions: the Python file of each tool that is a function.
        simulator: the model that answers in place of the other tools.
        world: the description of the world that the simulator gets; a template.
        named_functions: whether the config names functions, even if they may not be read.
    """

    place: SourcePath
    definitions: tuple[ToolDefinition, ...] = ()
    functions: Mapping[str, Path] = {}
    simulator: ProviderSpec | None = None
    world: str = ""
    recorded: tuple[RecordedAnswerSpec, ...] = ()
    max_calls: int = MAX_CALLS
    named_functions: bool = False
