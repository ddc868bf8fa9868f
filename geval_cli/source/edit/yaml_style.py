"""A value as YAML text for a given place: quoted, folded or plain as the text before it was, as long as that works."""

import json
import re
from typing import Any

import yaml

from geval_cli.errors import ConfigError, UsageError
from geval_cli.records import JsonValue
from geval_cli.source.yaml_scalars import ScalarError, resolve_plain
from geval_cli.source.yaml_source import read_yaml

# PyYAML breaks lines at 80 characters unless it is given another width.
_NEVER_FOLDED = 1_000_000_000


class _ReadableDumper(yaml.SafeDumper):
    """Writes texts so that a YAML 1.2 reader takes them for texts; PyYAML's own rules are those of YAML 1.1."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, indentless=False)


class _QuotingDumper(_ReadableDumper):
    """Writes every text in double quotes: not pretty, but safe for whatever characters it has."""


def write_yaml(value: JsonValue, *, is_quoted: bool = False) -> str:
    """Return the YAML text that `geval_cli.source.yaml_source.read_yaml` reads as an equal value.

    Args:
        value: what to write.
        is_quoted: puts every text in quotes, so that each is on one line.

    Raises:
        UsageError: there is none: half of a surrogate pair has no place in YAML.
    """
    for dumper in (_QuotingDumper,) if is_quoted else (_ReadableDumper, _QuotingDumper):
        text = yaml.dump(value, Dumper=dumper, sort_keys=False, allow_unicode=True, width=_NEVER_FOLDED)
        if _reads_back(text, value):
            return text
    raise UsageError(
        "the suite holds text that YAML cannot write", hint="keep it in JSON; geval reads that too"
    )


def write_yaml_line(value: JsonValue) -> str:
    """The value on one line, collections in brackets: readable where that keeps it what it is, else all in quotes."""
    for dumper in (_ReadableDumper, _QuotingDumper):
        text = yaml.dump(
            value,
            Dumper=dumper,
            sort_keys=False,
            allow_unicode=True,
            width=_NEVER_FOLDED,
            default_flow_style=True,
        )
        line = text.removesuffix("...\n").strip()
        if "\n" not in line and _reads_back(f"[{line}]", [value]):
            return line
    return json.dumps(value)


def _reads_back(text: str, value: JsonValue) -> bool:
    try:
        found = read_yaml(text, "config.yaml").value
    except ConfigError:
        return False
    return json.dumps(found) == json.dumps(value)


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None if _is_text(text) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


def _represent_quoted(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"')


def _is_text(text: str) -> bool:
    try:
        return isinstance(resolve_plain(text), str)
    except ScalarError:
        return False


_ReadableDumper.add_representer(str, _represent_text)
_QuotingDumper.add_representer(str, _represent_quoted)


_FOLDED_WIDTH = 100
_KEEPS_BLANK_LINES = re.compile(r"[|>][0-9]?\+$", re.MULTILINE)
_PLAIN_KEY = re.compile(r"[A-Za-z_$][\w$-]*")
_CANNOT_FOLD = re.compile(r"^[ \t]|[ \t]$|[ \t]{2}|\n{2,}\Z", re.MULTILINE)


def same(first: JsonValue, second: JsonValue) -> bool:
    """Return whether two values are the same to YAML: 1, 1.0 and true differ, the order of keys does not count."""
    return first is second or json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)


def json_text(value: JsonValue, *, indent: int | None = None) -> str:
    """Return the value as JSON: on one line, or with a line for each part and `indent` spaces before it."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def flow_text(value: JsonValue) -> str:
    """Return the value on one line, as YAML writes it within brackets.

    Raises:
        UsageError: it holds text that YAML cannot write.
    """
    text = write_yaml_line(value)
    if not _reads_as(text, value) or not _reads_as(f"[{text}]", [value]):
        raise _unwritable()
    return text


def block_text(value: JsonValue, style: str = "") -> str:
    """Return the value as lines without indentation; a collection begins with its first key or dash.

    Args:
        value: what to write.
        style: how the text that was there was written: `'`, `"`, `|`, `>` or nothing for plain.

    Raises:
        UsageError: it holds text that YAML cannot write.
    """
    if isinstance(value, dict | list) and value:
        text = write_yaml(value)
        if _KEEPS_BLANK_LINES.search(text):  # it would depend on the lines that follow
            text = write_yaml(value, is_quoted=True)
        return text.removesuffix("\n")
    if not isinstance(value, str):
        return json.dumps(value)
    for text in _candidates(value, style):
        if _reads_as(text, value):
            return text
    raise _unwritable()


def entry_text(key: str, value: JsonValue, indent: int = 2) -> str:
    """Return a key and its value as lines without indentation.

    Raises:
        UsageError: they hold text that YAML cannot write.
    """
    name = key if _PLAIN_KEY.fullmatch(key) else flow_text(key)
    text = block_text(value)
    if isinstance(value, dict | list) and value:
        lines = (f"{' ' * indent}{line}" if line else "" for line in text.split("\n"))
        return "\n".join([f"{name}:", *lines])
    return f"{name}: {text}"


def _candidates(text: str, style: str) -> list[str]:
    """Ways to write a text, the one to prefer first; not each of them is right for every text."""
    quoted = yaml.dump(text, default_style='"', width=_NEVER_FOLDED, allow_unicode=True).strip()
    if "\n" in text:
        folded = [_folded(text)] if style == ">" and not _CANNOT_FOLD.search(text) else []
        return [*folded, _literal(text), quoted]
    single = "'" + text.replace("'", "''") + "'"
    block = [_folded(text)] if style == ">" else [_literal(text)] if style == "|" else []
    return [*{"'": [single], '"': [], "": [text]}.get(style, block), quoted]


def _literal(text: str) -> str:
    kept = "" if text.endswith("\n") else "-"
    lines = text.removesuffix("\n").split("\n")
    return "\n".join([f"|{kept}", *(f"  {line}" if line else "" for line in lines)])


def _folded(text: str) -> str:
    kept = "" if text.endswith("\n") else "-"
    lines: list[str] = []
    for paragraph in text.removesuffix("\n").split("\n"):
        lines += ["", *_wrapped(paragraph)] if lines and paragraph else _wrapped(paragraph)
    return "\n".join([f">{kept}", *(f"  {line}" if line else "" for line in lines)])


def _wrapped(paragraph: str) -> list[str]:
    lines = [""]
    for word in paragraph.split(" "):
        if lines[-1] and len(lines[-1]) + len(word) >= _FOLDED_WIDTH:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}" if lines[-1] else word
    return lines


def _reads_as(text: str, value: JsonValue) -> bool:
    try:
        return same(read_yaml(f"key: {text}\n", "").value, {"key": value})
    except (ConfigError, yaml.YAMLError):
        return False


def _unwritable() -> UsageError:
    return UsageError("the text has characters that YAML cannot hold", hint="take them out")
