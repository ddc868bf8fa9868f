"""`geval serve` and `geval view`: serve the HTTP API and the web pages until stopped by a signal."""

import asyncio
import os
import secrets
import sys
import threading
import webbrowser
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from geval_cli.cli.options import CommandTable, Folder, ServeOptions, declared
from geval_cli.errors import UsageError
from geval_cli.plugins import is_installed
from geval_cli.version import install_hint

if TYPE_CHECKING:
    from geval_cli.extras.web.settings import ServerSettings

_TOKEN_BYTES = 32
_NEEDED = ("fastapi", "uvicorn")

commands = CommandTable()


def _add(name: str, summary: str, *, opens_browser: bool) -> None:
    @commands.command(name, help=summary)
    @declared(ServeOptions)
    def command(given: ServeOptions, folder: Folder = Path()) -> None:
        serve(replace(given, folder=folder, opens_browser=opens_browser))


_add("serve", "Serve the HTTP API and the web pages.", opens_browser=False)
_add("view", "Open runs in the browser.", opens_browser=True)


def serve(options: ServeOptions) -> None:
    """Serve until the first signal, then finish everything in progress.

    Raises:
        UsageError: an extra is missing, the folder is not a folder, the address is unavailable, or a token is missing.
        ConfigError: an env file cannot be read.
    """
    missing = [name for name in _NEEDED if not is_installed(name)]
    if missing:
        hint = f"install it {install_hint('server')}"
        raise UsageError(f"the server needs the extra `server` ({', '.join(missing)} is missing)", hint=hint)
    from geval_cli.extras.web.api.geval import judge_spec
    from geval_cli.extras.web.html import read_templates
    from geval_cli.extras.web.server import Server, bind
    from geval_cli.extras.web.settings import address_with
    from geval_cli.runs.session import judge_problems

    listening, settings = bind(_settings(options))
    with listening:
        # Every user of this machine can read a browser's command line, so its URL has a ticket that works only once.
        address = address_with(settings.ticket, settings.url)
        opens = options.opens_browser

        def on_started() -> None:
            threading.Thread(target=read_templates, daemon=True, name="templates").start()
            if opens:
                # Open the browser in a thread, since some block their caller.
                threading.Thread(target=webbrowser.open, args=(address,), daemon=True, name="browser").start()

        server = Server(settings, say=_say, on_started=on_started)
        # The user knows a token of their own, so it is not printed: the output may be logged.
        printed = settings.token if settings.has_open_geval else None
        _say(f"geval serves {settings.folder} at {address_with(printed, settings.url)}  (stop with Ctrl-C)")
        if settings.token is None:
            _say("without a token, every user of this machine can use the server, and through it your keys")
        elif settings.has_open_geval:
            _say(
                "the token in the URL opens pages and runs; POST /api/geval is open to every user of this machine"
            )
        for problem in judge_problems(judge_spec(settings), env=server.judge_env, base_dir=settings.folder):
            _say(f"warning: /api/geval cannot judge yet: {problem.message} ({problem.hint})")
        asyncio.run(server.serve([listening]))


def _settings(options: ServeOptions) -> "ServerSettings":
    from geval_cli.cli.arguments import check_scoring
    from geval_cli.extras.web.settings import TOKEN_VARIABLE, ServerSettings, is_loopback
    from geval_cli.runs.requests import UNTRUSTED_VARIABLE, is_untrusted

    check_scoring(options.scoring, options.samples)
    if options.allow_code and is_untrusted(os.environ):
        hint = f"start it without --allow-code, or unset {UNTRUSTED_VARIABLE}"
        raise UsageError(
            f"--allow-code cannot be combined with {UNTRUSTED_VARIABLE}, which forbids code", hint=hint
        )
    if not options.folder.is_dir():
        raise UsageError(
            f"{options.folder} is not a folder", hint="use the folder that contains your configs"
        )
    own = os.environ.get(TOKEN_VARIABLE, "").strip()
    if own and options.has_no_token:
        hint = f"leave --no-token out, or unset {TOKEN_VARIABLE}"
        raise UsageError(f"--no-token cannot be combined with {TOKEN_VARIABLE}, which is set", hint=hint)
    is_made = not own and not options.has_no_token and is_loopback(options.host)
    token = own or (secrets.token_urlsafe(_TOKEN_BYTES) if is_made else None)
    settings = ServerSettings(
        folder=options.folder.resolve(),
        environ=os.environ,
        home=_home(options),
        env_file=options.env_file,
        token=token,
        ticket=secrets.token_urlsafe(_TOKEN_BYTES) if token else None,
        has_open_geval=is_made,
        allows_code=options.allow_code,
        grader=options.grader,
        scoring=options.scoring,
        samples=options.samples,
        host=options.host,
        port=options.port,
        allowed_origins=options.origins,
        allowed_hosts=options.hosts,
    )
    if not settings.is_loopback and settings.token is None:
        message = f"on {options.host} other machines can reach the server, so it needs a token"
        hint = f"set {TOKEN_VARIABLE} to a long random string, or leave --host out"
        raise UsageError(message, hint=hint)
    return settings


def _home(options: ServeOptions) -> Path | None:
    """Return the state folder: the one given, else the one nearest to the configs, wherever the server is started.

    If every config is untrusted, the sandbox chooses a folder that no one else can have filled.
    """
    from geval_cli.cli.untrusted import KernelSandbox
    from geval_cli.runs.requests import is_untrusted
    from geval_cli.store.home import home_folder, named_home

    if not is_untrusted(os.environ):
        if named_home(options.home, os.environ) is not None:
            return options.home
        return home_folder(None, env={}, cwd=options.folder.resolve())

    sandbox = KernelSandbox()
    home = sandbox.state_folder(options.home, [options.folder / "any config"], os.environ)
    sandbox.tell()
    return home


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
