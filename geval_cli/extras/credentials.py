"""Keys that are not in the config: those printed by a program (`api_key_command`), and tokens in general.

A token that expires is fetched once for all waiting requests, kept for the process, and replaced before it expires.
"""

import asyncio
import base64
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

from msgspec import Struct, field

from geval_cli.errors import CodeFailedError, Problem, ProviderAuthError
from geval_cli.patterns import compile_later
from geval_cli.providers.base import ProviderSource
from geval_cli.providers.network.messages import HttpCall
from geval_cli.providers.options import KEY_COMMAND, own_settings
from geval_cli.providers.redaction import Secrets, learn_secret
from geval_cli.providers.wire.refusals import KEY_REASON
from geval_cli.source.access import Access
from geval_cli.source.command import ScriptError, run_command

_BEARER = "authorization"


class Token(Struct, frozen=True):
    """A token. `until` is the Unix time after which it is not used any more; None to use it until a server rejects it.

    `headers` are sent along with it.
    """

    text: str = field()
    is_bearer: bool = False
    until: float | None = None
    headers: Mapping[str, str] = {}  # msgspec copies it

    def __repr__(self) -> str:
        return "Token(***)"


_TOKENS: dict[Hashable, Token] = {}
"""The tokens of this process, by command and settings: providers with the same ones share a token."""

_ASKING: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Hashable, asyncio.Task[Token]]] = (
    WeakKeyDictionary()
)


class TokenSigner:
    """Adds a token to each request, and a newer one if the server rejects it; subclasses say where tokens come from.

    Args:
        asked: identifies the source of the token; signers with equal sources share a token.
        key_header: the header for a vendor's key; an OAuth token is sent as a bearer token instead.
        clock: returns the Unix time.
    """

    renewed_at: frozenset[int] = frozenset({HTTPStatus.UNAUTHORIZED})
    """HTTP statuses after which a new token is worth a try."""

    def __init__(
        self, asked: Hashable, *, key_header: str = _BEARER, clock: Callable[[], float] = time.time
    ) -> None:
        self.asked = asked
        self._key_header = key_header
        self._clock = clock

    async def fetch(self) -> Token:
        """Return a new token.

        Raises:
            ProviderError: no token is available.
        """
        raise NotImplementedError

    def is_about_the_token(self, error: ProviderAuthError) -> bool:
        """Return whether a newer token may help after this rejection."""
        return error.status in self.renewed_at

    def hint_for_the_same(self) -> str:
        """Return the hint for when the newer token is the same as the rejected one."""
        raise NotImplementedError

    async def sign(self, call: HttpCall) -> HttpCall:
        """Return `call` with the token in its headers.

        Raises:
            ProviderAuthError: no token is available.
        """
        token = self.known() or await self._ask()
        name = _BEARER if token.is_bearer else self._key_header
        value = f"Bearer {token.text}" if name == _BEARER else token.text
        return replace(call, headers={**token.headers, **call.headers, name: value})

    async def sign_again(self, refused: HttpCall, error: ProviderAuthError) -> HttpCall:
        """Return the call to send instead of `refused`, with a newer token.

        Raises:
            ProviderAuthError: `error`, if it is not about the token or the newer token is the same.
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
        """Return the stored token if it may still be used."""
        token = _TOKENS.get(self.asked)
        is_fresh = token is not None and (token.until is None or self._clock() < token.until)
        return token if is_fresh else None

    def keep(self, token: Token) -> Token:
        """Store a token for all signers with the same source, and redact it in all output."""
        learn_secret(token.text)
        _TOKENS[self.asked] = token
        return token

    def replaced_at(self, end: float | None, *, margin_s: float) -> float | None:
        """Return when to replace a token that expires at `end`: `margin_s` before, or halfway if that is later.

        An end in the past means that the clocks differ: then the token is used until the server rejects it (None).
        """
        now = self._clock()
        left = 0.0 if end is None else end - now
        return now + left - min(margin_s, left / 2) if left > 0 else None

    async def _ask(self) -> Token:
        """Return a new token; concurrent callers share one fetch and its outcome."""
        asking = _ASKING.setdefault(asyncio.get_running_loop(), {})
        task = asking.get(self.asked)
        if task is None:
            task = asking[self.asked] = asyncio.create_task(self.fetch())
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            task.add_done_callback(lambda _: asking.pop(self.asked, None))
        return await asyncio.shield(task)


def _has(call: HttpCall, token: Token) -> bool:
    return any(value in (token.text, f"Bearer {token.text}") for value in call.headers.values())


TIME_LIMIT_S = 10.0
_MARGIN_S = 60.0
_TOKEN = compile_later(r"[\x21-\x7e]{1,65536}")
# Texts in the form of an OAuth token: a JWT, Google's or Anthropic's. Vendors want keys in their own header.
_OAUTH = compile_later(r"eyJ[\w-]*\.[\w-]+\.[\w-]*|ya29\.\S+|sk-ant-oat\S+")
_SCHEME = compile_later(r"Bearer\s+", re.IGNORECASE)
_NAMES = ("token", "access_token", "accessToken", "iam_token", "id_token")
_LIFETIMES = ("expires_in", "expiresIn")
_ENDS = ("expires_on", "expiration", "expiry", "expires_at", "expiresOn", "token_expiry")
_MILLISECONDS_FROM = 1e12


class KeyCommand(TokenSigner):
    """The program that prints a provider's key, and the header that the key is sent in.

    Args:
        source: the provider.
        words: the program and its arguments.
        key_header: the header for the vendor's key; an OAuth token is sent as a bearer token instead.
    """

    renewed_at = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})

    def __init__(
        self, source: ProviderSource, words: tuple[str, ...], *, key_header: str, secrets: Secrets
    ) -> None:
        program = words[0]
        here = source.base_dir.resolve()
        self._words = (str(here / program) if "/" in program else program, *words[1:])
        self._folder = here
        self._env: Mapping[str, str] = source.env
        self._access: Access = source.access
        self._secrets = secrets
        self._provider_id = source.id
        super().__init__((self._words, here, frozenset(source.env.items())), key_header=key_header)

    def __repr__(self) -> str:
        return f"KeyCommand({self._words[0]!r})"

    @property
    def _name(self) -> str:
        return Path(self._words[0]).name

    def is_about_the_token(self, error: ProviderAuthError) -> bool:
        return super().is_about_the_token(error) or KEY_REASON.search(error.body) is not None

    def hint_for_the_same(self) -> str:
        return f"`{self._name}` (`api_key_command`) printed the same key again, which the server refuses"

    async def fetch(self) -> Token:
        try:
            text = await run_command(
                self._words, self._access, folder=self._folder, env=self._env, timeout_s=TIME_LIMIT_S
            )
        except ScriptError as error:
            said = f": {self._secrets.excerpt(error.detail.strip())}" if error.detail.strip() else ""
            what = str(error).replace(f"`{self._words[0]}`", f"`{self._name}`")
            self._refuse(f"{what}{said}")
        except CodeFailedError as error:
            raise ProviderAuthError(error.message, provider_id=self._provider_id, hint=error.hint) from error
        return self.keep(self._read(text))

    def _read(self, text: str) -> Token:
        """Return the token in the program's output: either the plain token, or JSON that contains one."""
        if not text:
            self._refuse(f"`{self._name}` printed nothing")
        found: Any = None
        if text.startswith("{"):
            with suppress(ValueError, RecursionError):
                found = json.loads(text)
        until: float | None = None
        is_bearer = False
        if isinstance(found, dict):
            named = (found[name] for name in _NAMES if isinstance(found.get(name), str) and found[name])
            token = next(named, "").strip()
            if not token:
                self._refuse(f"`{self._name}` printed JSON without a token ({', '.join(_NAMES)})")
            until = _end_in(found)
            scheme = found.get("token_type") or found.get("tokenType")
            is_bearer = isinstance(scheme, str) and scheme.lower() == "bearer"
        else:
            token = text
            if len(text.splitlines()) > 1:
                self._refuse(f"`{self._name}` printed {len(text.splitlines())} lines; a key is one line")
        has_scheme = _SCHEME.match(token)
        token = _SCHEME.sub("", token, count=1)
        if not _TOKEN.fullmatch(token):
            self._refuse(
                f"`{self._name}` printed something that cannot be a key: it contains spaces or "
                "unusual characters"
            )
        until = _end_of_jwt(token) if until is None else until
        is_bearer = is_bearer or has_scheme is not None or _OAUTH.fullmatch(token) is not None
        return Token(token, is_bearer, self.replaced_at(until, margin_s=_MARGIN_S))

    def _refuse(self, what: str) -> NoReturn:
        raise ProviderAuthError(
            f"no key for {self._provider_id}: {what}",
            provider_id=self._provider_id,
            hint="run the `api_key_command` program by itself: it must print only the key to stdout",
        ) from None


def key_command_of(source: ProviderSource, *, key_header: str, secrets: Secrets) -> KeyCommand | None:
    """Return the key program of a checked `source`; None if it has none."""
    words = own_settings(source.spec.config, (KEY_COMMAND,)).get(KEY_COMMAND.spellings[0])
    return KeyCommand(source, tuple(words), key_header=key_header, secrets=secrets) if words else None


def check_key_command(source: ProviderSource) -> list[Problem]:
    """Return the problems with `api_key_command` next to other sources of the key."""
    config = source.spec.config
    key = _spelling(config)
    if key is None:
        return []
    headers = config.get("headers")
    names = {str(name).lower() for name in headers} if isinstance(headers, dict) else set()
    others = [name for name in ("api_key", "apiKey", "api_key_env", "apiKeyEnvar") if config.get(name)]
    if names & {"authorization", "x-api-key", "api-key", "x-goog-api-key"}:
        others.append("headers")
    return [
        source.problem(f"`{key}` and `{other}` both supply a key: keep one", key=other) for other in others
    ]


def missing_program(source: ProviderSource) -> list[Problem]:
    """Return why the key program of a checked `source` cannot be started on this machine."""
    key = _spelling(source.spec.config)
    if key is None:
        return []
    program = source.spec.config[key][0]
    path = source.base_dir / program
    if "/" not in program:
        if shutil.which(program, path=source.env.get("PATH")):
            return []
        hint = "install it, or write its path"
        return [source.problem(f"the program `{program}` of `{key}` was not found", key=key, hint=hint)]
    if not path.is_file():
        hint = f"paths are relative to {source.base_dir}"
        return [source.problem(f"the program `{program}` of `{key}` was not found", key=key, hint=hint)]
    if not os.access(path, os.X_OK):
        hint = f"make it executable: chmod +x {program}"
        return [source.problem(f"the program `{program}` of `{key}` is not executable", key=key, hint=hint)]
    return []


def _spelling(config: Mapping[str, Any]) -> str | None:
    return next((name for name in KEY_COMMAND.spellings if config.get(name) is not None), None)


def _end_in(found: Mapping[str, Any]) -> float | None:
    """Return the Unix time at which a token expires; `az`, `gcloud` and `databricks` use different formats."""
    for name in _LIFETIMES:
        lifetime = _number(found.get(name))
        if lifetime is not None:
            return time.time() + lifetime
    for name in _ENDS:
        written = found.get(name)
        moment = _number(written)
        if moment is not None:
            return moment / 1000 if moment >= _MILLISECONDS_FROM else moment
        if isinstance(written, str):
            with suppress(ValueError, OverflowError):
                return datetime.fromisoformat(
                    written
                ).timestamp()  # without a zone it is local time, as `az` writes it
    return None


def _number(value: Any) -> float | None:
    with suppress(ValueError, OverflowError):
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            return float(value)
    return None


def _end_of_jwt(token: str) -> float | None:
    """Return the `exp` claim of a JWT; None for any other text."""
    parts = token.split(".")
    if len(parts) != 3:  # noqa: PLR2004 - header, claims, signature
        return None
    with suppress(ValueError, RecursionError):
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return _number(claims.get("exp")) if isinstance(claims, dict) else None
    return None
