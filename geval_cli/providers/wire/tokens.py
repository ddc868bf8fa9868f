"""Tokens that expire: fetched once for all requests that wait, kept for the process, replaced before they end."""

import asyncio
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from http import HTTPStatus
from weakref import WeakKeyDictionary

from msgspec import Struct, field

from geval_cli.errors import ProviderAuthError
from geval_cli.providers.network.messages import HttpCall
from geval_cli.providers.redaction import learn_secret

_BEARER = "authorization"


class Token(Struct, frozen=True):
    """A token. `until` is the Unix time from which it is not used any more; None while no server refuses it.

    `headers` go with it.
    """

    text: str = field()
    is_bearer: bool = False
    until: float | None = None
    headers: Mapping[str, str] = {}  # msgspec copies it

    def __repr__(self) -> str:
        return "Token(***)"


_TOKENS: dict[Hashable, Token] = {}
"""The tokens of this process, by what they were asked of: providers that ask the same share one."""

_ASKING: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Hashable, asyncio.Task[Token]]] = (
    WeakKeyDictionary()
)


class TokenSigner:
    """Puts a token into each request, and a newer one when a server refuses it. A class of it says where tokens are.

    Args:
        asked: what tells its tokens from those of others.
        key_header: where the vendor wants a key; a token of OAuth goes as a bearer token.
        clock: the Unix time.
    """

    renewed_at: frozenset[int] = frozenset({HTTPStatus.UNAUTHORIZED})
    """The statuses of refusals that a newer token may cure."""

    def __init__(
        self, asked: Hashable, *, key_header: str = _BEARER, clock: Callable[[], float] = time.time
    ) -> None:
        self.asked = asked
        self._key_header = key_header
        self._clock = clock

    async def fetch(self) -> Token:
        """Return a new token.

        Raises:
            ProviderError: there is none.
        """
        raise NotImplementedError

    def is_about_the_token(self, error: ProviderAuthError) -> bool:
        """Return whether a newer token may be taken where this one is refused."""
        return error.status in self.renewed_at

    def hint_for_the_same(self) -> str:
        """Return what to do where the newer token is the refused one."""
        raise NotImplementedError

    async def sign(self, call: HttpCall) -> HttpCall:
        """Return `call` with the token among its headers.

        Raises:
            ProviderAuthError: there is none.
        """
        token = self.known() or await self._ask()
        name = _BEARER if token.is_bearer else self._key_header
        value = f"Bearer {token.text}" if name == _BEARER else token.text
        return replace(call, headers={**token.headers, **call.headers, name: value})

    async def sign_again(self, refused: HttpCall, error: ProviderAuthError) -> HttpCall:
        """Return the call to send in the place of `refused`, with a newer token.

        Raises:
            ProviderAuthError: `error`, when it is not about the token or the newer one is the same.
        """
        if not self.is_about_the_token(error):
            raise error
        token = _TOKENS.get(self.asked)
        if token is not None and _has(refused, token):
            del _TOKENS[self.asked]
        again = await self.sign(refused)
        token = _TOKENS.get(self.asked)
        if token is not None and _has(refused, token):
            error.hint = self.hint_for_the_same()
            raise error
        return again

    def known(self) -> Token | None:
        """Return the token that is there already and may still be used."""
        token = _TOKENS.get(self.asked)
        is_fresh = token is not None and (token.until is None or self._clock() < token.until)
        return token if is_fresh else None

    def keep(self, token: Token) -> Token:
        """Keep a token for all who ask for the same, and hide it in all that is shown."""
        learn_secret(token.text)
        _TOKENS[self.asked] = token
        return token

    def replaced_at(self, end: float | None, *, margin_s: float) -> float | None:
        """Return when to replace a token that ends at `end`: so long before, or after half its life if that is sooner.

        An end in the past says that the clocks differ; then the server says when the token has ended.
        """
        now = self._clock()
        left = 0.0 if end is None else end - now
        return now + left - min(margin_s, left / 2) if left > 0 else None

    async def _ask(self) -> Token:
        """Return a new token; callers that want one at the same time share one fetch and what comes of it."""
        asking = _ASKING.setdefault(asyncio.get_running_loop(), {})
        task = asking.get(self.asked)
        if task is None:
            task = asking[self.asked] = asyncio.create_task(self.fetch())
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            task.add_done_callback(lambda _: asking.pop(self.asked, None))
        return await asyncio.shield(task)


def _has(call: HttpCall, token: Token) -> bool:
    return any(value in (token.text, f"Bearer {token.text}") for value in call.headers.values())
