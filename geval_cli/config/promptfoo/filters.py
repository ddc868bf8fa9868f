"""`nunjucksFilters`: filters of templates that the config brings itself, as files of JavaScript."""

from collections.abc import Mapping

from geval_cli.config.promptfoo.paths import JAVASCRIPT_SUFFIXES, existing_files, program_reference
from geval_cli.config.promptfoo.prompts import ConfigPart
from geval_cli.config.promptfoo.sections import settings_of
from geval_cli.config.promptfoo.template_filter import TemplateFilter
from geval_cli.config.validation import Reading
from geval_cli.errors import ConfigError, Problem
from geval_cli.records import JsonValue


def read_filters(part: ConfigPart | None, reading: Reading) -> tuple[TemplateFilter, ...]:
    """The filters that a config names; what is none becomes a problem."""
    found = []
    values: Mapping[str, JsonValue] = settings_of(part, "nunjucksFilters", reading)
    for name, written in values.items():
        assert part is not None
        location = part.place.value(name)
        try:
            found.append(TemplateFilter(name, _reference(name, written, part, reading), location))
        except ConfigError as error:
            reading.problems.extend(error.problems)
    return tuple(found)


def _reference(name: str, written: JsonValue, part: ConfigPart, reading: Reading) -> str:
    location = part.place.value(name)
    files = existing_files(str(written), part.folder, reading.files.access, location)
    if files[0].suffix not in JAVASCRIPT_SUFFIXES:
        message = f"the filter `{name}` is no JavaScript: `{files[0].path.name}`"
        hint = "write a function into a .js file: module.exports = (value) => ..."
        raise ConfigError([Problem(message, location, hint)])
    return program_reference(files[0], location)
