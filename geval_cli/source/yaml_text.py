"""A value as YAML text that reads as an equal value."""

import json
from typing import Any

import yaml

from geval_cli.errors import ConfigError, UsageError
from geval_cli.records import JsonValue
from geval_cli.source.yaml_source import ScalarError, read_yaml, resolve_plain

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


def write_yaml(value: JsonValue) -> str:
    """Return the YAML text that `geval_cli.source.yaml_source.read_yaml` reads as an equal value.

    Raises:
        UsageError: there is none: half of a surrogate pair has no place in YAML.
    """
    for dumper in (_ReadableDumper, _QuotingDumper):
        text = yaml.dump(value, Dumper=dumper, sort_keys=False, allow_unicode=True, width=_NEVER_FOLDED)
        if _reads_back(text, value):
            return text
    raise UsageError(
        "the suite contains text that YAML cannot represent", hint="keep it in JSON, which geval reads too"
    )


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
