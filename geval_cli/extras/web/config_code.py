"""Find the parts of a config that would run code, before any of it runs."""

from collections.abc import Iterator
from typing import Any

from geval_cli.errors import ConfigError
from geval_cli.providers.options import KEY_COMMAND
from geval_cli.providers.trust import runs_program
from geval_cli.records import JsonValue
from geval_cli.runs.requests import RunRequest, open_config
from geval_cli.suite.trust import code_of_suite, code_of_test

_PROGRAMS = ("python:", "javascript:", "exec:")
_PROVIDER_KEYS = ("id", "provider", "providers", "targets", "grader")
_ASSERTION_TYPES = ("python", "javascript", "ruby")
_CODE_SUFFIXES = (".py", ".js", ".cjs", ".mjs", ".ts", ".cts", ".mts", ".rb", ".sh")


def runs_code(request: RunRequest) -> tuple[str, ...]:
    """Return the providers, assertions and files of a config, and its grader, that would run code, without duplicates.

    The list may be incomplete: tests are not read if the rest of the config already contains code.

    Raises:
        ConfigError: the config cannot be read.
    """
    opened = open_config(request)
    found = dict.fromkeys(_code_in([opened.suite.snapshot, {"id": request.grader}]))
    found.update(dict.fromkeys(part.what for part in code_of_suite(opened.suite)))
    for provider in opened.suite.providers:
        if runs_program(provider):
            found.setdefault(provider.public_id)
        found.update(dict.fromkeys(_code_in({"id": provider.id})))
    if found:  # the tests may come from a program, so they are read only if the rest has no code
        return tuple(found)
    try:
        for test in opened.suite.tests:
            found.update(dict.fromkeys(part.what for part in code_of_test(test)))
            if test.provider is not None and runs_program(test.provider):
                found.setdefault(test.provider.public_id)
            # Everything in an assertion, including the members of a set or a jury.
            found.update(
                dict.fromkeys(
                    _code_in(
                        [item.model_dump(mode="json", serialize_as_any=True) for item in test.assertions]
                    )
                )
            )
            found.update(dict.fromkeys(_code_in([test.options.model_dump(mode="json"), dict(test.vars)])))
    except ConfigError:
        return tuple(found)  # a config with problems is refused, with all of them, when it is prepared
    return tuple(found)


def _code_in(value: JsonValue) -> Iterator[str]:
    pending: list[Any] = [value]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            kind = part.get("type")
            if isinstance(kind, str) and kind.removeprefix("not-") in _ASSERTION_TYPES:
                yield kind
            yield from (key for key in KEY_COMMAND.spellings if isinstance(part.get(key), list))
            for key in _PROVIDER_KEYS:
                named = part.get(key)
                if isinstance(named, str) and _is_program(named):
                    yield named
            pending.extend(reversed(part.values()))
        elif isinstance(part, list):
            yield from (item for item in part if isinstance(item, str) and _is_program(item))
            pending.extend(reversed(part))
        elif isinstance(part, str) and _is_code_file(part):
            yield part


def _is_program(text: str) -> bool:
    return text.strip().lower().startswith(_PROGRAMS) or _is_code_file(text)


def _is_code_file(text: str) -> bool:
    """Return whether a text names a file of code, even with a function after it: `file://tests.py:make`."""
    text = text.strip().lower()
    if "\n" in text or not text.startswith("file:"):
        return False
    return text.endswith(_CODE_SUFFIXES) or text.rpartition(":")[0].endswith(_CODE_SUFFIXES)
