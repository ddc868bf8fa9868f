"""Rubrics in their four spellings, written out as bands of ratings with what earns them."""

from typing import TypeGuard

from geval_cli.config.place import Place
from geval_cli.config.schema import RubricBandSpec
from geval_cli.config.validation import Reading
from geval_cli.config.wanted import describe_value
from geval_cli.config.yaml_scalars import ScalarError, resolve_plain
from geval_cli.records import JsonValue

_PAIR = 2
_FORMS = (
    'a rubric is a mapping {10: "..."}, or a list of [10, "..."], of {score: 10, description: "..."}, '
    'or of {score_range: [8, 10], expected_outcome: "..."}',
)


def read_rubric(value: JsonValue, place: Place, reading: Reading) -> tuple[RubricBandSpec, ...] | None:
    """The bands in the order of the file; None with a problem for each band that is wrong."""
    known = len(reading.problems)
    if isinstance(value, dict):
        bands = [_band_of_key(key, entry, place.child(key), reading) for key, entry in value.items()]
    elif isinstance(value, (list, tuple)):
        bands = [_band_of_item(item, place.child(index), reading) for index, item in enumerate(value)]
    else:
        message = f"`rubric` must be a mapping or a list, found {describe_value(value)}"
        reading.report(message, place.value(), notes=_FORMS)
        return None
    if not value:
        reading.report("`rubric` has no bands", place.value(), notes=_FORMS)
    if len(reading.problems) > known:
        return None
    return tuple(band for band in bands if band is not None)


def _band_of_key(key: str, entry: JsonValue, place: Place, reading: Reading) -> RubricBandSpec | None:
    try:
        rating = resolve_plain(key)
    except ScalarError:
        rating = None
    if not _is_number(rating):
        reading.report(
            f"a rating in `rubric` must be a number, found the key `{key}`", place.key(), notes=_FORMS
        )
        return None
    return _band((rating, rating), entry, place, place, reading)


def _band_of_item(item: JsonValue, place: Place, reading: Reading) -> RubricBandSpec | None:
    if isinstance(item, list) and len(item) == _PAIR:
        return _rated_band(item[0], item[1], (place, place.child(0), place.child(1)), reading)
    if isinstance(item, dict) and set(item) == {"score", "description"}:
        places = (place, place.child("score"), place.child("description"))
        return _rated_band(item["score"], item["description"], places, reading)
    if isinstance(item, dict) and set(item) == {"score_range", "expected_outcome"}:
        span, at = item["score_range"], place.child("score_range")
        if isinstance(span, list) and len(span) == _PAIR and all(map(_is_number, span)):
            return _band(
                (span[0], span[1]), item["expected_outcome"], place, place.child("expected_outcome"), reading
            )
        message = "the `score_range` of a band must be a list of two numbers"
        reading.report(message, at.value(), "for example [8, 10]")
        return None
    reading.report("this is no band of a rubric", place.value(), notes=_FORMS)
    return None


def _rated_band(
    rating: JsonValue, text: JsonValue, places: tuple[Place, Place, Place], reading: Reading
) -> RubricBandSpec | None:
    """A band of one rating; `places` are those of the band, of the rating and of the text."""
    if _is_number(rating):
        return _band((rating, rating), text, places[0], places[2], reading)
    message = f"the rating of a band must be a number, found {describe_value(rating)}"
    reading.report(message, places[1].value(), notes=_FORMS)
    return None


def _is_number(value: JsonValue) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _band(
    span: tuple[float, float], text: JsonValue, place: Place, text_place: Place, reading: Reading
) -> RubricBandSpec | None:
    if not isinstance(text, str) or not text.strip():
        message = f"the description of a band must be text, found {describe_value(text)}"
        reading.report(message, text_place.value(), notes=_FORMS)
        return None
    return RubricBandSpec(low=span[0], high=span[1], description=text, place=place)
