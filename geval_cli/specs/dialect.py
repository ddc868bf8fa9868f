"""Whose rules a config follows: geval's own, or promptfoo's. A dialect is one record of declared flags.

The reader of a config sets the record once (`Suite.rules`), and from there it travels with the templates, the subjects
and the providers. Code asks for a flag that says what is to be done, never for the name of the dialect.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal

from msgspec import Struct

from geval_cli.errors import Severity


class Dialect(StrEnum):
    """The names of the dialects, as configs and the command line write them."""

    GEVAL = "geval"
    PROMPTFOO = "promptfoo"


class DialectRules(Struct, frozen=True, eq=False):
    """Rules of a dialect. The defaults are geval's; another dialect declares where it differs.

    The docstring of a flag says what holds where it is true.

    There is one record for each dialect, so that records are compared by identity.
    """

    name: Dialect

    # How a config is read.

    unknown_keys: Severity = Severity.ERROR
    """How bad a key is that no one knows."""
    skips_null: bool = False
    """A key without a value is as if it were not there, and not a mistake."""
    suspects_bare_paths: bool = True
    """A text that is the path of an existing file is taken for a forgotten `file://`."""
    marks_images: bool = True
    """An image in a test is a marker with its hash to templates and programs; otherwise a data URL."""
    judges_by_kind: bool = False
    """A judge may be a mapping with a provider for each kind of judgement."""
    compares_in_pairs: bool = True
    """`pairwise` is a type of assertion, which only geval has."""
    is_editable: bool = True
    """The editor of the web page knows the form of the config."""
    is_exportable: bool = True
    """A suite can be written as one file that stands alone."""

    # Templates.

    template_language: Literal["strict", "nunjucks"] = "strict"
    """In strict templates an undefined name is an error; in nunjucks it is empty, and values are JavaScript's."""
    nested_variables: bool = False
    """Variables may name other variables."""
    prompts_spell_chats: bool = False
    """The text of a prompt may be a chat as JSON or YAML, and stands between a test's prefix and suffix."""
    renders_params: bool = False
    """Tools, functions and formats of a request are templates."""
    code_is_template: bool = False
    """Code in a config is rendered before it runs."""
    schema_is_template: bool = False
    """A JSON Schema that is written as text is rendered."""
    renders_mappings: bool = True
    """`equals` renders texts at any depth of the expected data; otherwise only the entries of a list."""
    http_templates: bool = False
    """All of an HTTP provider's request is a template; otherwise it has placeholders only."""

    # Providers.

    odd_params: Severity = Severity.ERROR
    """How bad a model parameter is that has the wrong type, or a key that is nearly a known one."""
    adds_params: bool = False
    """Models are sent the parameters that promptfoo adds to those of the config, and none that it leaves out."""
    tells_programs: bool = False
    """Programs that answer are told their options, and which test and prompt a request comes from."""
    echo_finish_reason: str | None = "stop"
    """The finish reason of an `echo` provider."""
    keeps_data: bool = False
    """Data that a program or an HTTP API answers with is the output; otherwise its JSON text is."""
    parses_schema_answers: bool = False
    """An answer that a JSON Schema was asked for is data before any transform sees it."""

    # Judging.

    geval_threshold: float = 0.5
    """The threshold of a g-eval that names none."""
    geval_takes_text_prompt: bool = True
    """A `rubricPrompt` that is one text is for g-evals, too."""
    names_geval_by_criteria: bool = True
    """A g-eval without `metric` is summed up under the name of its criteria."""
    data_as_text: Literal["python", "javascript"] = "python"
    """Whose JSON an output that is data becomes where its text is judged: `json.dumps`, or `JSON.stringify`."""
    patterns: Literal["python", "javascript"] = "python"
    """Whose regular expressions `regex` takes."""
    folds_case: bool = True
    """`icontains` takes `STRASSE` and `straße` for one text, as Unicode does; otherwise it compares small letters."""
    lists_refusals: bool = False
    """`is-refusal` looks for promptfoo's phrases anywhere in the output; otherwise for patterns in its first lines."""
    finds_loose_json: bool = False
    """`contains-json` finds objects as YAML reads them; otherwise every value that is strict JSON."""
    assumes_rubric_pass: bool = False
    """A judge's reply to a rubric that lacks `pass` passes; otherwise it is no verdict."""
    missing_class_is_zero: bool = False
    """A class that a classifier does not name scores 0; otherwise that is an error."""
    code_failures_fail: bool = False
    """Code that raises or gives no verdict fails the output, also under `not-`; otherwise it leaves it unjudged."""
    calls_given_functions: bool = True
    """An assertion whose JavaScript gives a function has it called; otherwise that is no verdict."""
    traces_from_answers: bool = True
    """The tools that an answer calls are the trace of a test that has none."""
    negates_scores: bool = True
    """`not-` inverts the scores of code and of tool calls; otherwise the verdict alone."""
    metadata_as_given: bool = False
    """Code finds `context.metadata` only where the provider gave some; otherwise it is always a mapping."""
    context_from_answer: bool = False
    """`contextTransform` sees the answer as it was before the transforms of the test and of the assertion."""
    scoring_functions: bool = False
    """A test's own function may make the verdict of what its assertions said."""

    # Rows of results.

    judges_output_variable: bool = True
    """The variable `output` of a test is an output to be judged."""
    credits_given_outputs: bool = False
    """The provider of a column stands for an output that the test brings."""
    labels_rows_by_column: bool = False
    """A row names the provider of its column, whoever answered."""


DEFAULT_RULES = DialectRules(Dialect.GEVAL)
"""geval's own rules, which hold where no config says otherwise."""

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
