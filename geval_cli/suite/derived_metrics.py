"""Derived metrics: numbers that a config computes from the sums of its metrics."""

from pydantic import Field

from geval_cli.records import JsonValue
from geval_cli.source.source_map import SourcePath
from geval_cli.specs.base import Spec
from geval_cli.specs.type_messages import describe_value
from geval_cli.suite.validation import LoadContext, read_spec


class DerivedMetric(Spec):
    """One number, computed from the sums of metrics when the run is over."""

    name: str = Field(description="What the number is called.")
    value: str = Field(
        description="A formula over metrics, each the sum of its scores, and __count, the number of cases."
    )


def read_derived_metrics(
    value: JsonValue, place: SourcePath, reading: LoadContext
) -> tuple[DerivedMetric, ...]:
    """Return the derived metrics of a config, in its order; those with problems are left out."""
    if not isinstance(value, list | tuple):
        message = f"`derivedMetrics` must be a list, found {describe_value(value)}"
        reading.report(message, place.value(), "put `- ` before each metric")
        return ()
    found: dict[str, DerivedMetric] = {}
    for index, item in enumerate(value):
        metric = read_spec(DerivedMetric, item, place.child(index), "a derived metric", reading)
        if metric is None:
            continue
        if metric.name in found:
            message = f"two derived metrics are called `{metric.name}`"
            reading.report(message, metric.place.value("name"), "give them different names")
        found[metric.name] = metric
    return tuple(found.values())
