"""The rules that a config follows: geval's own, or promptfoo's. A dialect is one record of declared flags.

The config's reader sets the record once (`Suite.rules`), and the templates, subjects and providers carry it from there.
Code checks the flag for the behaviour in question, never the name of the dialect.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal

from msgspec import Struct

from geval_cli.errors import Severity


class Dialect(StrEnum):
    """The names of the dialects, as written in configs and on the command line."""

    GEVAL = "geval"
    PROMPTFOO = "promptfoo"


class DialectRules(Struct, frozen=True, eq=False):
    """The rules of a dialect. The defaults are geval's; another dialect declares its differences.

    The docstring of a flag describes what is true if the flag is set.

    There is one record per dialect, so records are compared by identity.
    """

    name: Dialect

    # How a config is read.

    unknown_keys: Severity = Severity.ERROR
    """The severity of an unknown key."""
    skips_null: bool = False
    """A key without a value counts as missing, and is not a mistake."""
    suspects_bare_paths: bool = True
    """A text that is the path of an existing file is reported as a forgotten `file://`."""
    marks_images: bool = True
    """Templates and programs see an image in a test as a marker with its hash; otherwise as a data URL."""
    judges_by_kind: bool = False
    """A judge may be a mapping with one provider per kind of judgement."""
    compares_in_pairs: bool = True
    """`pairwise` is a type of assertion, which only geval has."""
    is_editable: bool = True
    """The editor on the web page supports the form of the config."""
    is_exportable: bool = True
    """A suite can be exported as a single self-contained file."""

    # Templates.

    template_language: Literal["strict", "nunjucks"] = "strict"
    """In strict templates, an undefined name is an error; in nunjucks it is empty, and values are JavaScript's."""
    nested_variables: bool = False
    """Variables may refer to other variables."""
    prompts_spell_chats: bool = False
    """A prompt's text may be a chat in JSON or YAML, and goes between a test's prefix and suffix."""
    renders_params: bool = False
    """The tools, functions and formats in a request are templates."""
    code_is_template: bool = False
    """Code in a config is rendered before it runs."""
    schema_is_template: bool = False
    """A JSON Schema written as text is rendered."""
    renders_mappings: bool = True
    """`equals` renders texts at any depth of the expected data; otherwise only the items of a list."""
    http_templates: bool = False
    """An HTTP provider's whole request is a template; otherwise it only has placeholders."""

    # Providers.

    odd_params: Severity = Severity.ERROR
    """The severity of a model parameter of the wrong type, or of a key that looks like a typo."""
    adds_params: bool = False
    """Requests have the parameters that promptfoo adds to those of the config, without those that it drops."""
    tells_programs: bool = False
    """Programs that answer receive their options, and the test and prompt that a request comes from."""
    echo_finish_reason: str | None = "stop"
    """The finish reason of an `echo` provider."""
    keeps_data: bool = False
    """Data returned by a program or an HTTP API is the output as such; otherwise its JSON text is."""
    parses_schema_answers: bool = False
    """An answer requested with a JSON Schema is parsed before any transform sees it."""

    # Judging.

    geval_threshold: float = 0.5
    """The default threshold of a g-eval."""
    geval_takes_text_prompt: bool = True
    """A `rubricPrompt` given as a single text applies to g-evals too."""
    names_geval_by_criteria: bool = True
    """A g-eval without `metric` is aggregated under the name of its criteria."""
    data_as_text: Literal["python", "javascript"] = "python"
    """How an output that is data becomes text to be judged: as by `json.dumps`, or as by `JSON.stringify`."""
    patterns: Literal["python", "javascript"] = "python"
    """The kind of regular expressions in `regex`."""
    folds_case: bool = True
    """Texts are found however their accents are encoded, and `icontains` treats `STRASSE` and `straße` as equal, as
    Unicode does; otherwise it compares in lower case.
    """
    lists_refusals: bool = False
    """`is-refusal` looks for promptfoo's phrases anywhere in the output; otherwise for patterns in its first lines."""
    finds_loose_json: bool = False
    """`contains-json` also finds objects that only YAML can read; otherwise only strict JSON values."""
    assumes_rubric_pass: bool = False
    """A judge's reply to a rubric passes if it has no `pass`; otherwise it is unreadable."""
    missing_class_is_zero: bool = False
    """A class that a classifier does not return scores 0; otherwise that is an error."""
    code_failures_fail: bool = False
    """Code that raises or returns no verdict fails the output, also under `not-`; otherwise it is not judged."""
    calls_given_functions: bool = True
    """If an assertion's JavaScript returns a function, it is called; otherwise that is not a verdict."""
    traces_from_answers: bool = True
    """The tools that an answer calls are the trace of a test without one."""
    negates_scores: bool = True
    """`not-` inverts the scores of code and of tool calls; otherwise only the verdict."""
    metadata_as_given: bool = False
    """`context.metadata` in code exists only if the provider returned some; otherwise it is always a mapping."""
    context_from_answer: bool = False
    """`contextTransform` receives the answer before the transforms of the test and of the assertion."""
    scoring_functions: bool = False
    """A test's own function may derive the verdict from the results of the assertions."""

    # Rows of results.

    judges_output_variable: bool = True
    """The variable `output` of a test is an output to be judged."""
    credits_given_outputs: bool = False
    """An output that comes with the test is attributed to the provider of its column."""
    labels_rows_by_column: bool = False
    """A row shows the provider of its column, whichever provider answered."""


DEFAULT_RULES = DialectRules(Dialect.GEVAL)
"""geval's own rules, which apply unless a config says otherwise."""

PROMPTFOO_RULES = DialectRules(
    Dialect.PROMPTFOO,
    unknown_keys=Severity.WARNING,
    skips_null=True,
    suspects_bare_paths=False,
    marks_images=False,
    judges_by_kind=True,
    compares_in_pairs=False,
    is_editable=False,
    is_exportable=False,
    template_language="nunjucks",
    nested_variables=True,
    prompts_spell_chats=True,
    renders_params=True,
    code_is_template=True,
    schema_is_template=True,
    renders_mappings=False,
    http_templates=True,
    odd_params=Severity.WARNING,
    adds_params=True,
    tells_programs=True,
    echo_finish_reason=None,
    keeps_data=True,
    parses_schema_answers=True,
    geval_threshold=0.7,
    geval_takes_text_prompt=False,
    names_geval_by_criteria=False,
    data_as_text="javascript",
    patterns="javascript",
    folds_case=False,
    lists_refusals=True,
    finds_loose_json=True,
    assumes_rubric_pass=True,
    missing_class_is_zero=True,
    code_failures_fail=True,
    calls_given_functions=False,
    traces_from_answers=False,
    negates_scores=False,
    metadata_as_given=True,
    context_from_answer=True,
    scoring_functions=True,
    judges_output_variable=False,
    credits_given_outputs=True,
    labels_rows_by_column=True,
)

RULES: Mapping[str, DialectRules] = {rules.name: rules for rules in (DEFAULT_RULES, PROMPTFOO_RULES)}
"""The rules of each dialect, by its name."""
