"""Plain values to YAML as people like to read it: block text for several lines, texts that stay texts."""

import json
from typing import Any

import yaml

from geval_cli.config.yaml_scalars import ScalarError, resolve_plain
from geval_cli.config.yaml_source import read_yaml
from geval_cli.errors import ConfigError, UsageError
from geval_cli.records import JsonValue

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
    """The YAML text that `geval_cli.config.yaml_source.read_yaml` reads as an equal value.

    Args:
        value: what to write.
        is_quoted: puts every text in quotes, so that each stands on one line.

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
