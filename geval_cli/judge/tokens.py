"""Where the tokens of a reply stand in its text, whatever tokenizer and server they came from."""

from collections.abc import Sequence

from msgspec import Struct

from geval_cli.patterns import compile_later
from geval_cli.records import TokenLogprob

_SPACE = compile_later(r"\s*+")
_RESYNC_TOKENS = 6
_CHARACTERS_PER_OPAQUE_TOKEN = 4


class PlacedToken(Struct, frozen=True):
    """A token and the characters of the reply that it stands for, from `start` to `end` (excluded)."""

    token: TokenLogprob
    start: int
    end: int


def plain_text(token: str) -> str:
    """A token as text: the space and line break marks that some servers leave in are put back."""
    return token.replace("▁", " ").replace("Ġ", " ").replace("Ċ", "\n")


def place_tokens(tokens: Sequence[TokenLogprob], text: str) -> tuple[PlacedToken, ...]:
    """The tokens that can be found in `text`, in order.

    Tokens that cannot be matched are left out: pieces of a multi-byte character, marks such as an end-of-turn token,
    white space that the server stripped. Matching resumes behind them.
    """
    placed: list[PlacedToken] = []
    position = 0
    unmatched = 0
    for index, token in enumerate(tokens):
        end = None if unmatched else _match(token.text, text, position)
        if end is None:
            resumed = _resume(tokens, index, text, (position, unmatched))
            if resumed is None:
                unmatched += 1
                continue
            position, unmatched = resumed, 0
            end = _match(token.text, text, position)
        assert end is not None
        placed.append(PlacedToken(token, position, end))
        position = end
    return tuple(placed)


def _match(token: str, text: str, position: int) -> int | None:
    """Where `token` ends in `text` if it stands at `position`, or None; empty tokens match nothing.

    The white space before its characters may differ: servers strip it, and mark it in their own way.
    """
    for spelling in (token, plain_text(token)):
        if spelling and text.startswith(spelling, position):
            return position + len(spelling)
    bare = plain_text(token).lstrip()
    start = _SPACE.match(text, position).end()  # type: ignore[union-attr]  # it matches everywhere
    return start + len(bare) if bare and text.startswith(bare, start) else None


def _resume(tokens: Sequence[TokenLogprob], index: int, text: str, lost: tuple[int, int]) -> int | None:
    """Where the token at `index` stands, `lost` being the last sure position and the tokens unmatched since.

    The next few tokens must follow one another there; a single character would match anywhere.
    """
    position, unmatched = lost
    run: list[str] = []
    for token in tokens[index : index + _RESYNC_TOKENS]:
        if not token.text or plain_text(token.text) not in text:
            break
        run.append(token.text)
    if not run:
        return None
    limit = position + _CHARACTERS_PER_OPAQUE_TOKEN * (unmatched + 1) + sum(map(len, run))
    found = text.find(plain_text("".join(run)), position, limit)
    return None if found == -1 else found
