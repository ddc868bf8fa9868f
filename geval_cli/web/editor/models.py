"""What the editor's requests hold."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from geval_cli.config.suite_draft import ItemDraft, SuiteDraft

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
    prompts: Items | None = None
    providers: Items | None = None
    tests: Items | None = None

    def draft(self) -> SuiteDraft:
        return SuiteDraft(self.fields, _drafts(self.prompts), _drafts(self.providers), _drafts(self.tests))


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


class NewRequest(_Asked):
    """The name of a suite that is to be made."""

    path: SuiteName
