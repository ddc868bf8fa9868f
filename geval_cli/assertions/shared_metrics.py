"""The metrics that the tests of a run share: made once, and not again for every test."""

from collections.abc import Callable

from msgspec import Struct, field

from geval_cli.judge.metric import Metric

_METRICS_KEPT = 256  # of a config with criteria of its own in every test, the last ones

Texts = tuple[str, ...] | None


class SharedMetrics(Struct):
    """Metrics by the objects of the config that they come from and their rendered texts. One for a run."""

    _kept: dict[tuple[object, ...], tuple[tuple[object, ...], Metric]] = field(default_factory=dict)

    def find(
        self, sources: tuple[object, ...], texts: tuple[Texts, ...], make: Callable[[], Metric]
    ) -> Metric:
        """Return the metric of these very `sources` with these `texts`; what `make` gives when there is none yet."""
        key = (*map(id, sources), texts)
        kept = self._kept.get(key)
        if kept is not None:
            return kept[1]
        metric = make()
        # The sources are held, so that no other object can get the identity of one of them.
        self._kept[key] = sources, metric
        if len(self._kept) > _METRICS_KEPT:
            del self._kept[next(iter(self._kept))]
        return metric
