"""What a run would ask for, as a table for people."""

from rich.console import Console
from rich.text import Text

from geval_cli.engine.forecast import Forecast, ForecastRow
from geval_cli.numbers import format_cost
from geval_cli.records import Role
from geval_cli.report.console import print_hanging, print_trimmed
from geval_cli.report.numbers import format_count, plural
from geval_cli.report.sanitize import one_line
from geval_cli.report.verdict_tables import indented, plain_table

_NAME_WIDTH = 60
_WIDE = 130
_DIGITS = 2  # of a price: the tokens are estimated, too
_PROVIDER_WIDTH = 28
_REMARKS = (
    "A call is one answer; a server that gives several at once needs fewer requests. Repetitions after a failure, or"
    " after a judge's reply that cannot be read, are not counted.",
    "Tokens are estimated at four characters each. Where nothing bounds an answer, its judge is taken to read 200"
    " tokens of it; `max_tokens` in the provider's config sets a bound.",
)


def print_forecast(forecast: Forecast, config: str, console: Console) -> None:
    """Print the table, the totals, and what was assumed."""
    console.print(
        Text(f" {one_line(config, 200)}: {plural(forecast.cases, 'case')}; nothing is sent", style="bold")
    )
    console.print()
    table = plain_table(console)
    table.add_column("provider", overflow="fold", max_width=_PROVIDER_WIDTH)
    table.add_column("what")
    for heading in ("calls", "cached", "tokens in", "tokens out", "price"):
        table.add_column(heading, justify="right")
    is_wide = console.width >= _WIDE
    if is_wide:
        table.add_column("assumption", overflow="fold")
    for row in forecast.rows:
        table.add_row(*_cells(row), *([row.assumption] if is_wide else []))
    if forecast.rows:
        print_trimmed(indented(table), console)
        console.print()
    if not is_wide:
        for what, assumption in dict.fromkeys((_what(row), row.assumption) for row in forecast.rows):
            print_hanging(Text(f" {what}: "), Text(assumption, style="dim"), console, indent=0)
        console.print()
    calls = f"{_span(forecast.least, forecast.most)} calls"
    cached = f", {forecast.cached:,} more answered by the cache" if forecast.cached else ""
    price = _price(forecast.cost_least_usd, forecast.cost_most_usd)
    print_hanging(Text(" in all  ", style="bold"), Text(f"{calls}{cached}; price {price}"), console, indent=0)
    for remark in _REMARKS:
        print_hanging(Text(" "), Text(remark, style="dim"), console, indent=0)


def _cells(row: ForecastRow) -> list[str | Text]:
    tokens = row.tokens
    written = "no bound" if tokens.output_most is None else f"<= {format_count(tokens.output_most)}"
    return [
        Text(one_line(row.provider, _NAME_WIDTH)),
        _what(row),
        _span(row.least, row.most),
        f"{row.cached:,}",
        _count_span(tokens.input_least, tokens.input_most),
        written,
        _price(row.cost_least_usd, row.cost_most_usd),
    ]


def _what(row: ForecastRow) -> str:
    return f"judge's {row.purpose.value}" if row.role is Role.JUDGE else row.purpose.value


def _span(least: int, most: int) -> str:
    return f"{least:,}" if least == most else f"{least:,}-{most:,}"


def _count_span(least: int, most: int) -> str:
    low, high = format_count(least), format_count(most)
    return low if low == high else f"{low}-{high}"


def _price(least_usd: float | None, most_usd: float | None) -> str:
    if least_usd is None:
        return "unknown"
    if most_usd is None:
        return f"from {_dollars(least_usd)}"
    low, high = _dollars(least_usd), _dollars(most_usd)
    return low if low == high else f"{low}-{high}"


def _dollars(amount_usd: float) -> str:
    return format_cost(float(f"{amount_usd:.{_DIGITS}g}")) if amount_usd else "$0"
