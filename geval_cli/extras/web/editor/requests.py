"""Requests of the editor's page, as pydantic models."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from geval_cli.suite.assertion_inputs import InputKind
from geval_cli.suite.draft import ItemDraft, SuiteDraft

_ITEMS_MAX = 100_000

SuiteName = Annotated[str, StringConstraints(min_length=1, max_length=1000)]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class _Asked(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ItemAsked(_Asked):
    """A prompt, provider or test as it is to be."""

    fields: dict[str, str] = {}
    origin: int | None = Field(None, ge=0)
    is_copy: bool = False

    def draft(self) -> ItemDraft:
        return ItemDraft(self.fields, self.origin, self.is_copy)


Items = Annotated[list[ItemAsked], Field(max_length=_ITEMS_MAX)]


class DraftAsked(_Asked):
    """A suite as it is to be."""

    fields: dict[str, str] = {}
    default_test: ItemAsked | None = None
    prompts: Items | None = None
    providers: Items | None = None
    tests: Items | None = None

    def draft(self) -> SuiteDraft:
        default = None if self.default_test is None else self.default_test.draft()
        lists = _drafts(self.prompts), _drafts(self.providers), _drafts(self.tests)
        return SuiteDraft(self.fields, default, *lists)


def _drafts(items: list[ItemAsked] | None) -> tuple[ItemDraft, ...] | None:
    return None if items is None else tuple(item.draft() for item in items)


class CheckRequest(_Asked):
    """A draft to be looked at. `digest` is that of its file; `base` the text it was made from, if that is gone."""

    path: SuiteName
    digest: Digest
    base: str | None = None
    draft: DraftAsked


class SaveRequest(CheckRequest):
    """A draft to be saved. `anyway`: although it has problems."""

    anyway: bool = False


class ChangeAsked(_Asked):
    """One change to a list of assertions, as `suite.assertion_forms` takes it."""

    index: int | None = Field(None, ge=0)
    within: int | None = Field(None, ge=0)
    type: str | None = None
    key: str | None = None
    kind: InputKind = "text"
    value: str | bool | list[tuple[str, str]] | list[dict[str, str | bool]] | None = None
    drop: tuple[str, ...] = ()
    is_removed: bool = False


class AssertionsAsked(_Asked):
    """The YAML of a test's assertions, and what is to change in it."""

    text: str
    change: ChangeAsked | None = None


class TurnChangeAsked(_Asked):
    """One change to the turns of a conversation, as `suite.turn_forms` takes it."""

    index: int | None = Field(None, ge=0)
    role: str | None = None
    text: str | None = None
    is_removed: bool = False


class TurnsAsked(_Asked):
    """The YAML of a test's turns, and what is to change in it."""

    text: str
    change: TurnChangeAsked | None = None


class NewRequest(_Asked):
    """The name of a suite that is to be made."""

    path: SuiteName
