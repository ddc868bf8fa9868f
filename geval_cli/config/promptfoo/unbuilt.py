"""What promptfoo configs may ask for and geval reads but does not do: a problem each time, never a silent skip."""

from geval_cli.config.assertion_schema import ASSERTION_SPECS
from geval_cli.config.place import Place
from geval_cli.config.validation import Reading, spellings
from geval_cli.records import JsonValue

_ASSERTION_KEYS = ("contextTransform",)
_HINT = "write the assertions for the output as it comes"


def report_assertions(value: JsonValue, place: Place, reading: Reading) -> None:
    """Problems for keys of assertions that change the verdict, where their type does not know them."""
    if not isinstance(value, list):
        return
    for index, item in enumerate(value):
        if not isinstance(item, dict):
            continue
        model = ASSERTION_SPECS.get(str(item.get("type", "")).removeprefix("not-"))
        for key in _ASSERTION_KEYS:
            if key in item and model is not None and key not in spellings(model):
                reading.report(f"`{key}` of an assertion is not run", place.child(index).key(key), _HINT)
        report_assertions(item.get("assert"), place.child(index, "assert"), reading)
