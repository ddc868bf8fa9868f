"""The options of `geval generate` and `geval review`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from geval_cli.runs.options import (
    ConcurrencyOption,
    EnvFileOption,
    ForceOption,
    HomeOption,
    JsonOption,
    MaxCostOption,
    MaxRequestsOption,
    OfflineOption,
    Option,
    OptionGroup,
)

ModelOption = Annotated[
    str | None,
    Option(
        "--model",
        "The model that writes, for example openai:gpt-4.1.",
        OptionGroup.RUNNING,
        syntax="PROVIDER",
    ),
]
PlanOption = Annotated[
    bool, Option("--plan", "Show what would be sent and what it costs; send nothing.", OptionGroup.RUNNING)
]


@dataclass(frozen=True, kw_only=True)
class WritingOptions:
    """The options shared by the two commands that write with a model."""

    output: Annotated[
        Path | None, Option("-o --output", "Output file, .jsonl.", OptionGroup.RESULTS, syntax="FILE")
    ] = None
    may_replace: ForceOption = False
    as_json: JsonOption = False
    model: ModelOption = None
    max_concurrency: ConcurrencyOption = None
    plan: PlanOption = False
    env_file: EnvFileOption = None
    max_cost: MaxCostOption = None
    max_requests: MaxRequestsOption = None
    is_offline: OfflineOption = False
    home: HomeOption = None


@dataclass(frozen=True, kw_only=True)
class GenerateTestsOptions(WritingOptions):
    """Options of `geval generate tests`."""

    documents: Annotated[
        tuple[Path, ...],
        Option(
            "--from",
            "A document, or a folder of them: .txt, .md, .rst, .pdf, .jsonl; repeatable.",
            OptionGroup.SELECTION,
            syntax="PATH",
        ),
    ] = ()
    run: Annotated[
        str | None,
        Option("--from-run", "Freeze the cases of this run.", OptionGroup.SELECTION, syntax="RUN"),
    ] = None
    failed: Annotated[
        bool, Option("--failed", "With --from-run: only cases that failed.", OptionGroup.SELECTION)
    ] = False
    traces: Annotated[
        Path | None,
        Option(
            "--from-traces", "Freeze typical questions of these traces.", OptionGroup.SELECTION, syntax="FILE"
        ),
    ] = None
    count: Annotated[
        int | None,
        Option("--n", "Number of tests. [50, of a run or traces all]", OptionGroup.SELECTION, minimum=1),
    ] = None
    kinds: Annotated[
        str | None,
        Option(
            "--kinds",
            "Kinds and their shares. [plain=60,two-places=15,unanswerable=15,misleading=10]",
            OptionGroup.SELECTION,
            syntax="KIND[=SHARE],...",
        ),
    ] = None
    seed: Annotated[
        int, Option("--seed", "Random seed: which passages, which traces.", OptionGroup.SELECTION)
    ] = 0
    suite: Annotated[
        Path | None,
        Option(
            "--suite", "Leave out tests that this config already has.", OptionGroup.SELECTION, syntax="CONFIG"
        ),
    ] = None
    text_column: Annotated[
        str | None,
        Option(
            "--text-column",
            "The column of a .jsonl file with the text.",
            OptionGroup.SELECTION,
            syntax="NAME",
        ),
    ] = None
    passage: Annotated[
        int,
        Option(
            "--passage",
            "Characters of a document shown at a time.",
            OptionGroup.SELECTION,
            minimum=500,
            maximum=100_000,
        ),
    ] = 4_000
    least_words: Annotated[
        int,
        Option(
            "--min-quote-words",
            "Words that a quotation has at least.",
            OptionGroup.SELECTION,
            minimum=1,
            maximum=50,
        ),
    ] = 5
    per_group: Annotated[
        int,
        Option("--per-group", "With --from-traces: tests of each group.", OptionGroup.SELECTION, minimum=1),
    ] = 1
    embeddings: Annotated[
        str | None,
        Option(
            "--embeddings",
            "With --from-traces: group by this model. [default: by words]",
            OptionGroup.SELECTION,
            syntax="PROVIDER",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class GeneratePersonasOptions(WritingOptions):
    """Options of `geval generate personas`."""

    count: Annotated[
        int, Option("--n", "Number of profiles.", OptionGroup.SELECTION, minimum=1, maximum=500)
    ] = 8
    about: Annotated[
        str | None,
        Option("--about", "The assistant they talk to, in a sentence.", OptionGroup.SELECTION, syntax="TEXT"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ReviewOptions:
    """Options of `geval review`."""

    output: Annotated[
        Path | None,
        Option(
            "-o --output",
            "Output file, .jsonl. [default: tests.accepted.jsonl for tests.jsonl]",
            OptionGroup.RESULTS,
            syntax="FILE",
        ),
    ] = None
    may_replace: ForceOption = False
