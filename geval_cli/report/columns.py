"""The columns of a run side by side: which prompt or model is better, as far as the tests can show."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from geval_cli.numbers import (
    estimated,
    fixed,
    format_cost,
    format_count,
    format_difference,
    format_duration,
    format_interval,
    format_p,
    format_points,
    format_score,
    format_share,
    plural,
    share_bounds,
)
from geval_cli.records import ColumnSummary, Delta, Difference, MetricStat, Role, RunSummary, Stat, Usage
from geval_cli.report.console import Cells, is_unicode, print_hanging, print_rows
from geval_cli.report.report import RunReport, informative_metrics
from geval_cli.report.sanitize import one_line
from geval_cli.report.verdict import (
    DIFFERENCE_STYLES,
    MANY_COLUMNS,
    column_title,
    fitted_title,
    print_legend,
    signs_of,
)

METRICS_MAX = 6
"""How many metrics the table shows; all of them are among the differences and in the JSON."""
DIFFERENCES_MAX = 30
_WORST_CASES_SHOWN = 4
_OTHERS_NAMED, _NAMES_SHOWN = 8, 6
PASS_RATE = "pass rate"
_PASS_RATE_KEY = "pass_rate"
NAME_WIDTH = 40
_DIGITS = 2
_GAP = 3
"""Cells between two columns of a table."""
_BAR_CELLS = 8
_NO_MONEY = 1e-9
_DUST = 9
"""The number of decimals beyond which a float holds only rounding errors."""


def share_text(stat: Stat) -> str:
    """Return `75 % [47–91]`: a share in per cent with its 95 % interval; "none" without a value."""  # noqa: RUF002
    if stat.value is None:
        return "none"
    text = format_share(stat.value)
    return text if stat.interval is None else f"{text} {share_bounds(stat.interval)}"


def mean_text(stat: Stat | None, *, has_interval: bool = True) -> str:
    """Return `0.71 [0.60, 0.82]`: a mean with its 95 % interval; "none" without a value."""
    if stat is None or stat.value is None:
        return "none"
    text = format_score(stat.value)
    if stat.interval is None or not has_interval:
        return text
    low, high = stat.interval
    return f"{text} [{fixed(low, _DIGITS)}, {fixed(high, _DIGITS)}]"


def cost_note(columns: Sequence[ColumnSummary]) -> str:
    """Return a sentence about answers that this run did not pay for; "" if it paid for all, or a cost is unknown."""
    paid, generated = (
        None if None in costs else sum(cost or 0.0 for cost in costs)
        for costs in ([item.cost_usd for item in columns], [item.cost_usd_generated for item in columns])
    )
    if generated is None or paid is None or generated - paid < _NO_MONEY:
        return ""
    in_all = f"{format_cost(generated)} in all, of which this run paid {format_cost(paid)}"
    return f"Cost and latency are as generated: {in_all}."


def tokens_text(column: ColumnSummary) -> str:
    """Return `1.2k + 310`: the input and output tokens of the column's answers."""
    usage = column.usage.get(Role.GENERATION.value, Usage())
    return f"{format_count(usage.input_tokens)} + {format_count(usage.output_tokens)}"


DIFFERENCE_HEADER = ("difference", "95 % interval", "p (Holm)", "MDE", "verdict (more tests)")


def too_few_text(delta: Delta) -> str:
    """Return `3 rows need at least 7` if there are too few tests to decide, else ""."""
    if delta.least_tests is None:
        return ""
    need = "row needs" if delta.family == 1 else "rows need"
    return f"{delta.family:,} {need} at least {delta.least_tests}"


class DeltaWords(Struct, frozen=True):
    """A mean difference in words: percentage points for shares, plain numbers for scores.

    Attributes:
        is_share: whether it is a difference of shares.
    """

    delta: Delta
    is_share: bool

    @property
    def change(self) -> str:
        """The difference with its sign: `+8 pts` for shares, `+0.08` for scores."""
        value = self.delta.value or 0.0
        return f"{self.shift(value)} pts" if self.is_share and value else self.shift(value)

    @property
    def bounds(self) -> tuple[str, ...]:
        """The ends of the 95 % interval, without a unit; empty without an interval."""
        return tuple(map(self.shift, self.delta.interval or ()))

    @property
    def p(self) -> str:
        """The p-value, adjusted for multiple comparisons if an adjusted one is known; "" without one."""
        p = self.delta.p if self.delta.p_adjusted is None else self.delta.p_adjusted
        return "" if p is None else format_p(p)

    def shift(self, difference: float) -> str:
        """Return a difference with its sign but without a unit."""
        return format_points(difference) if self.is_share else format_difference(difference)

    def size(self, difference: float, unit: str = "points") -> str:
        """Return a difference without its sign: `5 points` for shares, `0.05` for scores."""
        return (
            f"{format_points(difference).lstrip('+')} {unit}" if self.is_share else format_score(difference)
        )

    def power(self, detect: float) -> str:
        """Return which difference the tests can detect, and how many tests it takes to detect `detect`.

        Empty if so few tests differ that nothing is known about their variance.
        """
        if too_few := too_few_text(self.delta):
            return f"too few tests: {too_few}"
        parts = []
        if self.delta.mde is not None:
            parts.append(f"detects {self.size(self.delta.mde)} or more (80 % power)")
        if detect and (count := self.delta.needed_tests) is not None:
            tests = "test" if count == 1 else "tests"
            need = "would need"
            if self.delta.mde is not None and self.delta.mde <= detect:  # fewer tests than there are
                need = "need only" if self.is_share else "needs only"
            parts.append(f"{self.size(detect)} {need} {estimated(count)} {tests}")
        return "; ".join(parts)


class ShownDifference(DeltaWords, frozen=True):
    """A named row of a column's comparison with the baseline; `verdict` is None for fewer than two tests."""

    name: str
    verdict: str | None

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells of the row, in the order of `DIFFERENCE_HEADER`."""
        return self.change, " to ".join(self.bounds), self.p, self.mde, self.decision

    @property
    def mde(self) -> str:
        """The smallest difference that this many tests would detect with 80 % power; "" if unknown."""
        return "" if self.delta.mde is None else self.size(self.delta.mde, "pts")

    @property
    def decision(self) -> str:
        """The verdict: `better`, or `undecided (~40 more)` with the further tests needed to show this difference."""
        more = f"too few tests: {too_few}" if (too_few := too_few_text(self.delta)) else ""
        if not more and (count := _missing_tests(self.delta)):
            more = f"{estimated(count).replace('about ', '~').replace('more than', '>')} more"
        return f"undecided ({more})" if self.verdict == "undecided" and more else self.verdict or ""


def differences_of(column: ColumnSummary) -> Iterator[ShownDifference]:
    """Yield each row of a column's comparison with the baseline: the pass rate, then the metrics.

    Rows with the same figures in every test are merged into one, `pass rate = right`.
    """
    found = column.vs_first
    if found is None:
        return
    rows = {} if found.pass_rate is None else {_PASS_RATE_KEY: found.pass_rate}
    rows |= found.metrics
    # A results file may refer to a row that does not exist.
    leaders = {key: item.same_as if item.same_as in rows else key for key, item in rows.items()}
    names: dict[str, list[str]] = {}
    for key in sorted(rows, key=lambda key: leaders[key] != key):
        shown = PASS_RATE if key == _PASS_RATE_KEY else key
        names.setdefault(leaders[key], []).append(shown)
    for key, same in names.items():
        yield ShownDifference(rows[key].delta, key == _PASS_RATE_KEY, " = ".join(same), rows[key].verdict)


def verdict_word(column: ColumnSummary) -> str:
    """Return the verdict on a column as a word; "mixed" if it is better in one thing and worse in another."""
    if column.vs_first is None:
        return "baseline"
    verdicts = {item.verdict for item in differences_of(column)}
    if verdicts >= {"better", "worse"}:
        return "mixed"
    for word in ("better", "worse", "undecided", "equivalent", "identical"):
        if word in verdicts:
            return word
    return "one test" if verdicts else "no test in both"


_SAID = {"undecided": "no clear difference", "identical": "same"}
"""What tables show instead of these verdicts."""


def verdict_text(column: ColumnSummary, quoted: Callable[[str], str] = str) -> str:
    """Return the verdict on a column and what it is about: `better: pass rate, tone; worse: length`."""
    parts = []
    for word in ("better", "worse"):
        names = [
            item.name if item.name == PASS_RATE else quoted(one_line(item.name, NAME_WIDTH))
            for item in differences_of(column)
            if item.verdict == word
        ]
        if names:
            parts.append(f"{word}: {', '.join(names)}")
    word = verdict_word(column)
    return "; ".join(parts) or _SAID.get(word, word)


def _missing_tests(delta: Delta) -> int:
    return 0 if delta.needed_tests is None else max(0, delta.needed_tests - delta.clusters)


class _Shape(Struct, frozen=True):
    """Which figures the table has, and how wide names may be; with 0, columns are named by number only.

    Tables in files and pages are `is_whole`: they have all figures and bounds.
    """

    is_whole: bool = False
    title: int = 60
    metrics: int | None = METRICS_MAX
    has_p: bool = True
    has_latency: bool = True
    has_bar: bool = True
    has_interval: bool = True
    has_chances: bool = True
    has_errors: bool = True
    has_cost: bool = True


_STEPS: tuple[dict[str, bool | int], ...] = (
    {},
    {"has_p": False},
    {"has_latency": False},
    {"has_bar": False},
    {"title": 36},
    {"metrics": 3},
    {"has_chances": False},
    {"title": 26},
    {"metrics": 2},
    {"has_errors": False},
    {"metrics": 1},
    {"metrics": 0},
    {"title": 22},
    {"title": 16},
    {"has_interval": False},
    {"title": 0, "metrics": 3, "has_interval": True, "has_errors": True},
    {"metrics": 1},
    {"metrics": 0},
    {"has_interval": False},
    {"has_errors": False},
    {"has_cost": False},
)
"""Changes of the shape for narrow terminals, applied one after another until the table fits."""


def print_columns(report: RunReport, console: Console) -> None:
    """Print the columns, highest pass rate first, then a sentence that says which leads and how sure that is.

    Prints nothing for a single column, which has nothing to be compared with.
    """
    columns = report.summary.columns
    if len(columns) < 2 or not report.summary.total:  # noqa: PLR2004
        return
    signs = signs_of(console)
    titles = [column_title(column, report.columns, signs) for column in report.columns]
    ranked = ranking(columns)
    lead = leading(columns)
    shape = _Shape()
    for step in _STEPS:
        shape = replace(shape, **step)
        names = [f"[{number}]" for number in range(1, len(titles) + 1)]
        if shape.title:
            names = [fitted_title(title, shape.title, signs) for title in titles]
        if len(set(names)) < len(set(titles)):
            continue  # names cut to the same text are useless; numbers with a legend are used instead
        heading, *found = _rows(columns, shape, has_bars=is_unicode(console))
        star = "★" if is_unicode(console) else "*"
        rows = [
            (f"  {heading[0]}", *heading[1:]),
            *((f"{star if place in lead else ' '} {names[place]}", *found[place]) for place in ranked),
        ]
        widths = [max(map(cell_len, cells)) for cells in zip(*rows, strict=True)]
        if 1 + sum(widths) + _GAP * (len(widths) - 1) <= console.width - 1:
            if not shape.title:
                print_legend(titles, console)
            _print_rows(rows, console)
            break
    else:
        for place in ranked:
            print_hanging(Text(f"[{place + 1}] ", style="bold"), Text(titles[place]), console, indent=1)
            line = f"{share_text(columns[place].pass_rate)}, {verdict_text(columns[place])}"
            print_hanging(Text("    "), Text(line), console, indent=1)
        console.print()
    most = 1 if len(columns) > MANY_COLUMNS else _WORST_CASES_SHOWN
    others = [one_line(name, NAME_WIDTH) for name in metric_names(columns)[shape.metrics :]]
    more = [] if len(others) <= _OTHERS_NAMED else [f"{len(others) - _OTHERS_NAMED:,} more"]
    hidden = ", ".join([*others[:_OTHERS_NAMED], *more])
    lines = (
        (f"also measured, see -v: {hidden}" if hidden else "", "dim"),
        (_worst_cases(columns, [fitted_title(title, 30, signs) for title in titles], ranked, most), "dim"),
        (leader_text(columns, titles), "bold"),
        (cost_note(columns), "dim"),
    )
    for line, style in lines:
        if line:
            print_hanging(Text(), Text(line, style=style), console, indent=1)
    if any(line for line, _ in lines):
        console.print()


def _worst_cases(
    columns: Sequence[ColumnSummary], titles: Sequence[str], ranked: Sequence[int], most: int
) -> str:
    """Return `pass rate if all errors failed: a 31 %, b 6 %`, the worst case of each column; "" without errors."""
    least = [
        f"{titles[place]} {format_share(column.passed / (column.passed + column.failed + column.errored))}"
        for place in ranked
        if (column := columns[place]).errored and column.passed
    ]
    more = len(least) - most
    parts = [*least[:most], f"and {more:,} more"] if more > 0 else least
    return f"{PASS_RATE} if all errors failed: {', '.join(parts)}" if least else ""


def ranking(columns: Sequence[ColumnSummary]) -> list[int]:
    """Return the positions of the columns, highest pass rate first; ties are broken by the mean of the metrics."""

    def place(position: int) -> tuple[bool, float, float]:
        rate = _rate(columns[position])
        means = [stat.value for stat in columns[position].metrics.values() if stat.value is not None]
        return rate is None, -(rate or 0.0), -(sum(means) / len(means) if means else 0.0)

    return sorted(range(len(columns)), key=place)


def leader_text(
    columns: Sequence[ColumnSummary], titles: Sequence[str], quoted: Callable[[str], str] = str
) -> str:
    """Return in a sentence which column has the highest pass rate and how sure that is; "" if nothing can be compared.

    `quoted` escapes a name from the config where it would be markup.
    Only comparisons with the baseline are tested, so a column that leads is never said to beat the second one.
    """
    titles = [quoted(title) for title in titles]
    base = baseline_number(columns) - 1
    if too_many := _too_many_errors(columns, titles):
        return too_many
    others = [place for place in ranking(columns) if place != base and not _is_unjudged(columns[place])]
    by_metrics = _decided_by_metrics(columns, titles, others, quoted)
    ranked = [
        place
        for place in ranking(columns)
        if columns[place].pass_rate.value is not None and not _is_unjudged(columns[place])
    ]
    if len(ranked) < 2:  # noqa: PLR2004
        if by_metrics:
            return f"compared with the baseline {titles[base]}: {by_metrics.removeprefix('; ')}"
        is_compared = any(found and found.metrics for found in (column.vs_first for column in columns))
        return (
            f"no metric of any column is shown to differ from the baseline {titles[base]}"
            if is_compared
            else ""
        )
    best = ranked[0]
    top = [place for place in ranked if _rate(columns[place]) == _rate(columns[best])]
    better = [place for place in ranked if _pass_verdict(columns[place]) == "better"]
    worse = [place for place in ranked if _pass_verdict(columns[place]) == "worse"]
    rate = format_share(columns[best].pass_rate.value or 0.0)
    if lead := [place for place in top if place in better]:
        less = [place for place in better if place not in lead]
        also = f"; also better: {_names(less, titles)}" if less else ""
        are = "is" if len(lead) == 1 else "are"
        gain = _gain(columns[lead[0]], columns[base])
        traded = _decided_by_metrics(columns, titles, lead, quoted, words=("worse",))
        return f"{_names(lead, titles)} {are} better than the baseline {titles[base]}: {gain}{also}{traded}"
    found = f"; better than the baseline: {_names(better, titles)}" if better else ""
    found += f"; worse: {_names(worse, titles)}" if worse else ""
    found = found or by_metrics
    if len(top) == len(ranked):
        same = {_pass_verdict(columns[place]) for place in ranked if place != base} == {"identical"}
        every = "every column" if len(ranked) == len(columns) else "every judged column"
        return f"no {'' if same else 'clear '}difference: {every} passes {rate}{found}"
    if base in top:
        if all(_pass_difference(columns[place]) is None for place in ranked):
            alone = "but no other column shares a judged test with it"
            return f"{titles[base]} has the highest pass rate ({rate}), {alone}"
        why = found or _more(columns, ranked)
        return f"no column has a higher pass rate than the baseline {titles[base]} ({rate}){why}"
    leaders = f"{_names(top, titles)} {'have' if len(top) > 1 else 'has'} the highest pass rate"
    if base not in ranked or all(_pass_difference(columns[place]) is None for place in top):
        verb = "share" if len(top) > 1 else "shares"
        return f"{leaders} ({rate}), but {verb} no judged test with the baseline {titles[base]}{found}"
    against = format_share(columns[base].pass_rate.value or 0.0)
    return (
        f"no clear winner: {leaders} ({rate}; the baseline {titles[base]}: {against})"
        f"{found or _more(columns, ranked)}"
    )


def _is_unjudged(column: ColumnSummary) -> bool:
    """Return whether most cases of a column are errors, so that the few judged ones say nothing about the rest."""
    return 2 * column.errored > _cases(column)


def _cases(column: ColumnSummary) -> int:
    return column.passed + column.failed + column.errored + column.not_evaluated


def _too_many_errors(columns: Sequence[ColumnSummary], titles: Sequence[str]) -> str:
    """Return `can't compare: 18 of 24 cases could not be judged`; "" if the baseline and another column were judged."""
    unjudged = [place for place, column in enumerate(columns) if _is_unjudged(column)]
    if len(columns) - len(unjudged) < 2:  # noqa: PLR2004
        if not unjudged:
            return ""
        errored = sum(column.errored for column in columns)
        cases = sum(map(_cases, columns))
        return f"can't compare: {errored:,} of {plural(cases, 'case')} could not be judged"
    base = columns[baseline_number(columns) - 1]
    if not _is_unjudged(base):
        return ""
    of_base = f"{base.errored:,} of {plural(_cases(base), 'case')} of the baseline"
    return f"can't compare: {of_base} {titles[baseline_number(columns) - 1]} could not be judged"


def _rate(column: ColumnSummary) -> float | None:
    """Return the pass rate, rounded so that equal shares compare equal whatever order they were summed in."""
    rate = column.pass_rate.value
    return None if rate is None else round(rate, _DUST)


def _pass_difference(column: ColumnSummary) -> Difference | None:
    return None if column.vs_first is None else column.vs_first.pass_rate


def _pass_verdict(column: ColumnSummary) -> str | None:
    found = _pass_difference(column)
    return None if found is None else found.verdict


def _gain(column: ColumnSummary, baseline: ColumnSummary) -> str:
    """Return how far a column's pass rate is above the baseline's: `+20 points in pass rate (95 % CI +8 to +32)`.

    The difference covers the tests judged in both. If these are not all tests, the text says so, because the rates in
    the table then differ by another amount.
    """
    found = _pass_difference(column)
    assert found is not None
    delta = found.delta
    said = DeltaWords(found.delta, is_share=True)
    between = f"95 % CI {' to '.join(said.bounds)}" if said.bounds else f"p {said.p}" if said.p else ""
    between = f" ({between})" if between else ""
    tests = (
        f" in the {delta.clusters:,} tests judged in both" if _is_of_fewer(delta, column, baseline) else ""
    )
    return f"{said.shift(delta.value or 0.0)} points in pass rate{tests}{between}"


def _is_of_fewer(delta: Delta, *columns: ColumnSummary) -> bool:
    return any(delta.clusters < column.pass_rate.clusters for column in columns)


def _decided_by_metrics(
    columns: Sequence[ColumnSummary],
    titles: Sequence[str],
    places: Sequence[int],
    quoted: Callable[[str], str],
    words: Sequence[str] = ("better", "worse"),
) -> str:
    """Return what the metrics decide where the pass rate does not: `; polite is better in tone and worse in length`."""
    parts = []
    for place in places:
        said = [
            f"{word} in {_names(range(len(names)), names)}"
            for word in words
            if (names := [quoted(name) for name in _decided_metrics(columns[place], word)])
        ]
        if said:
            parts.append(f"{titles[place]} is {' and '.join(said)}")
    return f"; {'; '.join(parts[:2])}" if parts else ""


def _decided_metrics(column: ColumnSummary, word: str) -> list[str]:
    return [
        one_line(item.name, NAME_WIDTH)
        for item in differences_of(column)
        if not item.is_share and item.verdict == word
    ]


def _more(columns: Sequence[ColumnSummary], ranked: Sequence[int]) -> str:
    """Return how many tests it would take to tell, `; about 75 more tests would tell`; "" if unknown."""
    found = _pass_difference(columns[ranked[0]]) or _pass_difference(columns[ranked[1]])
    if found is None:
        return ""
    delta = found.delta
    if found.verdict is None:
        return "; one test can show no difference"
    if delta.least_tests is not None:
        among = f" among {delta.family:,} figures" if delta.family > 1 else ""
        return f"; it takes at least {delta.least_tests} tests to show a difference{among}"
    count = _missing_tests(delta)
    return f"; {estimated(count)} more {'test' if count == 1 else 'tests'} would tell" if count else ""


def _names(places: Sequence[int], titles: Sequence[str]) -> str:
    names = [titles[place] for place in places]
    if len(names) > _NAMES_SHOWN:
        names = [*names[: _NAMES_SHOWN - 1], f"{len(names) - _NAMES_SHOWN + 1:,} more"]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def column_table(
    columns: Sequence[ColumnSummary],
    names: Sequence[str],
    quoted: Callable[[str], str] = str,
    metrics: int | None = None,
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the heading and the rows of the table of columns, best first, with every figure, for pages and files.

    Its first two columns are text. `quoted` escapes names from the config where they would be markup.
    """
    lead = leading(columns)
    (heading, *rows) = _rows(columns, _Shape(True, metrics=metrics), quoted=quoted)
    return heading, [
        (f"{'★ ' if place in lead else ''}{quoted(names[place])}", *rows[place]) for place in ranking(columns)
    ]


_Figure = tuple[str, Callable[[ColumnSummary], str]]
_NOTHING = ColumnSummary("", "", "")


def _rows(
    columns: Sequence[ColumnSummary],
    shape: _Shape,
    *,
    has_bars: bool = False,
    quoted: Callable[[str], str] = str,
) -> list[tuple[str, ...]]:
    """Return the heading and each column's figures, without those that no column has (the cost of local models)."""
    base = baseline_number(columns)
    whole = shape.is_whole

    def against(column: ColumnSummary) -> str:
        if whole:
            return verdict_text(column, quoted)
        # `better +20 pts, p 0.004`: the verdict on a column, and how far its pass rate is from the baseline's.
        baseline = columns[base - 1]
        found = column.vs_first
        if found is None:
            return "baseline"
        rate = found.pass_rate
        if rate is not None and rate.verdict in {"better", "worse"}:
            said = DeltaWords(rate.delta, is_share=True)
            text = f"{rate.verdict} {said.change}"
            return f"{text}, p {said.p}" if shape.has_p and said.p else text
        word = verdict_word(column)
        if word in {"better", "worse"}:
            names = _decided_metrics(column, word)
            return f"{word} in {names[0] if len(names) == 1 else plural(len(names), 'metric')}"
        if word == "identical" and rate is not None and _is_of_fewer(rate.delta, column, baseline):
            return f"same in {plural(rate.delta.clusters, 'test')}"
        return _SAID.get(word, word)

    def rate(column: ColumnSummary) -> str:
        stat = column.pass_rate
        return share_text(stat if shape.has_interval else replace(stat, interval=None))

    def metric(name: str) -> _Figure:
        title = quoted(one_line(name, NAME_WIDTH if whole else 16))
        return title, lambda column: mean_text(column.metrics.get(name), has_interval=whole)

    optional: tuple[tuple[bool, _Figure], ...] = (
        (whole, ("passed", lambda column: f"{column.passed:,}")),
        (whole, ("failed", lambda column: f"{column.failed:,}")),
        (shape.has_errors, ("errors", lambda column: f"{column.errored:,}")),
        (whole, ("not evaluated", lambda column: f"{column.not_evaluated:,}")),
        (shape.has_cost, ("cost", lambda column: format_cost(column.cost_usd_generated))),
        (shape.has_latency, ("p50", lambda column: format_duration(column.latency_ms.median))),
        (whole, ("p95", lambda column: format_duration(column.latency_ms.p95))),
        (whole, ("tokens", tokens_text)),
    )
    verdicts: list[_Figure] = [(f"vs {'baseline' if shape.title else f'[{base}]'}", against)]
    figures: list[_Figure] = [
        *(verdicts if whole and any(column.vs_first for column in columns) else ()),
        ("pass rate [95 %]" if shape.has_interval else PASS_RATE, rate),
        *([("", lambda column: _bar(column.pass_rate.value))] if shape.has_bar and has_bars else ()),
        *(_chances(columns) if shape.has_chances else ()),
        *map(metric, metric_names(columns)[: shape.metrics]),
        *(
            (name, text)
            for is_shown, (name, text) in optional
            if is_shown and any(text(column) != text(_NOTHING) for column in columns)
        ),
        *(() if whole else verdicts),
    ]
    return [
        ("column", *(name for name, _ in figures)),
        *(tuple(text(column) for _, text in figures) for column in columns),
    ]


def leading(columns: Sequence[ColumnSummary]) -> frozenset[int]:
    """Return the positions of the columns with the highest pass rate that are shown to be better than the baseline."""
    judged = [place for place in ranking(columns) if not _is_unjudged(columns[place])]
    best = _rate(columns[judged[0]]) if judged else None
    return frozenset(
        place
        for place, column in enumerate(columns)
        if _rate(column) == best and _pass_verdict(column) == "better" and not _is_unjudged(column)
    )


def _bar(share: float | None) -> str:
    eighths = round((share or 0.0) * 8 * _BAR_CELLS)
    whole, part = divmod(eighths, 8)
    return "█" * whole + " ▏▎▍▌▋▊▉"[part].strip()


def _chances(columns: Sequence[ColumnSummary]) -> Iterator[tuple[str, Callable[[ColumnSummary], str]]]:
    """Yield pass@k and pass^k for as many tries as there were repeats; nothing for a run without repeats."""
    tries = max((int(k) for column in columns for k in column.pass_at_k), default=0)
    if tries:
        yield f"pass@{tries}", lambda column: _chance(column.pass_at_k, tries)
        yield f"pass^{tries}", lambda column: _chance(column.pass_hat_k, tries)


def metric_names(columns: Sequence[ColumnSummary]) -> list[str]:
    """Return the metrics of all columns, sorted by name; the table has room for the first `METRICS_MAX`."""
    return sorted({name for column in columns for name in column.metrics})


def _chance(by_k: Mapping[str, Stat], tries: int) -> str:
    found = by_k.get(str(tries))
    return "none" if found is None or found.value is None else format_share(found.value)


def baseline_number(columns: Sequence[ColumnSummary]) -> int:
    """Return the number, counted from 1, of the column that the others are compared with."""
    return next((number for number, item in enumerate(columns, start=1) if item.vs_first is None), 1)


def _print_rows(rows: Sequence[tuple[str, ...]], console: Console) -> None:
    heading, *body = rows
    sides = "".join("R" if name else "L" for name in heading[1:-1])
    shown: Iterator[Cells] = (
        (
            Text(title, style="" if title.startswith(" ") else "bold"),
            *figures,
            Text(verdict, style=_verdict_style(verdict)),
        )
        for title, *figures, verdict in body
    )
    print_rows(console, f"L{sides}L", heading, shown)
    console.print()


def _verdict_style(text: str) -> str:
    if "better" in text and "worse" in text:
        return DIFFERENCE_STYLES["mixed"]
    return DIFFERENCE_STYLES.get(text.partition(":")[0].partition(" ")[0], "dim")


MEANS_HEADER = ("mean", "95 % interval", "n", "errors")


def mean_cells(stat: MetricStat) -> tuple[str, ...]:
    """Return the cells of a mean, in the order of `MEANS_HEADER`."""
    interval = "" if stat.interval is None else format_interval(stat.interval)
    return mean_text(stat, has_interval=False), interval, f"{stat.n:,}", f"{stat.errored:,}"


def run_means(summary: RunSummary) -> list[tuple[str, MetricStat]]:
    """Return the mean of each metric of a whole run, except those left out by `informative_metrics`."""
    return [
        (name, MetricStat(item.mean, item.interval, item.n, errored=item.errored))
        for name, item in informative_metrics(summary).items()
    ]
