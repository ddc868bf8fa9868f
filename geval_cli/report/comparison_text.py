"""A comparison of two runs in words: on the terminal and as Markdown."""

from collections.abc import Iterable, Sequence

from msgspec import Struct
from rich.console import Console
from rich.text import Text

from geval_cli.numbers import estimated, format_difference, format_p, format_score, plural
from geval_cli.records import Delta, JsonValue, Status
from geval_cli.report.comparison import (
    ComparedRow,
    ComparedRun,
    Flip,
    RunComparison,
    comparison_from_json,
    row_title,
    too_few_text,
)
from geval_cli.report.console import indented, is_unicode, plain_table, print_hanging, print_trimmed
from geval_cli.report.sanitize import code_span, markdown_table, one_line, sanitize
from geval_cli.report.verdict import signs_of, with_signs
from geval_cli.statistics.paired import DifferenceVerdict

_FLIPS_SHOWN, _FLIPS_BESIDE = 20, 10
_ROWS_SHOWN = 60
_WIDE = 120
"""Narrower terminals have the detectable differences below the table, so that its lines stay whole."""
_NARROW = 76
"""Below, a row is a sentence: a table would lose its names and numbers."""
_NAME_WIDTH = 60
_STYLES = {
    DifferenceVerdict.BETTER: "green",
    DifferenceVerdict.WORSE: "red",
    DifferenceVerdict.UNDECIDED: "dim",
    DifferenceVerdict.EQUIVALENT: "cyan",
    DifferenceVerdict.IDENTICAL: "dim",
}
_ADJUSTED = {"holm": "Holm", "bh": "BH"}


def print_comparison(found: RunComparison, console: Console, *, most_flips: int = _FLIPS_SHOWN) -> None:
    """Print the runs, a table for each pair of columns, the flipped tests, and what one must know about them."""
    arrow, signs = "→" if is_unicode(console) else "->", signs_of(console)
    console.print()
    style = "bold" if found.verdict == "mixed" else f"bold {_STYLES[DifferenceVerdict(found.verdict)]}"
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
    if found.overall is not None:
        line = Text(overall_text(found.overall, arrow), style=_STYLES[found.overall.verdict])
        print_hanging(Text("all columns  ", style="dim"), line, console, indent=1)
    console.print()
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


class RowWords(Struct, frozen=True):
    """A row in words and figures, as terminal, Markdown and page show it; `verdict` says of `row` what is shown."""

    row: ComparedRow
    name: str
    before: str
    after: str
    change: str
    interval: str
    p: str
    tests: int
    power: str

    @property
    def verdict(self) -> DifferenceVerdict:
        """The finding about the row."""
        return self.row.verdict


def row_words(row: ComparedRow, detect: float) -> RowWords:
    """Return how a row is shown; `detect` is the difference for which a number of tests is given."""
    delta = row.delta
    p = delta.p if delta.p_adjusted is None else delta.p_adjusted
    return RowWords(
        row=row,
        name=row_title(row),
        before=format_score(row.a),
        after=format_score(row.b),
        change=format_difference(delta.value or 0.0),
        interval=interval_text(delta),
        p="" if p is None else format_p(p),
        tests=delta.clusters,
        power=power_text(delta, detect) if row.verdict is not DifferenceVerdict.IDENTICAL else "",
    )


def _print_rows(rows: Sequence[ComparedRow], found: RunComparison, console: Console, arrow: str) -> None:
    shown = [row_words(row, found.detect) for row in rows]
    if console.width < _NARROW:
        for words in shown:
            line = Text(f"{words.name}: {_in_a_line(words, arrow)}", style=_STYLES[words.verdict])
            print_hanging(Text(), line, console, indent=1)
        return
    is_wide = console.width >= _WIDE
    table = plain_table(console)
    table.add_column("", overflow="fold")
    for heading in (f"A {arrow} B", "change", "95 % interval", f"p ({_ADJUSTED[found.adjust]})"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for words in shown:
        said = Text(words.verdict.value, style=_STYLES[words.verdict])
        if is_wide and words.power:
            said.append(f"; {words.power}", style="dim")
        means = f"{words.before} {arrow} {words.after}"
        table.add_row(Text(words.name), means, words.change, words.interval, words.p, said)
    print_trimmed(indented(table), console)
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
    if flip.assertion is not None:
        said += f": {one_line(flip.assertion, _NAME_WIDTH)}"
    return f"{said}: {flip.reason}" if flip.reason else said


def overall_text(row: ComparedRow, arrow: str) -> str:
    """Return the pass rate of all columns together: `pass rate 0.62 → 0.70, +0.08 [+0.02, +0.14], p 0.012, better`."""
    words = row_words(row, 0.0)
    return f"{words.name} {_in_a_line(words, arrow)}"


def flip_count(row: ComparedRow) -> int:
    """Return how many tests flipped; a summary lists only the first of many."""
    return (row.broken or 0) + (row.fixed or 0)


def flips_text(row: ComparedRow) -> str:
    """Return how many tests broke and were fixed, with the p-value of that where it has one."""
    counts = f"{row.broken or 0:,} broken, {row.fixed or 0:,} fixed"
    return counts if row.mcnemar_mid_p is None else f"{counts} (McNemar mid-p {format_p(row.mcnemar_mid_p)})"


def run_name(run: ComparedRun) -> str:
    """Return the name of a side: its id or file, its title, the config, and when it began."""
    name = run.id if run.id and run.name in {"", run.id} else f"{run.name} ({run.id})" if run.id else run.name
    parts = [
        name,
        one_line(run.title or "", _NAME_WIDTH),
        run.config_path,
        run.started_at[:16].replace("T", " "),
    ]
    return sanitize("  ".join(part for part in parts if part))


def _paired(found: RunComparison) -> str:
    parts = [f"{plural(found.paired, 'test')} paired"]
    parts += [
        f"{count:,} only in {name}" for name, count in (("A", found.only_a), ("B", found.only_b)) if count
    ]
    return ", ".join(parts)


def changes_text(found: RunComparison) -> str:
    """Return what is different in the configs of two runs: `Changed from A to B: the text of the prompt`."""
    if not found.changes:
        return "No change of prompts, models, judges, criteria, thresholds or tests is known"
    return f"Changed from A to B: {'; '.join(found.changes)}"


def power_text(delta: Delta, detect: float) -> str:
    """Return which difference the tests would show, and how many tests `detect` needs.

    "" where too few tests differ, so that nothing is known of how much they vary.
    """
    if too_few := too_few_text(delta):
        return f"too few tests: {too_few}"
    parts = []
    if delta.mde is not None:
        parts.append(f"detects {format_score(delta.mde)} or more (80 % power)")
    if detect and delta.needed_tests is not None:
        parts.append(needed_text(delta.needed_tests, detect))
    return "; ".join(parts)


def needed_text(count: int, detect: float) -> str:
    """Return how many tests it takes to show a difference of `detect`: `0.05 would need about 790 tests`."""
    return f"{detect:g} would need {estimated(count)} {'test' if count == 1 else 'tests'}"


def interval_text(delta: Delta) -> str:
    """Return `[-0.02, +0.16]`; "" without an interval."""
    return "" if delta.interval is None else f"[{', '.join(map(format_difference, delta.interval))}]"


def comparison_markdown(found: RunComparison, *, heading: str = "# geval: comparison") -> str:
    """Return the comparison as Markdown, in which nothing from a model or config is markup."""
    lines = [heading, "", f"**{code_span(found.headline)}**", "", code_span(changes_text(found)), ""]
    lines += [f"A: {code_span(run_name(found.a))}  ", f"B: {code_span(run_name(found.b))}", ""]
    lines += [f"{_paired(found)}. p: {_ADJUSTED[found.adjust]}.", ""]
    if found.overall is not None:
        said = overall_text(found.overall, "→").replace("<", "&lt;")
        lines += [f"All columns together: {said}.", ""]
    lines += [f"- {kind}: {code_span(text)}" for kind, text in _remarks(found)]
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
        words = row_words(row, found.detect)
        is_shown = row.verdict in {
            DifferenceVerdict.BETTER,
            DifferenceVerdict.WORSE,
            DifferenceVerdict.EQUIVALENT,
        }
        rows.append(
            (
                code_span(words.name),
                *((code_span(one_line(row.column, _NAME_WIDTH)),) if several else ()),
                words.before,
                words.after,
                words.change,
                words.interval,
                words.p.replace("<", "&lt;"),
                f"**{row.verdict.value}**" if is_shown else row.verdict.value,
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


def _remarks(found: RunComparison) -> Iterable[tuple[str, str]]:
    yield from (("warning", text) for text in found.warnings)
    yield from (("note", text) for text in found.notes)


def _flips_markdown(row: ComparedRow, room: int, *, several: bool) -> list[str]:
    where = f" {code_span(one_line(row.column, _NAME_WIDTH))}" if several else ""
    lines = [f"**{flips_text(row).replace('<', '&lt;')}**{where}", ""]
    for flip in row.flipped[:room]:
        lines.append(f"- {flip.was.value} → {flip.became.value}: {code_span(_flip_text(flip))}")
    hidden = flip_count(row) - min(room, len(row.flipped))
    if hidden:
        lines.append(f"- and {hidden:,} more")
    return [*lines, ""]


def print_baseline(comparison: JsonValue, console: Console) -> None:
    """Print the comparison in a run's summary; nothing for a run without a baseline."""
    if comparison is None:
        return
    found = baseline_of(comparison)
    if isinstance(found, str):
        console.print()
        print_hanging(Text("baseline  ", style="dim"), Text(found, style="yellow"), console, indent=1)
        return
    print_comparison(found, console, most_flips=_FLIPS_BESIDE)


def baseline_markdown(comparison: JsonValue) -> str:
    """Return the comparison in a run's summary as a section of its page; "" without one."""
    if comparison is None:
        return ""
    found = baseline_of(comparison)
    if isinstance(found, str):
        return f"- warning: {code_span(found)}\n"
    return comparison_markdown(found, heading="## Compared with the baseline")


def baseline_of(comparison: JsonValue) -> RunComparison | str:
    """Return the comparison in a run's summary, or why there is none."""
    try:
        return comparison_from_json(comparison)
    except ValueError:
        said = comparison.get("error") if isinstance(comparison, dict) else None
        return sanitize(
            str(said or "the comparison was made by another version of geval: see `geval compare`")
        )
