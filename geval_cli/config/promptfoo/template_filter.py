"""A filter of templates that a config brings itself."""

from dataclasses import dataclass, field

from geval_cli.errors import Location


@dataclass(frozen=True, slots=True)
class TemplateFilter:
    """A filter of templates: its name, and `file://` with the whole path of its JavaScript."""

    name: str
    written: str
    location: Location | None = field(default=None, compare=False)
