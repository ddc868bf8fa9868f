"""`commandLineOptions`, `evaluateOptions` and `outputPath`: what they say about the run, and what is not used."""

from geval_cli.config.promptfoo.prompts import ConfigPart
from geval_cli.config.promptfoo.sections import settings_of
from geval_cli.config.promptfoo.specs import PromptfooOptions
from geval_cli.config.source_file import FILE_PREFIX
from geval_cli.config.validation import Reading
from geval_cli.errors import Location
from geval_cli.records import JsonValue

_USED = frozenset({"maxConcurrency", "repeat", "cache", "grader", "delay", "output"})
_WITHOUT_EFFECT = frozenset(
    {
        "table",
        "verbose",
        "progressBar",
        "showProgressBar",
        "tableCellMaxLength",
        "write",
        "share",
        "watch",
        "description",
        "generateSuggestions",
    }
)
"""Options of the display and of services that geval does not have; they change no result."""

_ELSEWHERE = {
    "timeoutMs": "set `timeout_s` in the `config` of providers",
    "maxEvalTimeMs": "set `timeout_s` in the `config` of providers",
    "envPath": "write --env-file on the command line",
    "envFile": "write --env-file on the command line",
    "vars": "write --var NAME=VALUE on the command line",
    "var": "write --var NAME=VALUE on the command line",
    "filterFirstN": "write --filter-first-n on the command line",
    "filterFailing": "write --filter-failing on the command line",
    "filterPattern": "write --filter-pattern on the command line",
    "filterPrompts": "write --filter-prompts on the command line",
    "filterProviders": "write --filter-providers on the command line",
    "filterTargets": "write --filter-providers on the command line",
    "filterSample": "write --filter-sample on the command line",
    "filterMetadata": "write --filter-metadata on the command line",
}
_SEE_HELP = "see `geval run --help` for options"
_MOST = 10_000
_LONGEST_DELAY_MS = 24 * 3600 * 1000


def read_options(settings: dict[str, ConfigPart], reading: Reading) -> PromptfooOptions:
    """The options of a run; `commandLineOptions` win over `evaluateOptions`."""
    evaluate = settings_of(settings.get("evaluateOptions"), "evaluateOptions", reading)
    command = settings_of(settings.get("commandLineOptions"), "commandLineOptions", reading)
    values: dict[str, JsonValue] = {}
    for name, group in (("evaluateOptions", evaluate), ("commandLineOptions", command)):
        for key, value in group.items():
            place = settings[name].place
            if key not in _USED | _WITHOUT_EFFECT:
                reading.warn(f"`{key}` is not used", place.key(key), _ELSEWHERE.get(key, _SEE_HELP))
            elif key in _USED and value is not None:
                values[key] = value
    if "outputPath" in settings:
        values["output"] = settings["outputPath"].value
    return _built(values, settings, reading)


def _built(
    values: dict[str, JsonValue], settings: dict[str, ConfigPart], reading: Reading
) -> PromptfooOptions:
    concurrency, repeats = values.get("maxConcurrency"), values.get("repeat")
    outputs = values.get("output")
    names = outputs if isinstance(outputs, list) else [outputs] if outputs else []
    delay = values.get("delay")
    for key, value in (("maxConcurrency", concurrency), ("repeat", repeats)):
        if value is not None and not _is_count(value):
            reading.report(f"`{key}` must be a whole number from 1", _location(key, settings))
    if delay is not None and not _is_delay(delay):
        reading.report("`delay` must be a number of milliseconds from 0", _location("delay", settings))
    return PromptfooOptions(
        max_concurrency=concurrency if _is_count(concurrency) else None,
        repeats=repeats if _is_count(repeats) else None,
        delay_ms=delay if _is_delay(delay) else 0,
        uses_cache=values["cache"] if isinstance(values.get("cache"), bool) else None,
        grader=values["grader"] if isinstance(values.get("grader"), str) else None,
        outputs=tuple(name.removeprefix(FILE_PREFIX) for name in names if isinstance(name, str)),
    )


def _location(key: str, settings: dict[str, ConfigPart]) -> Location | None:
    """Where an option stands whose value is used."""
    for name in ("commandLineOptions", "evaluateOptions"):
        part = settings.get(name)
        if part is not None and isinstance(part.value, dict) and part.value.get(key) is not None:
            return part.place.value(key)
    return None


def _is_delay(value: JsonValue) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _LONGEST_DELAY_MS


def _is_count(value: JsonValue) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MOST
