"""The comparison of two runs as text: on the terminal and as Markdown."""

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from geval_cli.extras.compare.comparison import (
    ComparedRow,
    ComparedRun,
    Flip,
    RowWords,
    RunComparison,
    comparison_from_json,
    headline,
    is_rate,
)
from geval_cli.numbers import format_p, format_time, plural
from geval_cli.records import JsonValue, Status
from geval_cli.report.console import Cells, is_unicode, print_hanging, print_rows
from geval_cli.report.sanitize import (
    code_span,
    figures_in_markdown,
    markdown_table,
    one_line,
    quoted,
    sanitize,
)
from geval_cli.report.verdict import DIFFERENCE_STYLES, fitted_title, signs_of, with_signs
from geval_cli.statistics.paired import DifferenceVerdict

_FLIPS_SHOWN, _FLIPS_BESIDE = 20, 10
_ROWS_SHOWN = 60
_WIDE = 120
"""Narrower terminals show the detectable differences below the table, so that its lines stay whole."""
_NARROW = 76
"""On a narrower terminal a row is a sentence, because a table would lose its names and numbers."""
_NAME_WIDTH, _NAME_MIN = 60, 16
_GAP = 3
_DECIDED = frozenset({DifferenceVerdict.BETTER, DifferenceVerdict.WORSE, DifferenceVerdict.EQUIVALENT})
_ADJUSTED = {"holm": "Holm", "bh": "BH"}


def print_comparison(
    found: RunComparison,
    console: Console,
    *,
    most_flips: int = _FLIPS_SHOWN,
    is_verbose: bool = True,
    more: str = "",
) -> None:
    """Print what changed in a sentence, what to know about the two runs, and the figures.

    With `is_verbose`, there is a table for each pair of columns with what the tests could detect, and the flipped
    tests; otherwise the pass rates, other clear differences and the first flipped tests, on a screen that ends with
    `more`.
    """
    arrow = "→" if is_unicode(console) else "->"
    signs = signs_of(console)
    console.print()
    style = (
        "bold" if found.verdict == "mixed" else f"bold {DIFFERENCE_STYLES[DifferenceVerdict(found.verdict)]}"
    )
    print_hanging(Text(), Text(with_signs(found.headline, signs), style=style), console, indent=1)
    print_hanging(Text(), Text(with_signs(changes_text(found), signs)), console, indent=1)
    console.print()
    print_hanging(Text("A  ", style="dim"), Text(run_name(found.a)), console, indent=1)
    print_hanging(Text("B  ", style="dim"), Text(run_name(found.b)), console, indent=1)
    print_hanging(Text(), Text(_paired(found)), console, indent=1)
    for text in found.warnings:
        print_hanging(Text("warning  ", style="yellow"), Text(text, style="yellow"), console, indent=1)
    for text in found.notes:
        print_hanging(Text("note  ", style="dim"), Text(with_signs(text, signs)), console, indent=1)
    if found.overall is not None and (is_verbose or found.overall.verdict not in _DECIDED):
        line = Text(overall_text(found.overall, arrow), style=DIFFERENCE_STYLES[found.overall.verdict])
        print_hanging(Text("all columns  ", style="dim"), line, console, indent=1)
    console.print()
    if not is_verbose:
        _print_in_short(found, console, arrow, more)
        return
    shown = found.rows[:_ROWS_SHOWN]
    for place, column in enumerate(dict.fromkeys(row.column for row in shown)):
        if place:
            console.print()
        if len(found.columns) > 1:
            console.print(Text(f" {one_line(with_signs(column, signs), console.width - 2)}", style="bold"))
        _print_rows([row for row in shown if row.column == column], found, console, arrow)
    if len(found.rows) > len(shown):
        console.print(Text(f" and {plural(len(found.rows) - len(shown), 'more row')}", style="dim"))
    room = most_flips
    for row in shown:
        if row.flipped:
            console.print()
            _print_flips(row, console, arrow, room, has_columns=len(found.columns) > 1)
            room -= min(room, len(row.flipped))


_ROWS_IN_SHORT, _POWERS_IN_SHORT, _FLIPS_IN_SHORT = 10, 3, 6


def _print_in_short(found: RunComparison, console: Console, arrow: str, more: str) -> None:
    """Print the pass rates, other clear differences, what the tests could detect, and the first flipped tests."""
    signs = signs_of(console)
    several = len(found.columns) > 1
    rates = [row for row in found.rows if is_rate(row)] if several else list(found.rows)
    others = [row for row in found.rows if not is_rate(row) and row.verdict in _DECIDED] if several else []
    shown = 0
    for title, rows in (("pass rate" if several else "", rates), ("also decided", others)):
        rows.sort(key=lambda row: row.verdict not in _DECIDED)
        if rows:
            _print_short_rows(title, rows[:_ROWS_IN_SHORT], found, console, f"A {arrow} B")
        shown += len(rows[:_ROWS_IN_SHORT])
    if shown < len(found.rows):
        console.print(Text(f" {plural(len(found.rows) - shown, 'more figure')} with -v", style="dim"))
    has_power = _print_power(
        [row for row in rates if row.verdict is DifferenceVerdict.UNDECIDED], found, console
    )
    flipped = [(row, flip) for row in found.rows for flip in row.flipped]
    if not flipped:
        return
    flipped.sort(key=lambda pair: pair[1].became is not Status.FAILED)
    broken = sum(row.broken or 0 for row in found.rows)
    fixed = sum(row.fixed or 0 for row in found.rows)
    if has_power or shown < len(found.rows):
        console.print()
    console.print(Text(f" {broken:,} broken, {fixed:,} fixed"))
    for row, flip in flipped[:_FLIPS_IN_SHORT]:
        style = "red" if flip.became is Status.FAILED else "green"
        line = Text(f"  {'broken' if flip.became is Status.FAILED else 'fixed '}  ", style=style)
        where = f"  {one_line(with_signs(row.column, signs), 24)}" if several else ""
        room = console.width - line.cell_len - 1
        text = f"{flip.number} {one_line(flip.test, 30)}{where}: {_flip_reason(flip)}"
        line.append(one_line(text, room), style="default")
        console.print(line, no_wrap=True, overflow="ignore", crop=False)
    hidden = broken + fixed - len(flipped[:_FLIPS_IN_SHORT])
    if hidden:
        console.print(Text(f"  ... {hidden:,} more{f': {more}' if more else ''}", style="dim"))


def _print_short_rows(
    title: str, rows: Sequence[ComparedRow], found: RunComparison, console: Console, heading: str
) -> None:
    """Print rows of several columns under the name of their figure, or rows of one column by their own names."""
    signs = signs_of(console)
    has_p = console.width >= _WIDE
    several = bool(title)
    arrow = "→" if is_unicode(console) else "->"
    are_rates = all(map(is_rate, rows))
    cells = []
    for row in rows:
        words = RowWords(row, found.detect)
        means = f"{words.before} {arrow} {words.after}"
        cells.append(
            (words, (means, words.change, words.interval, *([words.p] * has_p), words.verdict.value))
        )
    figures = [max(map(cell_len, column)) for column in zip(*(texts for _, texts in cells), strict=True)]
    room = console.width - 2 - sum(figures) - _GAP * len(figures)
    shown: list[Cells] = []
    for words, texts in cells:
        name = words.name
        column = with_signs(words.row.column, signs)
        if several:
            head = "" if are_rates else f"{one_line(name, max(room // 2, _NAME_MIN))}, "
            name = head + fitted_title(column, max(room - cell_len(head), _NAME_MIN), signs)
        shown.append((name, *texts[:-1], Text(texts[-1], style=DIFFERENCE_STYLES[words.verdict])))
    header = (title, heading, "change", "95 % CI", *([f"p ({_ADJUSTED[found.adjust]})"] * has_p), "")
    print_rows(console, f"lRRR{'R' * has_p}L", header, shown)
    console.print()


def _print_power(undecided: Sequence[ComparedRow], found: RunComparison, console: Console) -> bool:
    """Print what the tests could detect for undecided figures: a line for each, or one for all columns.

    Returns whether anything was printed.
    """
    where = " in every column" if len(found.columns) > 1 else ""
    if where:
        undecided = sorted(undecided, key=lambda row: row.delta.mde or 0.0)[-1:]
    shown = [
        (row, power) for row in undecided[:_POWERS_IN_SHORT] if (power := RowWords(row, found.detect).power)
    ]
    for row, power in shown:
        print_hanging(Text(), Text(f"{RowWords(row).name}{where}: {power}", style="dim"), console, indent=1)
    return bool(shown)


def _print_rows(
    rows: Sequence[ComparedRow],
    found: RunComparison,
    console: Console,
    arrow: str,
) -> None:
    shown = [RowWords(row, found.detect) for row in rows]
    if console.width < _NARROW:
        for words in shown:
            line = Text(f"{words.name}: {_in_a_line(words, arrow)}", style=DIFFERENCE_STYLES[words.verdict])
            print_hanging(Text(), line, console, indent=1)
        return
    is_wide = console.width >= _WIDE
    table = []
    for words in shown:
        said = Text(words.verdict.value, style=DIFFERENCE_STYLES[words.verdict])
        if is_wide and words.power:
            said.append(f"; {words.power}", style="dim")
        means = f"{words.before} {arrow} {words.after}"
        table.append((words.name, means, words.change, words.interval, words.p, said))
    header = ("", f"A {arrow} B", "change", "95 % interval", f"p ({_ADJUSTED[found.adjust]})", "")
    print_rows(console, "lRRRRl", header, table)
    if not is_wide:
        for words in shown:
            if words.power:
                line = Text(f"{words.name}: {words.power}", style="dim")
                print_hanging(Text(), line, console, indent=1)


def _in_a_line(words: RowWords, arrow: str) -> str:
    change = f"{words.change} {words.interval}".rstrip()
    return ", ".join((f"{words.before} {arrow} {words.after}", change, f"p {words.p}", words.verdict.value))


def _print_flips(row: ComparedRow, console: Console, arrow: str, most: int, *, has_columns: bool) -> None:
    head = Text(f" {flips_text(row)}")
    if has_columns:
        head.append(f"  {one_line(with_signs(row.column, signs_of(console)), _NAME_WIDTH)}", style="dim")
    console.print(head)
    for flip in row.flipped[:most]:
        style = "red" if flip.became is Status.FAILED else "green"
        name = Text(f"{flip.was.value} {arrow} {flip.became.value}  ", style=style)
        print_hanging(name, Text(_flip_text(flip)), console, indent=2)
    hidden = flip_count(row) - min(most, len(row.flipped))
    if hidden:
        console.print(Text(f"  and {plural(hidden, 'more flipped test')}", style="dim"))


def _flip_text(flip: Flip) -> str:
    said = f"{flip.number} {one_line(flip.test, _NAME_WIDTH)}"
    reason = _flip_reason(flip)
    return f"{said}: {reason}" if reason else said


def _flip_reason(flip: Flip) -> str:
    name = "" if flip.assertion is None else one_line(flip.assertion, _NAME_WIDTH)
    return ": ".join(part for part in (name, flip.reason) if part)


def overall_text(row: ComparedRow, arrow: str) -> str:
    """Return the pass rate of all columns together: `pass rate 0.62 → 0.70, +0.08 [+0.02, +0.14], p 0.012, better`."""
    words = RowWords(row)
    return f"{words.name} {_in_a_line(words, arrow)}"


def flip_count(row: ComparedRow) -> int:
    """Return how many tests flipped, of which a summary may list only the first."""
    return (row.broken or 0) + (row.fixed or 0)


def flips_text(row: ComparedRow) -> str:
    """Return how many tests broke and were fixed, with the McNemar p-value if there is one."""
    counts = f"{row.broken or 0:,} broken, {row.fixed or 0:,} fixed"
    return counts if row.mcnemar_mid_p is None else f"{counts} (McNemar mid-p {format_p(row.mcnemar_mid_p)})"


def run_name(run: ComparedRun) -> str:
    """Return the name of a side: its id or file, its title, its config and its start time."""
    name = run.id if run.id and run.name in {"", run.id} else f"{run.name} ({run.id})" if run.id else run.name
    parts = [
        name,
        one_line(run.title or "", _NAME_WIDTH),
        run.config_path,
        format_time(run.started_at),
    ]
    return sanitize("  ".join(part for part in parts if part))


def _paired(found: RunComparison) -> str:
    parts = [f"{plural(found.paired, 'test')} paired"]
    parts += [
        f"{count:,} only in {name}" for name, count in (("A", found.only_a), ("B", found.only_b)) if count
    ]
    return ", ".join(parts)


def changes_text(found: RunComparison) -> str:
    """Return what differs in the configs of two runs: `Changed from A to B: the text of the prompt`."""
    if not found.changes:
        return "No known change in prompts, models, judges, criteria, thresholds or tests"
    return f"Changed from A to B: {'; '.join(found.changes)}"


def comparison_markdown(found: RunComparison, *, heading: str = "# geval: comparison") -> str:
    """Return the comparison as Markdown, with all text from models and configs escaped."""
    lines = [heading, "", f"**{code_span(found.headline)}**", "", code_span(changes_text(found)), ""]
    lines += [f"A: {code_span(run_name(found.a))}  ", f"B: {code_span(run_name(found.b))}", ""]
    lines += [f"{_paired(found)}. p: {_ADJUSTED[found.adjust]}.", ""]
    if found.overall is not None:
        said = figures_in_markdown(overall_text(found.overall, "→"))
        lines += [f"All columns together: {said}.", ""]
    lines += [f"- warning: {code_span(text)}" for text in found.warnings]
    lines += [f"- note: {code_span(text)}" for text in found.notes]
    several = len(found.columns) > 1
    header = (
        "",
        *(("column",) if several else ()),
        "A",
        "B",
        "change",
        "95 % interval",
        "p",
        "verdict",
        "power",
    )
    rows = []
    for row in found.rows[:_ROWS_SHOWN]:
        words = RowWords(row, found.detect)
        rows.append(
            (
                code_span(words.name),
                *((code_span(one_line(row.column, _NAME_WIDTH)),) if several else ()),
                words.before,
                words.after,
                words.change,
                words.interval,
                figures_in_markdown(words.p),
                f"**{row.verdict.value}**" if row.verdict in _DECIDED else row.verdict.value,
                words.power,
            )
        )
    lines += ["", markdown_table(header, rows)]
    if len(found.rows) > len(rows):
        lines.append(f"and {plural(len(found.rows) - len(rows), 'more row')}\n")
    room = _FLIPS_SHOWN
    for row in found.rows[:_ROWS_SHOWN]:
        if row.flipped:
            lines += _flips_markdown(row, room, several=several)
            room -= min(room, len(row.flipped))
    return "\n".join(lines).rstrip() + "\n"


def _flips_markdown(row: ComparedRow, room: int, *, several: bool) -> list[str]:
    where = f" {code_span(one_line(row.column, _NAME_WIDTH))}" if several else ""
    lines = [f"**{figures_in_markdown(flips_text(row))}**{where}", ""]
    for flip in row.flipped[:room]:
        lines.append(f"- {flip.was.value} → {flip.became.value}: {code_span(_flip_text(flip))}")
    hidden = flip_count(row) - min(room, len(row.flipped))
    if hidden:
        lines.append(f"- and {hidden:,} more")
    return [*lines, ""]


_BASELINE_ROWS = 4


def print_baseline(comparison: JsonValue, console: Console) -> None:
    """Print the whole comparison that a run's summary contains."""
    found = baseline_of(comparison)
    if isinstance(found, str):
        console.print()
        print_hanging(Text("baseline  ", style="dim"), Text(found, style="yellow"), console, indent=1)
        return
    print_comparison(found, console, most_flips=_FLIPS_BESIDE)


def print_baseline_in_short(comparison: JsonValue, console: Console, run: str) -> None:
    """Print how a run differs from its baseline: a sentence, the few figures that moved, and the command for the rest.

    `run` is the run's name for `geval compare`, with options for it; "" if it is not stored.
    """
    found = baseline_of(comparison)
    if isinstance(found, str):
        print_hanging(Text("baseline  ", style="dim"), Text(found, style="yellow"), console, indent=1)
        return
    arrow = "→" if is_unicode(console) else "->"
    signs = signs_of(console)
    verdict, sentence = headline(
        found.rows, found.paired, found.overall, (f"the baseline {found.a.name}", "this run")
    )
    style = "bold" if verdict == "mixed" else f"bold {DIFFERENCE_STYLES[DifferenceVerdict(verdict)]}"
    print_hanging(Text(), Text(one_line(with_signs(sentence, signs), 2_000), style=style), console, indent=1)
    for text in found.warnings:
        print_hanging(Text("warning  ", style="yellow"), Text(text, style="yellow"), console, indent=1)
    for text in _not_compared(found):  # no gate on a difference counts them
        print_hanging(Text("note     ", style="dim"), Text(text, style="dim"), console, indent=1)
    moved = [row for row in found.rows if row.verdict.is_clear]
    moved = moved or [row for row in found.rows if is_rate(row) and row.delta.differing]
    moved.sort(key=lambda row: -abs(row.delta.value or 0.0))
    if len(found.rows) > 1 and moved:
        console.print()
        title = "" if len(found.columns) == 1 else "pass rate" if all(map(is_rate, moved)) else "figure"
        heading = f"baseline {arrow} now"
        _print_short_rows(title, moved[:_BASELINE_ROWS], found, console, heading)
    broken, fixed = (sum(getattr(row, name) or 0 for row in found.rows) for name in ("broken", "fixed"))
    parts = [f"{broken:,} broken, {fixed:,} fixed"] if broken or fixed else []
    earlier = found.a.id if found.a.id and found.a.name.startswith("latest") else found.a.name
    parts += [f"more: geval compare {quoted(earlier)} {run}"] if run else []
    if parts:
        print_hanging(Text(), Text(f" {signs.dot} ".join(parts), style="dim"), console, indent=1)
    console.print()


def _not_compared(found: RunComparison) -> Iterator[str]:
    """Yield what only one of the two runs has: a run may have lost the tests that failed, or failed in new ones."""
    baseline, ours = "the baseline", "this run"
    for count, where, other in ((found.only_b, ours, baseline), (found.only_a, baseline, ours)):
        if count:
            yield f"{plural(count, 'test')} of {where} {'is' if count == 1 else 'are'} not in {other}"
    for text in found.notes:
        if " not compared: " in text:
            yield text.replace(" of A ", f" of {baseline} ", 1).replace(" of B ", f" of {ours} ", 1)


def baseline_markdown(comparison: JsonValue) -> str:
    """Return the comparison that a run's summary contains as a section of its page."""
    found = baseline_of(comparison)
    if isinstance(found, str):
        return f"- warning: {code_span(found)}\n"
    return comparison_markdown(found, heading="## Compared with the baseline")


def baseline_of(comparison: JsonValue) -> RunComparison | str:
    """Return the comparison that a run's summary contains, or why there is none."""
    try:
        return comparison_from_json(comparison)
    except ValueError:
        said = comparison.get("error") if isinstance(comparison, dict) else None
        return sanitize(
            str(said or "the comparison was made by another version of geval: see `geval compare`")
        )
