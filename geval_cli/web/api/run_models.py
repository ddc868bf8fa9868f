"""What the endpoints of runs take and give. Runs, summaries and results are the records of `results.json`."""

from typing import Annotated, Any

from msgspec import Struct
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool

from geval_cli.config.schema import Scoring
from geval_cli.records import CaseResult, RunRecord, RunSummary


def _no_text(value: object) -> object:
    """A number as JSON has it: neither a text that looks like one nor a truth value."""
    if isinstance(value, str | bool):
        raise ValueError("this must be a number")  # noqa: TRY004 - pydantic reports ValueErrors
    return value


_Number = BeforeValidator(_no_text)
_UpToThousand = Annotated[int, Field(ge=1, le=1000), _Number]
_UpToHundred = Annotated[int, Field(ge=1, le=100), _Number]


class StartRequest(BaseModel):
    """Which config to run, and what differs from it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    config: str = Field(
        min_length=1,
        max_length=1000,
        description="A config file, relative to the served folder.",
        examples=["gevalconfig.yaml"],
    )
    grader: str | None = Field(None, min_length=1, description="Who judges, as `--grader`.")
    scoring: Scoring | None = Field(None, description="How ratings become a score, as `--scoring`.")
    samples: _UpToThousand | None = Field(None, description="Judge each output this many times.")
    repeats: _UpToHundred = Field(1, description="Ask for each answer this many times.")
    max_concurrency: _UpToThousand | None = Field(None, description="Most requests under way at once.")
    reads_cache: StrictBool = Field(True, description="Whether answers of earlier runs may be used.")
    fail_fast: StrictBool = Field(False, description="Stop at the first failure or error.")
    variables: dict[str, str] = Field({}, description="Variables for every test, as `--var`.")


class StopRequest(BaseModel):
    """Nothing needs to be said: `{}`."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class RunStartedAnswer(BaseModel):
    """Where the new run is found."""

    model_config = ConfigDict(frozen=True)

    id: str
    url: str
    events: str
    results: str


class RunAnswer(Struct, frozen=True):
    """A run as in `results.json`, without its results unless they were asked for."""

    schema_version: int
    run: RunRecord
    summary: RunSummary
    results: list[CaseResult] | None = None


class ListedRun(Struct, frozen=True):
    """A run without its config, and its counts."""

    run: dict[str, Any]
    summary: RunSummary


class RunListAnswer(Struct, frozen=True):
    """Some of all stored runs."""

    runs: list[ListedRun]
    total: int
    offset: int
    limit: int


class ResultsAnswer(Struct, frozen=True):
    """Some of all results of a run."""

    results: list[CaseResult]
    total: int
    offset: int
    limit: int


ANSWERS: tuple[type[Struct], ...] = (RunAnswer, RunListAnswer, ResultsAnswer)
"""What holds records; the OpenAPI document describes each, with the records in it, under its name."""
