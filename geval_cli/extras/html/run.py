"""One run for the templates: its totals, its results as a matrix with a row per test, and its cases in detail.

Markdown of a model becomes harmless markup: no HTML of its own, no images, links to web pages and mail addresses only.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from markupsafe import Markup, escape
from msgspec import Struct

from geval_cli.engine.columns import column_name
from geval_cli.extras.html import drawing as svg
from geval_cli.extras.html.drawing import Chart
from geval_cli.extras.html.environment import short_text, shown_text
from geval_cli.extras.run_pages import Facet, Repeats, ResultFilter, ResultRow, SortOrder
from geval_cli.metrics import WORST_FIRST, metric_verdicts, with_members
from geval_cli.numbers import format_percentage, format_score, format_share
from geval_cli.records import (
    CaseResult,
    Column,
    ColumnSummary,
    JsonValue,
    Message,
    MetricStat,
    RunStatus,
    RunSummary,
    Status,
    Usage,
)
from geval_cli.report.case_view import (
    CaseView,
    JudgeVerdict,
    calls_of,
    case_reason,
    case_title,
    conversation_of,
    failed_assertions,
    failure_figure,
    has_fallback,
    whole_reason,
)
from geval_cli.report.columns import column_table, cost_note, leader_text, metric_names, share_text
from geval_cli.report.report import RunReport, informative_metrics, run_title
from geval_cli.report.sanitize import one_line, sanitized_lines, value_text
from geval_cli.report.verdict import (
    derived_rows,
    gate_value,
    ranking_note,
    ranking_rows,
    run_outcome,
    shown_gates,
    whole_titles,
)

_CHARACTERS_MAX = 50_000
_SIGNS = re.compile(
    r"^ {0,3}(?:#{1,6} |[-*+] |\d{1,9}[.)] |> |```|~~~|\|.*\|)|\*\*\S|__\S|~~\S|`[^`\n]+`|\]\("
    r"|^ {0,3}(?:-{3,}|\*{3,})\s*$",
    re.MULTILINE,
)
_TASK = re.compile(r"\[([ xX])\]\s+")
_WEB = re.compile(r"(?:https?://|mailto:)", re.IGNORECASE)


def rendered_markdown(text: str) -> Markup | None:
    """Return Markdown as HTML; None for a text without any sign of Markdown, or a very long one."""
    if len(text) > _CHARACTERS_MAX or not _SIGNS.search(text):
        return None
    return Markup(_parser().render("\n".join(sanitized_lines(text))))


class _Renderer(RendererHTML):
    """Writes an image as its description, so that nothing is fetched."""

    def image(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        alt = self.renderInlineAsText(tokens[idx].children or [], options, env)
        return f'<span class="muted">[image: {escape(alt or tokens[idx].attrs.get("src", ""))}]</span>'

    def th_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        # The page's policy refuses styles in attributes.
        align = str(tokens[idx].attrs.pop("style", "")).removeprefix("text-align:")
        if align:
            tokens[idx].attrSet("class", f"is-{align}")
        return self.renderToken(tokens, idx, options, env)

    td_open = th_open

    def task_box(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        sign, word = ("☑", "done") if tokens[idx].content == "x" else ("☐", "to do")
        return f'<span class="task-box" role="img" aria-label="{word}">{sign}</span> '

    def link_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        tokens[idx].attrSet("rel", "noopener noreferrer nofollow")
        return self.renderToken(tokens, idx, options, env)


def _tasks(state: StateCore) -> None:
    """Turn `[ ]` and `[x]` at the beginning of list items into boxes."""
    for item, paragraph, inline in zip(state.tokens, state.tokens[1:], state.tokens[2:], strict=False):
        if (item.type, paragraph.type) != ("list_item_open", "paragraph_open") or not inline.children:
            continue
        text = inline.children[0]
        found = _TASK.match(text.content) if text.type == "text" else None
        if found:
            text.content = text.content[found.end() :]
            inline.children.insert(0, Token("task_box", "", 0, content=found[1].strip().lower()))
            item.attrSet("class", "task")


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "linkify": False}, renderer_cls=_Renderer)
    parser.enable(["table", "strikethrough"])
    parser.core.ruler.push("tasks", _tasks)
    # A refused link stays plain text.
    parser.validateLink = lambda url: _WEB.match(url.strip()) is not None  # type: ignore[method-assign]
    return parser


_BAR_WIDTH, _BAR_GAP, _BAR_HEIGHT = 24, 12, 72
_SCALE_MAX = 21
_ARGUMENTS_ON_A_LINE = 72


def rating_bars(verdicts: Sequence[JudgeVerdict]) -> Chart | None:
    """Return a chart of how likely the judge found each rating; the mean of several judges that rate on one scale."""
    found = [dict(_on_scale(item.shares, item.detail.get("score_range"))) for item in verdicts]
    if not all(found) or len({tuple(shares) for shares in found}) > 1:
        return None
    shares = {rating: sum(shares[rating] for shares in found) / len(found) for rating in found[0]}
    highest = max(shares.values())
    marks = []
    for number, (rating, share) in enumerate(shares.items()):
        x = number * (_BAR_WIDTH + _BAR_GAP) + _BAR_GAP // 2
        height = round(_BAR_HEIGHT * share / highest, 1)
        top = _BAR_HEIGHT - height
        middle = x + _BAR_WIDTH // 2
        bar = svg.element("text", format_share(share), class_="spread-share", x=middle, y=top + 12)
        bar += svg.rect(x, top + 17, _BAR_WIDTH, height, "fill is-accent", 2)
        bar += svg.element("text", svg.escape(one_line(rating, 6)), x=middle, y=_BAR_HEIGHT + 33)
        marks.append(svg.mark(bar, f"rating {rating}: {format_share(share)}"))
    judges = "the judge" if len(verdicts) == 1 else "the judges"
    title = f"How likely {judges} found each rating{'' if len(verdicts) == 1 else ', on average'}"
    said = ", ".join(f"rating {rating}: {format_share(share)}" for rating, share in shares.items())
    width = len(shares) * (_BAR_WIDTH + _BAR_GAP)
    return Chart("", title, said, height=_BAR_HEIGHT + 36, marks=marks, width=width)


def _on_scale(shares: list[tuple[str, float]], bounds: JsonValue) -> list[tuple[str, float]]:
    """Add the ratings without a share, if the scale is short and of whole numbers."""
    match bounds:
        case [int() | float() as low, int() | float() as high] if 0 < high - low < _SCALE_MAX:
            scale = {f"{low + step:g}": 0.0 for step in range(int(high - low) + 1)}
            found = dict(shares)
            if found.keys() <= scale.keys():
                return [(rating, found.get(rating, 0.0)) for rating in scale] if found else []
    return shares


def chat_messages(rendered: str) -> list[Message]:
    """Return the messages of a rendered chat prompt; empty for a prompt that is plain text."""
    try:
        items = json.loads(rendered)
    except (ValueError, RecursionError):
        return []
    is_chat = isinstance(items, list) and all(
        isinstance(item, dict) and isinstance(item.get("role"), str) and "content" in item for item in items
    )
    return [Message(item["role"], _content_text(item["content"])) for item in items] if is_chat else []


def whole_output(result: CaseResult) -> str:
    """Return the output for display: text as it is, anything else as indented JSON, followed by the tool calls."""
    calls = (shown_text(call.line) for call in calls_of(result))
    return "\n".join([shown_text(_indented(result.output)), *calls])


def json_block(value: JsonValue) -> str:
    """Return a value for a block of its own: on one line if it is short, else as indented JSON."""
    line = value_text(value)
    return shown_text(line if len(line) <= _ARGUMENTS_ON_A_LINE else _indented(value))


def _indented(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2, default=repr)


def usage_rows(result: CaseResult) -> list[tuple[str, Usage]]:
    """Return a row of usage for each role that sent requests."""
    names = {"generation": "Model", "judge": "Judge", "user": "Simulated user"}
    return [(names[role.value], usage) for role, usage in result.usage.items() if usage.requests]


def _content_text(content: JsonValue) -> str:
    if isinstance(content, list):
        return "\n".join(_part_text(part) for part in content)
    return "" if content is None else json_block(content)


def _part_text(part: JsonValue) -> str:
    if isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return str(part["text"])
    return json_block(part)


def case_values(
    result: CaseResult, row: Sequence[CaseResult], title: str, repeats: Sequence[CaseResult] = ()
) -> dict[str, Any]:
    """Return the values for the template `case_detail.html`.

    `row` are all results of its test and repeat, `repeats` those of its test and column.
    """
    said_in_turns = {(turn.role, turn.content) for turn in result.turns}
    messages = chat_messages(result.prompt.rendered)
    others = [item for item in messages if (item.role, item.content) not in said_in_turns]
    view = CaseView(result)
    return {
        "case": result,
        "view": view,
        "whole_reason": whole_reason(result),
        "ends_with_output": bool(result.turns) and result.turns[-1].content == result.output,
        "title": title,
        "siblings": row if len(row) > 1 else (),
        "repeats": repeats if len(repeats) > 1 else (),
        "has_fallback": has_fallback(result.assertions),
        "messages": others,
        "turns": conversation_of(result.turns),
        "shows_prompt": not messages or bool(others),
        "output": whole_output(result),
        "rendered": rendered_markdown(result.output) if isinstance(result.output, str) else None,
        "media": view.media,
        "usage": usage_rows(result),
        "rating_bars": rating_bars,
        "json_block": json_block,
    }


ROWS_PER_PAGE = 50
_CHIPS_MAX = 6
_VARIABLES_MAX = 4
_TITLE_WIDTH, _NAME_WIDTH = 160, 24


class MetricChip(Struct, frozen=True):
    """One metric of a case; its score is None if nothing was scored."""

    name: str
    status: Status
    score: float | None


class Cell(Struct, frozen=True):
    """The repeats of one test in one column, by their own verdicts or by those on the chosen metric.

    Attributes:
        result: the repeat that is shown: the worst of those that passed the filter.
        status: of that repeat, like the other figures.
        matches: whether a repeat passed the filter.
        tally: how many repeats passed, `1/2`; empty without repeats.
        is_flaky: whether some repeats passed and others failed.
        chips: its first metrics; `chips_hidden` more are left out.
        figure: what is shown beside the verdict: the score; for a failed case the name and score of the worst failed
            assertion, and how many others failed.
        reason: of that assertion, or the error; empty for a case without a problem. With a metric, the reason for that
            metric.
    """

    result: CaseResult
    status: Status
    figure: str
    matches: bool
    has_fallback: bool
    chips: tuple[MetricChip, ...]
    chips_hidden: int
    reason: str
    tally: str = ""
    is_flaky: bool = False


class ColumnHead(Struct, frozen=True):
    """The heading of a column; without figures while the run is in progress.

    Attributes:
        counts: of its results by their status on the chosen metric; None without one.
        means: its metrics with their means, or only the chosen one.
    """

    column: Column
    figures: ColumnSummary | None
    counts: Mapping[Status, int] | None = None
    means: tuple[tuple[str, MetricStat], ...] = ()

    @property
    def cases(self) -> int:
        """The number of cases that were judged."""
        if self.counts is not None:
            return self.counts.get(Status.PASSED, 0) + self.counts.get(Status.FAILED, 0)
        return 0 if self.figures is None else self.figures.passed + self.figures.failed

    @property
    def rate(self) -> str:
        """The share of judged cases that passed, on the chosen metric if there is one."""
        if self.counts is not None:
            return format_percentage(self.counts.get(Status.PASSED, 0), self.cases)
        return "" if self.figures is None else share_text(self.figures.pass_rate)


class Row(Struct, frozen=True):
    """One test of the matrix: its title, its variables, and its cells by column.

    `is_named` is whether the title is more than its variables.
    """

    test_index: int
    title: str
    is_named: bool
    variables: Mapping[str, JsonValue]
    cells: Mapping[int, Cell]


class Matrix(Struct, frozen=True):
    """The page of a matrix that is shown, with the filter that led to it.

    Attributes:
        rows: of this page; `rows_total` counts those of all pages.
        page: counted from 1, out of `pages_total`.
        variables: the names of those that have a column; the page of a case has all.
        counts: of all results by their status on the chosen metric; None without one.
    """

    heads: tuple[ColumnHead, ...]
    rows: tuple[Row, ...]
    rows_total: int
    wanted: ResultFilter
    sort: SortOrder
    facets: tuple[Facet, ...]
    page: int
    pages_total: int
    variables: tuple[str, ...] = ()
    counts: Mapping[Status, int] | None = None

    @property
    def chosen(self) -> Mapping[str, str]:
        """The metadata values that are filtered by, by name."""
        return dict(self.wanted.metadata)

    @property
    def choice_words(self) -> list[str]:
        """The selection made by a drawing's mark, besides status and metric, in words."""
        return choice_words(self.wanted, [head.column for head in self.heads])


def choice_words(wanted: ResultFilter, columns: Sequence[Column]) -> list[str]:
    """Return in words what a mark of a drawing selected besides status and metric."""
    words = [] if wanted.test is None else [f"of test {wanted.test + 1:,}"]
    if wanted.repeats is not None:
        words.append(_REPEATS_WORDS[wanted.repeats])
    if wanted.column is not None:
        named = [item for item in columns if item.index == wanted.column]
        words.append(f"in {column_name(named[0])}" if named else f"in column {wanted.column + 1:,}")
    words += _range_words("with a score", wanted.low, wanted.high)
    if wanted.metric is not None:
        joint = "and " if (wanted.low, wanted.high) != (None, None) else ""
        if (wanted.label_low, wanted.label_high) == (0.0, None):
            words.append("with human labels")
        else:
            words += _range_words(f"{joint}with a mean label", wanted.label_low, wanted.label_high)
    return words


_REPEATS_WORDS = {
    Repeats.PASSED: "whose repeats all passed",
    Repeats.MIXED: "whose repeats had different verdicts",
    Repeats.FAILED: "whose repeats all failed",
}


def _range_words(what: str, low: float | None, high: float | None) -> Iterator[str]:
    """Yield `with a score from 0.50` and `to below 0.55`, for the bounds that are set."""
    if low is not None:
        yield f"{what} from {format_score(low)}"
    if high is not None:
        joint = "to" if low is not None else what
        yield f"{joint} {'' if high == 1 else 'below '}{format_score(high)}"


def heads_of(
    columns: Iterable[Column],
    summary: RunSummary,
    metric: str | None = None,
    counts: Mapping[tuple[int, Status], int] | None = None,
) -> tuple[ColumnHead, ...]:
    """Return the headings of the columns, with their figures if the summary has them.

    `counts` are those on `metric`.
    """
    figures = dict(enumerate(summary.columns))
    return tuple(_head(column, figures.get(column.index), metric, counts) for column in columns)


def _head(
    column: Column,
    figures: ColumnSummary | None,
    metric: str | None,
    counts: Mapping[tuple[int, Status], int] | None,
) -> ColumnHead:
    own = None if counts is None else {status: counts.get((column.index, status), 0) for status in Status}
    names = (figures.metrics if figures else {}) if metric is None else (metric,)
    means = tuple((name, figures.metrics[name]) for name in names if figures and name in figures.metrics)
    return ColumnHead(column, figures, own, means)


def status_sums(counts: Mapping[tuple[int, Status], int]) -> Mapping[Status, int]:
    """Return the counts of all columns together."""
    return {status: sum(n for (_, found), n in counts.items() if found is status) for status in Status}


def first_variables(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the variables that get a column of their own; the page of a case has all."""
    return tuple(islice(dict.fromkeys(names), _VARIABLES_MAX))


def columns_of(columns: tuple[Column, ...], rows: Iterable[ResultRow]) -> list[Column]:
    """Return the columns of the run, or those of its results if its record has none."""
    if columns:
        return list(columns)
    results = {index: found[0] for row in rows for index, found in row.cells.items()}
    return [Column(index, item.prompt.label, item.provider.label) for index, item in sorted(results.items())]


def row_title(result: CaseResult) -> str:
    """Return the title of a test on pages."""
    return case_title(result, _TITLE_WIDTH)


def shown_row(row: ResultRow, metric: str | None) -> Row:
    """Return a row with its cells by column."""
    first = next(iter(row.cells.values()))[0]
    cells = {
        column: cell_of(
            results, metric, [item for item in results if (item.repeat_index, column) in row.matching]
        )
        for column, results in row.cells.items()
    }
    return row_of(first, cells)


def row_of(first: CaseResult, cells: Mapping[int, Cell]) -> Row:
    """Return the row of a test that `first` is a result of."""
    return Row(first.test_index, row_title(first), bool(first.description), first.vars, cells)


def cell_of(
    results: Sequence[CaseResult], metric: str | None = None, matching: Sequence[CaseResult] | None = None
) -> Cell:
    """Return the cell of a test's repeats in one column, by their verdicts on `metric` if they have it."""
    verdicts = [(_verdict(result, metric), result) for result in results]
    fitting = [item for item in verdicts if matching is None or item[1] in matching] or verdicts
    (status, figure), result = min(fitting, key=lambda item: WORST_FIRST.index(item[0][0]))
    found = Counter(status for (status, _), _ in verdicts)
    chips = chips_of(result)
    return Cell(
        result=result,
        status=status,
        figure=figure,
        matches=matching is None or bool(matching),
        has_fallback=has_fallback(result.assertions),
        chips=tuple(chips[:_CHIPS_MAX]),
        chips_hidden=max(len(chips) - _CHIPS_MAX, 0),
        reason=first_reason(result, metric),
        tally=f"{found[Status.PASSED]}/{len(results)}" if len(results) > 1 else "",
        is_flaky=bool(found[Status.PASSED] and found[Status.FAILED]),
    )


def _verdict(result: CaseResult, metric: str | None) -> tuple[Status, str]:
    chips = () if metric is None else chips_of(result)
    chosen = next((chip for chip in chips if chip.name == metric), None)
    if chosen is None and result.status is Status.FAILED and (failed := failed_assertions(result)):
        name = short_text(failed[0].metric or failed[0].type, _NAME_WIDTH)
        others = f"+{len(failed) - 1}" if len(failed) > 1 else ""
        return result.status, " ".join(filter(None, (name, failure_figure(failed[0]), others)))
    status, score = (result.status, result.score) if chosen is None else (chosen.status, chosen.score)
    return status, "" if score is None else format_score(score)


def chips_of(result: CaseResult) -> list[MetricChip]:
    """Return the metrics of a case in the order of its assertions, each with the worst status of these."""
    return [MetricChip(name, *verdict) for name, verdict in metric_verdicts(result).items()]


def first_reason(result: CaseResult, metric: str | None = None) -> str:
    """Return why a case has its verdict; with a metric, the reason for that, even if it passed."""
    own = [
        item
        for item, _ in with_members(result.assertions)
        if metric is not None and item.metric == metric and not item.assertions
    ]
    if result.error is not None or not own:
        return case_reason(result)
    first = min(own, key=lambda item: WORST_FIRST.index(item.status))
    return (first.reason or "") if first.error is None else first.error.message


_FLAKY_SHOWN = 20


def run_values(report: RunReport) -> dict[str, Any]:
    """Return the values for the templates `run_head.html` and `run_summary.html`."""
    run, summary = report.run, report.summary
    titles = whole_titles(run.columns)
    # In a finished run, columns are named as in the table that compares them.
    titles |= {column.index: item.label for column, item in zip(run.columns, summary.columns, strict=False)}
    names = metric_names(summary.columns)
    heading, rows = column_table(summary.columns, [column.label for column in summary.columns])
    return {
        "run": run,
        "summary": summary,
        "config_name": run_title(run),
        "description": _description(report),
        "is_live": run.status is RunStatus.RUNNING,
        "statuses": status_counts(summary),
        "gates": [(gate, gate_value(gate)) for gate in shown_gates(summary.gates)],
        "derived": list(derived_rows(report, titles)),
        "flaky": summary.flaky[:_FLAKY_SHOWN],
        "flaky_hidden": summary.flaky_count - len(summary.flaky[:_FLAKY_SHOWN]),
        "column_titles": titles,
        "table": (
            # Terms that contain a number are not capitalised: `pass@3`, `p50`.
            [
                name if name in names or re.match(r"[^\d\s]+\d", name) else name[:1].upper() + name[1:]
                for name in heading
            ],
            rows,
        ),
        "leader": re.sub(
            "^no ", "No ", leader_text(summary.columns, [column.label for column in summary.columns])
        ),
        "outcome": run_outcome(report.run, report.summary),
        "cost_note": cost_note(summary.columns),
        "metrics": informative_metrics(summary),
        "rankings": [
            (
                name,
                [
                    (f"{place}. {one_line(label, 160)}".removeprefix(". "), *figures)
                    for place, label, *figures in ranking_rows(entries)
                ],
                ranking_note(summary, name),
            )
            for name, entries in summary.rankings.items()
        ],
    }


def status_counts(summary: RunSummary) -> list[tuple[Status, int]]:
    """Return the four outcomes with their counts, the worst first."""
    return [
        (Status.FAILED, summary.failed),
        (Status.ERROR, summary.errored),
        (Status.PASSED, summary.passed),
        (Status.NOT_EVALUATED, summary.not_evaluated),
    ]


def _description(report: RunReport) -> str | None:
    if report.run.description is not None:
        return report.run.description
    config = report.run.config
    found = config.get("description") if isinstance(config, dict) else None
    return found if isinstance(found, str) else None
