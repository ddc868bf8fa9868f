"""`geval label`: a person rates a run's outputs with single keys, and sees afterwards where the judge disagrees."""

import getpass
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct
from rich.console import Console
from rich.text import Text

from geval_cli.cli.keyboard import Keyboard, go_through, is_terminal, keyboard
from geval_cli.cli.options import check_idle
from geval_cli.cli.problems import print_warnings
from geval_cli.errors import UsageError
from geval_cli.extras.run_pages import RunPages, ShownCriterion
from geval_cli.extras.trust.labelling import (
    GivenLabel,
    LabelChoice,
    Output,
    Reviewed,
    Sheet,
    label_row,
    labels_to_keep,
    outputs_to_label,
    pairs_to_label,
    parts_to_read,
    removed_run,
    review,
    rows_of_sheet,
    scales_of,
    stored_label,
)
from geval_cli.extras.trust.labels import UNIT_SCALE, Scale, check_is_new, draw_name, write_labels
from geval_cli.extras.trust.matching import judged_items
from geval_cli.extras.trust.options import LabelCommand
from geval_cli.metrics import with_members
from geval_cli.numbers import fixed, format_score, plural
from geval_cli.records import CaseResult
from geval_cli.report.console import make_console, print_hanging, print_rows
from geval_cli.report.json_file import json_text
from geval_cli.report.report import RunReport
from geval_cli.report.sanitize import (
    clipped_lines,
    home_option,
    one_line,
    quoted,
    sanitized_lines,
    value_text,
)
from geval_cli.runs.stored import is_results_file, load_report, open_reports
from geval_cli.store.home import current_folder, home_folder
from geval_cli.store.runs import RunLabels, RunStore, StoredLabel
from geval_cli.store.state import open_runs

_REVIEWED = 20
_WIDE = 100
_LINES, _CHARACTERS = 60, 12_000
_FEW_LINES, _FEW_CHARACTERS = 20, 2_000
_ONE_KEY = 9
_ANNOTATOR = 40


class _Opened(Struct, frozen=True):
    """The run to label, or a pair of runs, with the stored labels and a way to read a single output again."""

    name: str
    reports: Sequence[RunReport]
    labels: RunLabels
    fetch: Callable[[Output], CaseResult]

    def kept(self) -> list[StoredLabel]:
        """Return the labels stored for the runs."""
        return [label for report in self.reports for label in self.labels.of_run(report.run.id)]


@contextmanager
def _opened(name: str, home: Path | None) -> Iterator[_Opened]:
    names = [part.strip() for part in name.split(",")]
    if len(names) > 2 or not all(names):  # noqa: PLR2004
        raise UsageError(
            f"`{name}` is neither a run nor a pair of runs", hint="write RUN, or A,B for two runs"
        )
    if any(map(is_results_file, names)):
        with open_reports(names, home, os.environ) as (reports, _):
            results = {
                (report.run.id, result.id): result for report in reports for result in report.results()
            }
            runs = RunStore.open(home_folder(home, env=os.environ, cwd=current_folder()))
            try:
                yield _Opened(name, reports, runs.labels(), lambda output: results[output.run, output.id])
            finally:
                runs.close()
        return
    with open_runs(home, os.environ) as runs:
        print_warnings(runs.warnings)
        pages = RunPages(runs)

        def fetch(output: Output) -> CaseResult:
            row = pages.row(output.run, output.test_index, output.repeat_index)
            return next(result for result in row if result.column == output.column)

        yield _Opened(name, [load_report(runs, part) for part in names], runs.labels(), fetch)


def run_label(name: str, given: LabelCommand) -> None:
    """Label a run, or export, import or review its labels.

    Raises:
        UsageError: there is no such run or metric, the options contradict each other, or there is no terminal.
        ConfigError: a file of labels is broken.
        StoreError: labels cannot be stored.
    """
    actions = {
        "--export": given.export is not None,
        "--import": given.read is not None,
        "--review": given.review,
    }
    asked = [flag for flag, is_given in actions.items() if is_given]
    if len(asked) > 1:
        raise UsageError(f"{asked[0]} and {asked[1]} cannot be combined", hint="use one of them")
    if given.next is not None and (given.draw is not None or given.read is not None or given.review):
        other = "--draw" if given.draw is not None else asked[0]
        raise UsageError(f"--next and {other} cannot be combined", hint="use one of them")
    if given.as_json and not given.review:
        raise UsageError("--json needs --review", hint="add --review, or --export FILE.jsonl")
    if given.read is None:
        check_idle(given, {"allow_unmatched"}, without="--import")
    else:
        check_idle(given, {"draw", "seed", "metrics", "scale", "shows_verdict"}, beside="--import")
    if given.review:
        check_idle(given, {"draw", "seed", "scale", "shows_verdict", "annotator"}, beside="--review")
    if given.export is not None:
        check_idle(given, {"shows_verdict"}, beside="--export")
    if given.draw is None and given.next is None:
        check_idle(given, {"seed"}, without="--draw")
    if given.export is not None:
        check_is_new(given.export, "--export", "; import the filled-in sheet with `--import`")
    if given.export is not None and _exported_without_run(name, given, given.export):
        return
    with _opened(name, given.home) as opened:
        if given.read is not None:
            _import(opened, given.read, given)
            return
        kept = opened.kept()
        if given.review:
            _show_review(opened, given)
            return
        choice = LabelChoice(given.metrics, given.draw, given.seed)
        if given.next is not None:
            choice = LabelChoice(given.metrics, given.next, given.seed, kept)
        report, *others = opened.reports
        if others and given.next is not None:
            hint = f"draw tests of both runs: geval label {name} --draw {given.next}"
            raise UsageError("--next takes one run", hint=hint)
        if others:
            sheet = pairs_to_label(report, others[0], choice)
        else:
            sheet = outputs_to_label(report.results(), choice, report.run.id)
        scales = scales_of({item.metric for item in sheet.outputs}, kept, given.scale)
        if given.export is not None:
            _export(opened, sheet, scales, kept, given)
            return
        _rate(_Session(opened, sheet, scales, _annotator(given), _drawn(given)), given)


def _drawn(given: LabelCommand) -> str:
    return "" if given.draw is None else draw_name(given.seed)


def _annotator(given: LabelCommand) -> str:
    if given.annotator is not None:
        return given.annotator.strip()
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # no such user on this machine, as in many containers
        return ""


def _exported_without_run(name: str, given: LabelCommand, path: Path) -> bool:
    """Write the labels of a run that was deleted; return False if `name` is not such a run."""
    if is_results_file(name) or "," in name:
        return False
    with open_runs(given.home, os.environ) as runs:
        print_warnings(runs.warnings)
        removed = removed_run(runs, name)
        if removed is not None:
            _write(path, [item.row for item in runs.labels().of_run(removed)], "label")
    return removed is not None


def _export(
    opened: _Opened,
    sheet: Sheet,
    scales: Mapping[str, Scale],
    kept: Sequence[StoredLabel],
    given: LabelCommand,
) -> None:
    metrics = {item.metric for item in sheet.outputs}
    is_sheet = given.draw is not None or sheet.weights or not any(item.metric in metrics for item in kept)
    by = None if given.annotator is None else given.annotator.strip()
    if is_sheet:
        rows = list(
            rows_of_sheet(
                sheet, kept, scales=scales, fetch=opened.fetch, drawn=_drawn(given), annotator=by or ""
            )
        )
        if sheet.weights:  # the draw depends on the stored labels and is valid only together with them
            rows = [item.row for item in kept if item.metric in metrics] + rows
    else:
        rows = [item.row for item in kept if item.metric in metrics and by in (None, item.annotator)]
    if given.export is not None:
        _write(given.export, rows, "row" if is_sheet else "label", _fewer(sheet, given))


def _write(path: Path, rows: Sequence[Mapping[str, object]], what: str, fewer: str = "") -> None:
    write_labels(path, rows)
    waiting = sum(row.get("label") is None for row in rows)
    more = f", {waiting:,} of them still empty" if waiting else ""
    sys.stdout.write(f"wrote {plural(len(rows), what)} to {one_line(str(path), 200)}{more}{fewer}\n")


def _import(opened: _Opened, path: Path, given: LabelCommand) -> None:
    by_run = labels_to_keep(
        path,
        opened.reports,
        annotator=(given.annotator or "").strip(),
        allow_unmatched=given.allow_unmatched,
    )
    labels = [label for found in by_run.values() for label in found]
    kept = opened.kept()
    for metric, scale in scales_of({item.metric for item in labels}, labels).items():
        scales_of([metric], kept, scale)
    changed = 0
    for run_id, found in by_run.items():
        before = {_key(item): item.row["label"] for item in opened.labels.of_run(run_id)}
        changed += sum(before.get(_key(item), item.row["label"]) != item.row["label"] for item in found)
    for run_id, found in by_run.items():
        opened.labels.put(run_id, found)
    more = f", {changed:,} of them replacing earlier ones by the same annotator" if changed else ""
    sys.stdout.write(f"kept {plural(len(labels), 'label')} for run {', '.join(by_run)}{more}\n")


def _key(label: StoredLabel) -> tuple[str, str, str]:
    return label.case_id, label.metric, label.annotator


class _Session:
    """One annotator at one terminal. Each label is committed before the next output is shown."""

    def __init__(
        self, opened: _Opened, sheet: Sheet, scales: Mapping[str, Scale], annotator: str, drawn: str
    ) -> None:
        self.opened, self.sheet, self.scales = opened, sheet, scales
        self.annotator, self.drawn = annotator, drawn
        self.given = 0

    @property
    def name(self) -> str:
        """Return the runs' ids as commands take them."""
        return one_line(",".join(report.run.id for report in self.opened.reports), 80)

    def found(self, output: Output) -> StoredLabel | None:
        """Return this annotator's label of an output; None if the text has changed since."""
        found = self.opened.labels.find(output.run, output.id, output.metric, self.annotator)
        return found if found is not None and found.output_sha256 == output.output_sha256 else None

    def done(self) -> int:
        """Return how many of the outputs this annotator has labelled."""
        mine = {
            (report.run.id, item.case_id, item.metric, item.output_sha256)
            for report in self.opened.reports
            for item in self.opened.labels.of_run(report.run.id)
            if item.annotator == self.annotator
        }
        return sum(
            (item.run, item.id, item.metric, item.output_sha256) in mine for item in self.sheet.outputs
        )

    def keep(self, output: Output, result: CaseResult, label: float, note: str) -> None:
        """Store a label; it is committed when this returns."""
        [judged] = judged_items([result])
        drawn = self.sheet.draws.get(output.metric, self.drawn)
        weight = self.sheet.weights.get(output.id)
        given = GivenLabel(label, self.scales[output.metric], self.annotator, note, drawn, weight)
        row = label_row(judged, output.metric, output.run, given)
        self.opened.labels.put(output.run, [stored_label(row, self.found(output))])
        self.given += 1


def _rate(session: _Session, given: LabelCommand) -> None:
    """Show one output after the other and store the labels given.

    Raises:
        UsageError: there is no terminal.
    """
    if not is_terminal():
        run = quoted(session.name)
        chosen = " ".join([f"geval label {run}", *_chosen(given, given.next)])
        imports = f"geval label {run} --import sheet.csv{home_option(given.home)}"
        hint = f"{chosen} --export sheet.csv, fill in `label`, then {imports}"
        raise UsageError("geval label needs a terminal", hint=hint)
    console = make_console(sys.stdout, environ=os.environ)
    total = len(session.sheet.outputs)
    done = session.done()
    who = f" by {one_line(session.annotator, _ANNOTATOR)}" if session.annotator else ""
    fewer = _fewer(session.sheet, given)
    labelled = f" {done:,} of {plural(total, 'output')} labelled{who}"
    console.print(Text(f"{labelled}; labels are saved as you go{fewer}"))
    try:
        with keyboard() as keys:
            _Rater(session, keys, console, shows_verdict=given.shows_verdict).run()
    except EOFError:
        pass
    except KeyboardInterrupt:
        _say_goodbye(session, console, given)
        raise
    _say_goodbye(session, console, given)


def _fewer(sheet: Sheet, given: LabelCommand) -> str:
    """Return a remark that there are fewer outputs than were to be drawn; "" if there are enough."""
    found = len({output.id for output in sheet.outputs})
    wanted = given.draw or given.next or 0
    flag = "--next" if given.draw is None else "--draw"
    return f" ({flag} {wanted:,}: only {found:,} found)" if found < wanted else ""


def _resuming(run: str, given: LabelCommand, rest: int) -> str:
    """Return the command that shows this annotator the remaining outputs; with `--next`, as many others."""
    words = ["geval label", quoted(run), *_chosen(given, rest)]
    return " ".join([*words, "--show-verdict"] if given.shows_verdict else words)


def _chosen(given: LabelCommand, count: int | None) -> Iterator[str]:
    """Yield the options that say which outputs are labelled, how and by whom; `count` is the value of `--next`."""
    if given.next is not None:
        yield f"--next {count}"
    if given.draw is not None:
        yield f"--draw {given.draw}"
    if given.seed:
        yield f"--seed {given.seed}"
    yield from (f"--metric {quoted(metric)}" for metric in given.metrics)
    if given.scale is not None:
        yield f"--scale {given.scale[0]:g},{given.scale[1]:g}"
    if given.annotator is not None:
        yield f"--annotator {quoted(given.annotator)}"
    if given.home is not None:
        yield home_option(given.home).strip()


def _say_goodbye(session: _Session, console: Console, given: LabelCommand) -> None:
    total = len(session.sheet.outputs)
    done = session.done()
    run = session.name
    home = home_option(given.home)
    console.print()
    console.print(Text(f" labelled {session.given:,} now, {done:,} of {total:,} in all"))
    if done < total:
        console.print(
            Text(f" {_resuming(run, given, total - done)}  continues where you stopped"), soft_wrap=True
        )
    if done:
        console.print(
            Text(f" geval label {run} --review{home}  shows where the judge differs"), soft_wrap=True
        )
        says = f"geval agree --run {run}{home}  shows how well the judge agrees"
        if len(session.opened.reports) > 1:
            says = f"geval compare {run.replace(',', ' ')} --labels kept{home}  shows which run people prefer"
        console.print(Text(f" {says}"), soft_wrap=True)


class _Rater:
    """The dialogue of a session: what is shown, which keys there are, and what each does."""

    def __init__(self, session: _Session, keys: Keyboard, console: Console, *, shows_verdict: bool) -> None:
        self._session, self._keys, self._console = session, keys, console
        self._shows_verdict = shows_verdict
        self._announced: str | None = None

    def run(self) -> None:
        """Go through the outputs that this annotator has not labelled; "back" returns to those shown before."""
        found, outputs = self._session.found, self._session.sheet.outputs
        go_through(
            len(outputs),
            lambda place: found(outputs[place]) is not None,
            lambda place: self._ask(outputs[place], place),
        )

    def _ask(self, output: Output, place: int) -> str:
        """Show one output and return how the annotator left it: `next`, `back` or `quit`."""
        session = self._session
        result = self._session.opened.fetch(output)
        earlier = session.found(output)
        note = "" if earlier is None else str(earlier.row.get("note") or "")
        self._show(output, result, place, earlier)
        scale = session.scales[output.metric]
        while True:
            key = self._keys.key()
            if key in ("q", "b", "s"):
                return {"q": "quit", "b": "back", "s": "next"}[key]
            if key == "m":
                self._print_lines(sanitized_lines(value_text(result.output)))
            elif key == "n":
                before = f" (now: {one_line(note, 200)})" if note else ""
                self._console.print(Text(f" note{before}: "), end="")
                self._console.file.flush()
                written = self._keys.line().strip()
                self._console.print(Text(" kept with your label; now rate it", style="dim"))
                note = written or note
            elif key in ("?", "h"):
                self._help(scale)
            else:
                label = self._label(key, scale)
                if label is not None:
                    session.keep(output, result, label, note)
                    said = ("pass" if label else "fail") if scale == UNIT_SCALE else f"{label:g}"
                    self._console.print(Text(f" {said}", style="bold"))
                    return "next"

    def _label(self, key: str, scale: Scale) -> float | None:
        """Return the label that a key begins; None if it begins none, or if the number typed is not on the scale."""
        if scale == UNIT_SCALE:
            return {"p": 1.0, "f": 0.0}.get(key)
        if not key or key not in "-.0123456789":
            return None
        low, high = scale
        written = key
        if not _is_keyed(scale):
            self._console.print(Text(f" label from {low:g} to {high:g}, then Enter: "), end="")
            written = self._keys.line().strip() if key in "\r\n" else key + self._typed_on(key)
        try:
            label = float(written)
        except ValueError:
            label = float("nan")
        if low <= label <= high:
            return label
        self._console.print(Text(f" {one_line(written, 20)} is not a label from {low:g} to {high:g}"))
        return None

    def _typed_on(self, key: str) -> str:
        self._console.print(Text(key), end="")
        self._console.file.flush()
        return self._keys.line().strip()

    def _show(self, output: Output, result: CaseResult, place: int, earlier: StoredLabel | None) -> None:
        console = self._console
        total = len(self._session.sheet.outputs)
        console.print()
        console.rule(style="dim")
        number = f"#{result.test_index + 1}" + (f".{result.repeat_index + 1}" if result.repeat_index else "")
        name = one_line(result.description or "", 80)
        head = f" {place + 1:,} of {total:,}   {one_line(output.metric, 60)}   {number} {name}".rstrip()
        console.print(Text(head, style="bold"))
        self._print_criterion(output.metric)
        for title, text in parts_to_read(result, is_blind=self._session.sheet.is_blind):
            console.print(Text(f" {title}", style="dim"))
            self._print_lines(clipped_lines(text, line_count=_FEW_LINES, character_count=_FEW_CHARACTERS))
        console.print(Text(" output", style="dim"))
        text = value_text(result.output)
        self._print_lines(
            clipped_lines(text, line_count=_LINES, character_count=_CHARACTERS) or ["(only white space)"]
        )
        if self._shows_verdict:
            for assertion, _ in with_members(result.assertions):
                if assertion.metric == output.metric:
                    score = format_score(assertion.score)
                    reason = one_line(assertion.reason or "", 400)
                    verdict = Text(f"judge     {assertion.status.value} {score}  ", style="dim")
                    print_hanging(verdict, Text(reason), self._console, indent=1)
        if earlier is not None:
            console.print(Text(f" you said {value_text(earlier.row['label'])} before; s keeps it"))
        self._help(self._session.scales[output.metric])

    def _print_criterion(self, metric: str) -> None:
        """Show the criterion and its steps, unless the previous output had the same metric."""
        if self._announced == metric:
            return
        self._announced = metric
        criterion = self._session.sheet.criteria.get(metric, ShownCriterion())
        if criterion.text:
            body = Text(" ".join(one_line(criterion.text, 2_000).split()))
            print_hanging(Text("look for  ", style="dim"), body, self._console, indent=1)
        for number, step in enumerate(criterion.steps, 1):
            print_hanging(Text(f"{number}. "), Text(one_line(step, 400)), self._console, indent=3)

    def _print_lines(self, lines: Sequence[str]) -> None:
        for line in lines:
            print_hanging(Text(""), Text(line), self._console, indent=3)

    def _help(self, scale: Scale) -> None:
        low, high = scale
        labels = "p pass   f fail" if scale == UNIT_SCALE else f"{low:g} to {high:g}"
        self._console.print(
            Text(f" {labels}   s skip   b back   n note   m more   q quit", style="bold"), soft_wrap=True
        )


def _is_keyed(scale: Scale) -> bool:
    """Return whether every label of a scale is a single key."""
    low, high = scale
    return low >= 0 and high <= _ONE_KEY and low.is_integer() and high.is_integer()


def _show_review(opened: _Opened, given: LabelCommand) -> None:
    rows = [
        row
        for report in opened.reports
        for row in review(report.results(), opened.labels.of_run(report.run.id))
        if not given.metrics or row.metric in given.metrics
    ]
    name = ",".join(report.run.id for report in opened.reports)
    if not rows:
        raise UsageError(f"no labels are kept for run {name}", hint=f"make them with `geval label {name}`")
    rows.sort(key=lambda row: row.order)
    if given.as_json:
        fields = [name for name in Reviewed.__struct_fields__ if name != "output"]
        found = [{name: getattr(row, name) for name in fields} for row in rows]
        document = {"schema_version": 1, "kind": "label_review", "run": name, "rows": found}
        sys.stdout.write(json_text(document, indent=2) + "\n")
        return
    _print_review(rows, make_console(sys.stdout, environ=os.environ))


def _print_review(rows: Sequence[Reviewed], console: Console) -> None:
    flipped = sum(bool(row.is_flipped) for row in rows)
    broken = sum(row.score is None for row in rows)
    heading = (
        f" {plural(len(rows), 'label')}: the judge and the label disagree on {plural(flipped, 'verdict')}"
    )
    console.print(Text(heading + (f"; {broken:,} could not be judged" if broken else "")))
    console.print()
    shown = []
    for row in rows[:_REVIEWED]:
        mark = "" if not row.is_flipped else f"judge {'passed' if row.passed else 'failed'}"
        values = ["-" if value is None else fixed(value, 2) for value in (row.score, row.differ)]
        said = row.note and f"note: {row.note}  "
        names = (one_line(row.id, 20), one_line(row.metric, 24), one_line(row.annotator or "-", 16))
        label = one_line(value_text(row.label), 8)
        text = one_line(said + row.output, 120 if console.width >= _WIDE else 60)
        shown.append((*names, label, *values, mark, text))
    header = ("output", "metric", "who", "label", "judge", "apart", "", "text")
    print_rows(console, "LLLRRRLl", header, shown)
    if len(rows) > _REVIEWED:
        console.print(
            Text(f" and {plural(len(rows) - _REVIEWED, 'more label')}; --json has all", style="dim")
        )
