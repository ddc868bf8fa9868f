"""Environment values for a config: where they come from, and how `{{ env.NAME }}` is filled in when a file is read.

Precedence, highest first: `env:` in the config, the process environment, --env-file, `.env` beside the config, `.env`
in the current folder.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from geval_cli.errors import ConfigError, Location, Problem
from geval_cli.patterns import compile_later
from geval_cli.records import JsonValue
from geval_cli.source.access import TRUSTED, Access, environment_problem
from geval_cli.source.files import read_text
from geval_cli.source.problems import did_you_mean, sort_problems
from geval_cli.source.secrets import MASK, is_secret_name
from geval_cli.source.source_map import ENV_MARK, SourcePath, split_lines

ENV_FILE_NAME = ".env"

_ASSIGNMENT = compile_later(r"[ \t]*(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_.-]*)[ \t]*=[ \t]*")
_SINGLE_QUOTED = compile_later(r"'([^']*)'")
_DOUBLE_QUOTED = compile_later(r'"((?:\\.|[^"\\])*)"', re.DOTALL)
_COMMENT_TAIL = compile_later(r"[ \t]*(?:#.*)?")
_UNQUOTED_COMMENT = compile_later(r"(?:^|(?<![ \t])[ \t]+)#.*")
_ESCAPE = compile_later(r"\\(.)", re.DOTALL)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}

ENV_EXPRESSION = compile_later(
    r"\{\{-?\s*env\.(?P<name>[A-Za-z_][A-Za-z0-9_]*)\s*"
    r"(?:\|\s*default\(\s*(?P<default>'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\")\s*\)\s*)?-?\}\}"
)
_LIKE_AN_EXPRESSION = compile_later(r"\{\{-?\s*env\s*[.\[](?:[^{}]|\{(?!\{)|\}(?!\}))*\}\}")
# These tell cloud libraries where to find a machine's credentials: in files that may name programs to run, or other
# servers to contact.
_OF_THE_MACHINE = frozenset(
    {
        "AWS_CONFIG_FILE",
        "AWS_SHARED_CREDENTIALS_FILE",
        "AWS_PROFILE",
        "AWS_DEFAULT_PROFILE",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "AZURE_AUTHORITY_HOST",
    }
)
_AWS_ADDRESSES = "AWS_ENDPOINT_URL"
"""The prefix of variables that say where signed requests go."""
# Values that went into the config are hidden in messages, except short ones (`1`, `true`) that occur everywhere.
_MIN_HIDDEN = 6


def parse_env_file(text: str, file: str) -> dict[str, str]:
    r"""Return the assignments in a `.env` file: KEY=VALUE, `export`, quotes (also over several lines), `#` comments.

    Double quotes know \n, \r, \t and escape any other character; single quotes know no escapes.

    Raises:
        ConfigError: one problem per line that is none of these. The lines themselves are not shown: they may hold keys.
    """
    values: dict[str, str] = {}
    problems: list[Problem] = []
    lines = split_lines(text)
    index = 0
    while index < len(lines):
        line = lines[index]
        taken = 1
        if line.strip() and not line.lstrip().startswith("#"):
            parsed = _parse_assignment(lines, index)
            if parsed is None:
                where = Location(file, index + 1, 1, length=0)
                problems.append(
                    Problem("this line is not `NAME=value`", where, "quote values that contain spaces")
                )
            else:
                name, values[name], taken = parsed
        index += taken
    if problems:
        raise ConfigError(problems)
    return values


def _parse_assignment(lines: list[str], index: int) -> tuple[str, str, int] | None:
    """Return the name, the value and the number of lines of an assignment; None if it is not one."""
    line = lines[index]
    found = _ASSIGNMENT.match(line)
    if not found:
        return None
    name = found.group(1)
    rest = line[found.end() :]
    if not rest.startswith(("'", '"')):
        return name, _UNQUOTED_COMMENT.sub("", rest, count=1).strip(), 1
    pattern = _SINGLE_QUOTED if rest.startswith("'") else _DOUBLE_QUOTED
    rest = "\n".join([rest, *lines[index + 1 :]])
    quoted = pattern.match(rest)
    if not quoted or not _COMMENT_TAIL.fullmatch(rest[quoted.end() :].split("\n", 1)[0]):
        return None
    value = quoted.group(1)
    if pattern is _DOUBLE_QUOTED:
        value = _ESCAPE.sub(lambda match: _ESCAPES.get(match.group(1), match.group(1)), value)
    return name, value, quoted.group().count("\n") + 1


def gather_env(
    process: Mapping[str, str], *, base_dir: Path, env_file: Path | None, access: Access
) -> dict[str, str]:
    """Return the process environment, supplemented by the values of env files.

    Args:
        process: the process environment, never overridden by a file.
        base_dir: the config's folder, where a `.env` may be.
        env_file: from the command line; it must exist.
        access: the config's; if untrusted, no `.env` is looked for; of one that is found, only what is `settable`
            is used.

    Raises:
        ConfigError: `env_file` cannot be read, or one of the files has a line that is not an assignment.
    """
    values: dict[str, str] = {}
    problems: list[Problem] = []
    # An untrusted folder may contain a .env file that sends all requests elsewhere.
    found = () if access.is_untrusted else (Path(ENV_FILE_NAME), base_dir / ENV_FILE_NAME)
    for path in (*found, env_file):
        if path is None or (path is not env_file and not path.is_file()):
            continue
        try:
            # The config names none of these, so they are trusted.
            found_values = parse_env_file(read_text(path, TRUSTED), str(path))
            values |= found_values if path is env_file else settable(found_values, access)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(sort_problems(problems))
    return values | dict(process)


def settable(values: Mapping[str, str], access: Access) -> dict[str, str]:
    """Return those of `values` that a config, or a file beside it, may set: all of them if it may run code."""
    return {
        name: value
        for name, value in values.items()
        if access.runs_code or not (name in _OF_THE_MACHINE or name.startswith(_AWS_ADDRESSES))
    }


def unknown_expression(text: str) -> str:
    """Return the first env expression that `EnvValues` does not fill in; "" if there is none."""
    found = (match[0] for match in _LIKE_AN_EXPRESSION.finditer(text))
    return next((expression for expression in found if not ENV_EXPRESSION.fullmatch(expression)), "")


class EnvValues:
    """Fills `{{ env.NAME }}` and `{{ env.NAME | default('text') }}` into strings; other templates are unchanged."""

    def __init__(
        self, values: Mapping[str, str], *, needs_keys: bool = True, access: Access = TRUSTED
    ) -> None:
        """Without `needs_keys`, a key that is not set is no problem: `***` takes its place, as it will not be used."""
        self.values = values
        self.access = access
        self._needs_keys = needs_keys
        self._used: set[str] = set()

    def fill(self, value: JsonValue, place: SourcePath, problems: list[Problem]) -> JsonValue:
        """Return `value` with every env expression in it replaced; an undefined name adds a problem."""
        if isinstance(value, str):
            return self._fill_text(value, place, problems) if ENV_MARK in value and "{{" in value else value
        if isinstance(value, dict):
            return {key: self.fill(entry, place.child(key), problems) for key, entry in value.items()}
        if isinstance(value, list):
            return [self.fill(item, place.child(index), problems) for index, item in enumerate(value)]
        return value

    def literal(self, value: JsonValue) -> JsonValue:
        """Return a value in which nothing is to be filled in, such as a table's: here, unchanged."""
        return value

    def hide(self, problem: Problem) -> Problem:
        """Return the problem with all values masked that came from the environment."""
        message, hint = problem.message, problem.hint
        for value in self._used:
            message, hint = message.replace(value, "***"), hint.replace(value, "***")
        return Problem(message, problem.location, hint, problem.notes, problem.severity)

    def _fill_text(self, text: str, place: SourcePath, problems: list[Problem]) -> str:
        def replacement(match: re.Match[str]) -> str:
            name, default = match.group("name"), match.group("default")
            if not self.access.reads_environment:
                problems.append(environment_problem(name, place.value()))
                return ""
            value = self.values.get(name)
            if value is not None:
                if len(value) >= _MIN_HIDDEN:
                    self._used.add(value)
                return value
            if default is not None:
                return _ESCAPE.sub(r"\1", default[1:-1])
            if not self._needs_keys and is_secret_name(name):
                return MASK
            problems.append(self._undefined(name, place))
            return ""

        return ENV_EXPRESSION.sub(replacement, text)

    def _undefined(self, name: str, place: SourcePath) -> Problem:
        near = did_you_mean(name, self.values)
        hint = f"did you mean `{near}`?" if near else "set it, or add it to a .env file"
        note = f"set it, or write a fallback: {{{{ env.{name} | default('text') }}}}"
        return Problem(f"the environment variable `{name}` is not set", place.value(), hint, (note,))
