"""Sums up each column (prompt x provider) of a run, compares it with the baseline test by test, ranks them. Pure.

Results come test by test, as the store yields them. Only the scores and pairs of one test are held at a time, and a
handful of sums for each column, so memory does not grow with the number of tests.

A `pairwise` pair is in the results of both of its outputs and counts once, even if one of the results has an error
instead because another of its pairs could not be judged.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import fsum

from msgspec import Struct, field
from msgspec.structs import replace

from geval_cli.assertions.base import PAIRS, RowColumn
from geval_cli.engine.aggregate import Tally, flaky_tests, metric_scores, with_clustered_intervals
from geval_cli.errors import Location, Problem
from geval_cli.json_codec import encode_json
from geval_cli.metrics import with_members
from geval_cli.plugins import extra
from geval_cli.records import (
    AssertionResult,
    CaseResult,
    Column,
    ColumnComparison,
    ColumnSummary,
    Delta,
    Difference,
    JsonValue,
    Latency,
    MetricStat,
    Role,
    RunRecord,
    RunSummary,
    Stat,
    Status,
    Usage,
)
from geval_cli.source.problems import did_you_mean
from geval_cli.statistics.intervals import (
    ClusteredMean,
    Quantiles,
    mean_share,
    pass_at_k,
    pass_hat_k,
)
from geval_cli.statistics.paired import NO_MARGINS, Margins, PairedDifferences, PairedTest, decide
from geval_cli.suite.suite import BaselineName

_SHOWN_K = (2, 3, 4, 5, 10, 20, 50, 100, 200, 500, 1000)
"""Numbers of tries (k) for which pass@k and pass^k are computed, besides the number of repeats itself."""
_BETWEEN = (" × ", " x ", " | ")  # noqa: RUF001
PASS_RATE = "pass_rate"
"""The name of the pass rate in rows, margins and the JSON."""
_PASS_RATE = None
"""Stands for the pass rate where other rows have the name of a metric, which may be any text."""

_Row = tuple[int, str | None]
"""A row of the comparison: the column, and the metric or `_PASS_RATE`."""
_Means = dict[str | None, float]
"""A number for each row of a column."""
_Keys = tuple[str, ...] | None


def column_labels(columns: Sequence[Column]) -> list[str]:
    """Return a unique label for each column: `prompt × provider`, or only the one of the two in which they differ."""  # noqa: RUF002
    labels = [_label(column, columns) for column in columns]
    counts = Counter(labels)
    return [
        f"{label} [{position}]" if counts[label] > 1 else label
        for position, label in enumerate(labels, start=1)
    ]


def _label(column: Column, columns: Sequence[Column]) -> str:
    prompt, provider = column.prompt_label, column.provider_label
    if not prompt or (len({item.prompt_label for item in columns}) == 1 and provider):
        return provider
    if not provider or len({item.provider_label for item in columns}) == 1:
        return prompt
    return column_name(column)


def column_name(column: Column) -> str:
    """Return `prompt × provider`, or only one of them if the other is empty."""  # noqa: RUF002
    return _BETWEEN[0].join(filter(None, (column.prompt_label, column.provider_label)))


def columns_named(columns: Sequence[Column], name: str) -> list[int]:
    """Return the indexes of the columns that `name` matches.

    It may be a column's label, its prompt's, its provider's, or both of these with ` x ` between them.
    """
    labels = column_labels(columns)
    return [
        index
        for index, column in enumerate(columns)
        if name == labels[index] or name in names_of_column(column)
    ]


def names_of_column(column: Column) -> set[str]:
    """Return the names of a column: its prompt, its provider, or both with a separator between them."""
    return {column.prompt_label, column.provider_label, *names_of_both(column)}


def names_of_both(column: Column) -> set[str]:
    """Return the names of a column made of both prompt and provider."""
    if not (column.prompt_label and column.provider_label):
        return {column_name(column)}
    return {f"{column.prompt_label}{sign}{column.provider_label}" for sign in _BETWEEN}


def row_columns(columns: Sequence[Column]) -> tuple[RowColumn, ...]:
    """Return each column with its label and all names under which `columns_named` finds it."""
    labels = column_labels(columns)
    return tuple(
        RowColumn(index, labels[index], frozenset({labels[index], *names_of_column(column)}))
        for index, column in enumerate(columns)
    )


def baseline_index(columns: Sequence[Column], name: JsonValue) -> int:
    """Return the index of the baseline column: the only one that `name` matches, else the first."""
    found = columns_named(columns, name) if isinstance(name, str) else []
    return found[0] if len(found) == 1 else 0


def margins_of(run: RunRecord) -> Margins:
    """Return the margins of a run's config; none if they cannot be read, as in results of other programs."""
    try:
        return Margins.read(run.config.get("margin")) if isinstance(run.config, dict) else NO_MARGINS
    except ValueError:
        return NO_MARGINS


_LABELS_LISTED = 12


def check_baseline(baseline: BaselineName, columns: Sequence[Column]) -> Iterator[Problem]:
    """Yield a problem unless the config's `baseline` matches one of the run's `columns`."""
    other = "write the label of a column, a run's id, `latest` or a results file"
    yield from check_column_name(
        baseline.name, columns, key="baseline", place=baseline.place.value(), other=other
    )


def check_column_name(
    name: str,
    columns: Sequence[Column],
    *,
    key: str,
    place: Location | None,
    other: str = "write the label of a column, `all` or `expected_output`",
) -> Iterator[Problem]:
    """Yield a problem unless the `name` under a `key` of the config matches one of the run's `columns`.

    `other` is the hint if no name is similar.
    """
    found = columns_named(columns, name)
    if len(found) == 1:
        return
    labels = column_labels(columns)
    if found:
        message = f"`{key}: {name}` matches {len(found):,} columns, but must match one"
        hint = f"write one of their labels, such as `{labels[found[0]].replace(_BETWEEN[0], _BETWEEN[1])}`"
        labels = [labels[index] for index in found]
    else:
        names = {*labels, *(name for column in columns for name in names_of_column(column) if name)}
        near = did_you_mean(name, sorted(names))
        message = f"there is no prompt, provider or column called `{name}`"
        hint = f"did you mean `{near}`?" if near else other
    more = f", and {len(labels) - _LABELS_LISTED:,} more" if len(labels) > _LABELS_LISTED else ""
    listed = ", ".join(f"`{label}`" for label in labels[:_LABELS_LISTED])
    yield Problem(message, place, hint, (f"columns: {listed}{more}",))


class ColumnSums(Struct):
    """An accumulator that takes the results of a run, test by test, and gives the figures of its `columns` at the end.

    Within a test, cases may come in any order. Errors are counted, but enter no rate and no mean.

    Attributes:
        columns: the columns of the run; results of other columns are ignored.
        baseline: index of the column with which the others are compared.
        margins: the largest differences that do not matter.
    """

    columns: tuple[Column, ...]
    baseline: int = 0
    margins: Margins = NO_MARGINS
    _figures: dict[int, "_Figures"] = field(default_factory=dict)
    _pairs: dict[_Row, PairedDifferences] = field(default_factory=dict)
    _test: int | None = None
    _of_test: dict[int, "_TestSums"] = field(default_factory=dict)
    _repeats: int = 0

    def add(self, result: CaseResult) -> None:
        """Add the next result."""
        if not 0 <= result.column < len(self.columns):
            return
        if result.test_index != self._test:
            self._end_test()
            self._test = result.test_index
        self._repeats = max(self._repeats, result.repeat_index + 1)
        members = [item for item, _ in with_members(result.assertions)]
        self._figures.setdefault(result.column, _Figures()).add(result, members)
        self._of_test.setdefault(result.column, _TestSums()).add(result, members)

    def passing(self, results: Iterable[CaseResult]) -> Iterator[CaseResult]:
        """Yield `results`, and add each of them on the way."""
        for result in results:
            self.add(result)
            yield result

    def summaries(self) -> tuple[ColumnSummary, ...]:
        """Return the figures of every column, in the order of the columns. Call it when all results are in."""
        self._end_test()
        labels = column_labels(self.columns)
        differences = _differences({row: pairs.result() for row, pairs in self._pairs.items()}, self.margins)
        return tuple(
            replace(
                self._figures.get(index, _Figures()).summary(column, labels[index], self._repeats),
                vs_first=None if index == self.baseline else self._comparison(index, labels, differences),
            )
            for index, column in enumerate(self.columns)
        )

    def _comparison(
        self, column: int, labels: Sequence[str], differences: dict[_Row, Difference]
    ) -> ColumnComparison:
        own = {name: found for (index, name), found in differences.items() if index == column}
        rate = own.pop(_PASS_RATE, None)
        metrics = {name: found for name, found in own.items() if name is not None}
        return ColumnComparison(labels[self.baseline], rate, dict(sorted(metrics.items())))

    def _end_test(self) -> None:
        """Sum up the cases of the current test, and pair its columns with the baseline."""
        of_test, self._of_test = self._of_test, {}
        test = self._test
        before = of_test.get(self.baseline)
        if test is None:
            return
        old = {} if before is None else before.means()
        for column, after in sorted(of_test.items()):
            self._figures[column].end_test(after)
            if before is None or column == self.baseline:
                continue
            new = after.means()
            for name in old.keys() & new.keys():
                pairs = self._pairs.get((column, name))
                if pairs is None:
                    pairs = self._pairs[column, name] = PairedDifferences()
                pairs.add(test, old[name], new[name], same=before.is_same(after, name))


def with_columns(
    summary: RunSummary,
    columns: tuple[Column, ...],
    results: Iterable[CaseResult],
    *,
    baseline: JsonValue,
    has_clusters: bool,
    margins: Margins = NO_MARGINS,
) -> RunSummary:
    """Return `summary` with the figures of each column, and with intervals by test if `has_clusters`.

    `results` come test by test and are read once; `baseline` and `margins` are those of the config.
    """
    sums = ColumnSums(columns, baseline_index(columns, baseline), margins)
    passing = sums.passing(results)
    if has_clusters:
        summary = with_clustered_intervals(summary, passing)
    else:
        deque(passing, maxlen=0)
    return replace(summary, columns=sums.summaries())


class _TestSums(Struct):
    """The cases of one test in one column: the scores, and the keys of the ratings that they come from."""

    passes: list[bool] = field(default_factory=list)
    scores: dict[str, list[float]] = field(default_factory=dict)
    keys: dict[str | None, list[_Keys]] = field(default_factory=dict)

    def add(self, result: CaseResult, members: Sequence[AssertionResult]) -> None:
        if result.status in {Status.PASSED, Status.FAILED}:
            self.passes.append(result.status is Status.PASSED)
            self.keys.setdefault(_PASS_RATE, []).append(measure_keys(result, members))
        for name, score in result.named_scores.items():
            self.scores.setdefault(name, []).append(score)
            of_metric = [item for item in members if item.metric == name]
            self.keys.setdefault(name, []).append(measure_keys(result, of_metric))

    def means(self) -> _Means:
        """Return the share of repeats that passed, and the mean of each metric."""
        found: _Means = {name: fsum(scores) / len(scores) for name, scores in self.scores.items()}
        if self.passes:
            found[_PASS_RATE] = sum(self.passes) / len(self.passes)
        return found

    def is_same(self, other: "_TestSums", name: str | None) -> bool:
        """Return whether the same texts were judged by the same judge, as far as the results show."""
        own, others = self.keys.get(name, []), other.keys.get(name, [])
        if any(keys is None for keys in (*own, *others)):
            return False
        return Counter(own) == Counter(others)


def measure_keys(result: CaseResult, members: Iterable[AssertionResult]) -> _Keys:
    """Return keys that are equal for two verdicts that measure the same thing: equal texts, judged by equal means.

    For a judge's rating, it is the key of the rating. A pass/fail check saw the output and gave a reason; the hash of
    both is valid in this process only. None if a rating has no key, and if there is no verdict.
    """
    keys: list[str] = []
    seen: int | None = None
    for item in members:
        if item.assertions or item.status is Status.ERROR:
            continue
        key = item.detail.get("rating_key")
        if not isinstance(key, str):
            if item.threshold is not None or "judge" in item.detail:
                return None
            if seen is None:
                output = result.output
                seen = hash(output if isinstance(output, str) else encode_json(output))
            key = f"{item.type} {hash((seen, item.reason))}"
        keys.append(key)
    return tuple(sorted(keys)) or None


class _Metric(Struct):
    """A metric in one column."""

    scores: ClusteredMean = field(default_factory=ClusteredMean)
    errored: int = 0

    def stat(self) -> MetricStat:
        found = self.scores
        return MetricStat(found.mean, found.interval(), found.n, found.clusters, self.errored)


class _Figures(Struct):
    """The sums of one column."""

    counts: Counter[Status] = field(default_factory=Counter)
    judged: ClusteredMean = field(default_factory=ClusteredMean)
    metrics: dict[str, _Metric] = field(default_factory=dict)
    latencies: Quantiles = field(default_factory=Quantiles)
    generated_usd: float | None = 0.0
    usage: dict[str, Usage] = field(
        default_factory=lambda: {Role.GENERATION.value: Usage(), Role.JUDGE.value: Usage()}
    )
    tests_by_outcome: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Numbers of tests, by how many of their repeats passed and how many were judged."""

    def add(self, result: CaseResult, members: Sequence[AssertionResult]) -> None:
        self.counts[result.status] += 1
        if result.status in {Status.PASSED, Status.FAILED}:
            self.judged.add(result.test_index, float(result.status is Status.PASSED))
        for name, (_, errored) in metric_scores(result, members).items():
            self.metrics.setdefault(name, _Metric()).errored += errored
        for name, score in result.named_scores.items():
            self.metrics.setdefault(name, _Metric()).scores.add(result.test_index, score)
        for role, used in result.usage.items():
            self.usage[role.value] = self.usage.get(role.value, Usage()) + used
        cost = result.cost_usd_generated
        self.generated_usd = None if cost is None or self.generated_usd is None else self.generated_usd + cost
        # Cached answers count with their original latency; a failed call says nothing about the speed of the model.
        if result.latency_ms and result.error is None:
            self.latencies.add(result.latency_ms)

    def end_test(self, test: _TestSums) -> None:
        """Count the repeats of a test that passed."""
        if test.passes:
            self.tests_by_outcome[sum(test.passes), len(test.passes)] += 1

    def summary(self, column: Column, label: str, repeats: int) -> ColumnSummary:
        """Return all but the comparison with the baseline. Latencies are accurate to half a per cent (`Quantiles`)."""
        rate = Stat(self.judged.mean, self.judged.interval(), self.judged.n, self.judged.clusters)
        tries = sorted({k for k in _SHOWN_K if k < repeats} | {repeats}) if repeats > 1 else []
        finished = self.judged.n + self.counts[Status.ERROR]
        return ColumnSummary(
            prompt=column.prompt_label,
            provider=column.provider_label,
            label=label,
            passed=self.counts[Status.PASSED],
            failed=self.counts[Status.FAILED],
            errored=self.counts[Status.ERROR],
            not_evaluated=self.counts[Status.NOT_EVALUATED],
            pass_rate=rate,
            pass_rate_at_least=self.counts[Status.PASSED] / finished if self.judged.n else None,
            metrics={name: metric.stat() for name, metric in sorted(self.metrics.items())},
            cost_usd=self.usage[Role.GENERATION.value].cost_usd,
            cost_usd_generated=self.generated_usd,
            latency_ms=Latency(self.latencies.at(0.5), self.latencies.at(0.95)),
            usage=dict(self.usage),
            pass_at_k={str(k): self._chance(pass_at_k, k) for k in tries},
            pass_hat_k={str(k): self._chance(pass_hat_k, k) for k in tries},
        )

    def _chance(self, estimate: Callable[[int, int, int], float | None], k: int) -> Stat:
        """Return the mean over the tests that have at least `k` judged repeats."""
        shares: list[tuple[float, int]] = []
        cases = 0
        for (passed, judged), count in sorted(self.tests_by_outcome.items()):
            share = estimate(passed, judged, k)
            if share is not None:
                shares.append((share, count))
                cases += judged * count
        mean, interval, tests = mean_share(shares)
        return Stat(mean, interval, cases, tests)


def _differences(tests: dict[_Row, PairedTest | None], margin: Margins) -> dict[_Row, Difference]:
    """Return the differences of all rows; those with at least two tests get a verdict and an adjusted p-value."""
    rows = sorted(tests.items(), key=lambda item: (item[0][0], item[0][1] or ""))
    found = {row: test for row, test in rows if test is not None}
    # A single test says nothing about others.
    differences = {row: Difference(Delta(test.delta, None, test.n, 1), None) for row, test in found.items()}
    decidable = {row: test for row, test in found.items() if test.clusters > 1}
    for item in decide(decidable, group=lambda row: row[0], margin=lambda row: margin.of(_name(row))):
        leader, *others = item.names
        differences[leader] = Difference(item.as_delta(), item.verdict.value)
        for row in others:
            differences[row] = replace(differences[leader], same_as=_name(leader))
    return differences


def _name(row: _Row) -> str:
    return PASS_RATE if row[1] is None else row[1]


def same_labels(before: Iterable[Column], after: Iterable[Column]) -> Iterator[tuple[Column, Column]]:
    """Yield the matching columns of two runs, in the order of the later run: the n-th with the same labels in each."""
    waiting: defaultdict[tuple[str, str], deque[Column]] = defaultdict(deque)
    for column in before:
        waiting[column.prompt_label, column.provider_label].append(column)
    for column in after:
        same = waiting[column.prompt_label, column.provider_label]
        if same:
            yield same.popleft(), column


def summarized(run: RunRecord, results: Callable[[], Iterator[CaseResult]]) -> RunSummary:
    """Return the counts and figures of results that have no summary; the results are read several times."""
    tally, has_repeats = Tally(), False
    for result in results():
        tally.add(result)
        has_repeats = has_repeats or result.repeat_index > 0
    return with_figures(
        tally.summary(),
        run.columns,
        results,
        baseline=run.config.get("baseline") if isinstance(run.config, dict) else None,
        has_clusters=tally.has_clusters,
        has_repeats=has_repeats,
        margins=margins_of(run),
    )


def with_figures(
    summary: RunSummary,
    columns: tuple[Column, ...],
    results: Callable[[], Iterator[CaseResult]],
    *,
    baseline: str | None,
    has_clusters: bool,
    has_repeats: bool,
    margins: Margins,
) -> RunSummary:
    """Return a summary with the figures and ranks of its columns, and its flaky tests."""
    ranking = None

    def passing() -> Iterator[CaseResult]:
        nonlocal ranking
        for result in results():
            if ranking is None and any(PAIRS in item.detail for item, _ in with_members(result.assertions)):
                ranking = extra("rankings").RankingSums(columns)
            if ranking is not None:
                ranking.add(result)
            yield result

    summary = with_columns(
        summary, columns, passing(), baseline=baseline, has_clusters=has_clusters, margins=margins
    )
    if ranking is not None:
        summary = ranking.with_rankings(summary)
    if has_repeats:
        flaky, count = flaky_tests(results())
        summary = replace(summary, flaky=flaky, flaky_count=count)
    return summary
