"""Commands by the names that people bring along from other tools: aliases, and what to type in place of the rest."""

from collections.abc import Iterator, Sequence

from geval_cli.errors import UsageError

_ALIASES = {"eval": "run", "evaluate": "run", "test": "run"}
_IMPORTED = ("suite", "run", "traces")
_CONFIG_OPTIONS = ("-c", "--config")
_INSTEAD = {
    "share": "write a page that can be sent: geval run CONFIG -o results.html",
    "retry": "`geval run CONFIG --retry-errors` does the errored cases again",
    "resume": "`geval run CONFIG --resume` resumes the latest unfinished run",
    "check": "`geval validate CONFIG` reports every problem of a config",
    "results": "`geval show` shows the latest run, `geval list` lists all",
    "history": "`geval list` lists stored runs",
    "ui": "`geval view` opens runs in the browser",
    "clear-cache": "`geval cache clear` removes all answers",
    "delete": "`geval rm RUN` removes a stored run",
    "remove": "`geval rm RUN` removes a stored run",
    "generate": "geval has no command for it: write the tests into a .jsonl file",
    "redteam": "geval has no command for it",
}


def as_typed(words: Sequence[str], commands: Sequence[str]) -> list[str]:
    """Return the words after `geval` with an alias written out.

    `eval -c FILE` is `run FILE`, and `help run` is `run --help`.

    Raises:
        UsageError: there is no such command.
    """
    if words and words[0] == "import" and "import" in commands:
        return _with_kind_of_import(words)
    if not words or words[0].startswith("-") or words[0] in commands:
        return list(words)
    verb, *rest = words
    if verb == "help":
        return [*as_typed(rest, commands), "--help"]
    if verb in _ALIASES:
        return [_ALIASES[verb], *_without_config_option(rest)]
    from geval_cli.plugins import COMMANDS, plugin_names
    from geval_cli.source.problems import did_you_mean

    added = plugin_names(COMMANDS)
    if verb in added:
        return list(words)
    near = did_you_mean(verb, [*commands, *added, *_ALIASES])
    hint = _INSTEAD.get(verb) or (
        f"did you mean `geval {near}`?" if near else "`geval --help` lists the commands"
    )
    raise UsageError(f"there is no command `{verb}`", hint=hint)


def _without_config_option(words: Sequence[str]) -> Iterator[str]:
    """Yield the words without `-c` and `--config`, whose values `geval run` takes as they are."""
    for word in words:
        name, equals, value = word.partition("=")
        if equals and name in _CONFIG_OPTIONS:
            yield value
        elif word not in _CONFIG_OPTIONS:
            yield word


def _with_kind_of_import(words: Sequence[str]) -> list[str]:
    """Return the words with `suite` after `import`, where no kind is written."""
    verb, *rest = words
    is_written = bool(rest) and rest[0] in (*_IMPORTED, "-h", "--help")
    return list(words) if is_written else [verb, "suite", *rest]
