"""`{{ env.NAME }}` and file references in promptfoo's configs, which work differently from those in geval's own.

The name of a variable may be in brackets and have a default; an expression whose variable is not set stays as written.
Programs may be named anywhere, and data files are loaded wherever text names one.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from geval_cli.errors import ConfigError, Location, Problem, Severity, TemplateError
from geval_cli.patterns import compile_later
from geval_cli.records import JsonValue
from geval_cli.source.access import Access, environment_problem
from geval_cli.source.env import EnvValues, settable
from geval_cli.source.files import (
    CODE_SUFFIXES,
    FILE_PREFIX,
    JAVASCRIPT_SUFFIXES,
    RUNNABLE_SUFFIXES,
    NamedFile,
    find_files,
    is_file_reference,
    is_wildcard,
    missing_file,
    read_document,
    read_text,
    split_part,
    without_braces,
)
from geval_cli.source.source_map import SourcePath
from geval_cli.specs.dialect import PROMPTFOO_RULES
from geval_cli.suite.validation import LoadContext
from geval_cli.templating.js_text import js_string
from geval_cli.templating.templates import templates_of

STRUCTURED_SUFFIXES = frozenset({".json", ".yaml", ".yml"})


def warn_of_gone(reference: str, folder: Path, reading: LoadContext, asked_at: Location | None) -> None:
    """Warn of a file that braces list (`t{1,2}.csv`) and that does not exist: promptfoo leaves it out silently."""
    name, _ = split_part(reference.removeprefix(FILE_PREFIX))
    if (folder / name).exists():
        return
    gone = [one for one in without_braces(name) if not is_wildcard(one) and not (folder / one).exists()]
    if gone:
        more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
        reading.warn(
            f"there is no file `{gone[0]}`{more}; the others are read", asked_at, "leave it out of the braces"
        )


def existing_files(
    reference: str, folder: Path, access: Access, asked_at: Location | None
) -> list[NamedFile]:
    """Return the files of `find_files`, at least one.

    Raises:
        ConfigError: no file was found, or one of them may not be read.
    """
    found = find_files(reference, folder, access, asked_at)
    if not found:
        raise ConfigError([missing_file(reference, folder, access, asked_at)])
    return found


def program_reference(file: NamedFile, asked_at: Location | None) -> str:
    """Return `file://` with the absolute path of a program, and its function if the config names one.

    Raises:
        ConfigError: the program is in an unsupported language.
    """
    if file.suffix in RUNNABLE_SUFFIXES:
        function = f":{file.part}" if file.part else ""
        return f"{FILE_PREFIX}{file.path.absolute()}{function}"
    if file.suffix in JAVASCRIPT_SUFFIXES:
        hint = "compile it to JavaScript and use the .js file"
        raise ConfigError([Problem(f"TypeScript is not supported: `{file.path.name}`", asked_at, hint)])
    message = f"`{file.suffix}` files cannot be run: `{file.path.name}`"
    raise ConfigError([Problem(message, asked_at, "write it in Python or JavaScript")])


def file_keys(value: Mapping[str, JsonValue]) -> frozenset[str]:
    """Return the keys of a mapping, as written, whose value is a file reference."""
    return frozenset(key for key, entry in value.items() if is_file_reference(entry))


def with_file_contents(value: JsonValue, place: SourcePath, folder: Path, reading: LoadContext) -> JsonValue:
    """Return `value` with file references replaced: YAML and JSON files by their data, others by their text.

    References to programs are left alone, and so are those that contain a template.
    """
    if isinstance(value, list):
        return [
            with_file_contents(item, place.child(index), folder, reading) for index, item in enumerate(value)
        ]
    if isinstance(value, dict):
        return {
            key: with_file_contents(item, place.child(key), folder, reading) for key, item in value.items()
        }
    if not is_file_reference(value) or "{{" in value:
        return value
    try:
        files = existing_files(value, folder, reading.files.access, place.value())
    except ConfigError as error:
        reading.problems.extend(error.problems)
        return value
    if files[0].suffix in CODE_SUFFIXES:
        return value
    try:
        if files[0].suffix in STRUCTURED_SUFFIXES:
            document = read_document(files[0].path, reading.files.access, asked_at=place.value())
            return with_file_contents(document.value, place, files[0].path.parent, reading)
        return read_text(files[0].path, reading.files.access, asked_at=place.value()).strip()
    except ConfigError as error:
        reading.problems.extend(error.problems)
        return value


TRUE_WORDS = frozenset({"1", "true", "yes", "yup", "yeppers"})
"""Values of environment variables that promptfoo reads as true."""

_QUOTED = r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\""
_LITERAL = rf"(?:{_QUOTED}|-?[0-9]+(?:\.[0-9]+)?|true|false|none|null)"
_EXPRESSION = compile_later(
    rf"\{{\{{-?\s*env(?:\.(?P<name>[A-Za-z_]\w*)|\[\s*(?P<key>{_QUOTED})\s*\])\s*"
    rf"(?P<filters>(?:\|\s*\w+\s*(?:\(\s*(?:{_LITERAL}\s*(?:,\s*{_LITERAL}\s*)*)?\)\s*)?|or\s+{_LITERAL}\s*)*)-?\}}\}}"
)
_FALLBACK = compile_later(r"\bor\b|\|\s*(?:default|d)\s*\(")
_ESCAPE = compile_later(r"\\(.)", re.DOTALL)
_MARK = "env"
# As in `source.env`: a shorter value would be hidden in every message.
_MIN_HIDDEN = 6


class PromptfooEnv(EnvValues):
    """Fills in environment values. A missing name causes one warning, and its expression is left for rendering."""

    def __init__(self, values: Mapping[str, str], access: Access) -> None:
        super().__init__(values, access=access)
        self._missed: set[str] = set()

    def with_values(self, values: Mapping[str, str]) -> "PromptfooEnv":
        """Return a copy in which `values` override these. Both share the record of values used and of names missing."""
        other = PromptfooEnv({**self.values, **values}, self.access)
        other._used, other._missed = self._used, self._missed
        return other

    def fill(self, value: JsonValue, place: SourcePath, problems: list[Problem]) -> JsonValue:
        if isinstance(value, str):
            return (
                self._fill_expressions(value, place, problems) if _MARK in value and "{{" in value else value
            )
        return super().fill(value, place, problems)

    def _fill_expressions(self, text: str, place: SourcePath, problems: list[Problem]) -> str:
        def replacement(found: re.Match[str]) -> str:
            name = found["name"] or _ESCAPE.sub(r"\1", found["key"][1:-1])
            if not self.access.reads_environment:
                problems.append(environment_problem(name, place.value()))
                return ""
            value = self.values.get(name)
            self._keep_secret(value or "")
            if value is not None and not found["filters"]:
                return value
            if value is None and not _FALLBACK.search(found["filters"]):
                if name not in self._missed:
                    self._missed.add(name)
                    message = f"the environment variable `{name}` is not set and has no fallback"
                    hint = "set it, or add it to a .env file"
                    not_set = Problem(message, place.value(), hint, severity=Severity.WARNING)
                    problems.append(not_set)
                return found[0]  # a provider's own `env` may set it
            known = {} if value is None else {name: value}
            try:
                filled = templates_of(PROMPTFOO_RULES, known).render(found[0], {})
            except TemplateError:  # the config's own filter, perhaps: left for rendering
                return found[0]
            self._keep_secret(filled if value else "")
            return filled

        return _EXPRESSION.sub(replacement, text)

    def _keep_secret(self, value: str) -> None:
        if len(value) >= _MIN_HIDDEN:
            self._used.add(value)


def literal_env(raw: JsonValue, around: Mapping[str, str], access: Access) -> dict[str, str]:
    """Return an `env:` block as text; its values may refer to environment variables and to each other."""
    if not isinstance(raw, dict):
        return {}
    values = {
        str(name): js_string(value) for name, value in raw.items() if not isinstance(value, dict | list)
    }
    for _ in range(2):
        filled = PromptfooEnv({**around, **values}, access)
        values = {name: filled.fill(text, SourcePath.nowhere(), []) for name, text in values.items()}
    return settable(values, access)
