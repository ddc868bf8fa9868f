"""What a run would ask for, added up: answers by provider and purpose, with tokens and price. Pure."""

from collections.abc import Mapping

from msgspec import Struct, field

from geval_cli.judge.forecast import Purpose
from geval_cli.providers.prices import Price
from geval_cli.providers.wire.token_usage import TokenUsage
from geval_cli.records import Role

_ASSUMPTIONS: Mapping[Purpose, str] = {
    Purpose.ANSWER: "one for each prompt, provider, test and repeat; equal questions are sent once",
    Purpose.STEPS: "one for each criterion and judge, shared by all tests",
    Purpose.RATING: "one for each criterion and output; equal outputs are judged once",
    Purpose.SAMPLES: "as many for each output as the config says",
    Purpose.FALLBACK_SAMPLES: "for ratings of the cache that came without usable token probabilities",
    Purpose.EXPLANATION: "for ratings of the cache that want one",
    Purpose.CLAIMS: "one list for each output",
    Purpose.QUESTIONS: "three for each output",
    Purpose.VERDICT: "one for each assertion and output, or turn of a conversation; equal outputs are judged once",
    Purpose.CHOICE: "one for each test and repeat, of all its outputs",
    Purpose.EMBEDDING: "one for each text; equal texts are sent once",
}


class Tokens(Struct, frozen=True):
    """Tokens of some answers. `output_most` is None when nothing bounds what is written."""

    input_least: int = 0
    input_most: int = 0
    output_most: int | None = 0

    def __add__(self, other: "Tokens") -> "Tokens":
        is_bound = self.output_most is not None and other.output_most is not None
        return Tokens(
            self.input_least + other.input_least,
            self.input_most + other.input_most,
            (self.output_most or 0) + (other.output_most or 0) if is_bound else None,
        )


class ForecastRow(Struct, frozen=True):
    """Answers of one provider for one purpose.

    Attributes:
        least, most: how many would be asked for; repetitions after a failure are not counted.
        cached: how many more the cache has, which cost nothing.
        cost_least_usd: for reading alone; None when the price is unknown.
        cost_most_usd: None when the price is unknown, or when nothing bounds what is written.
    """

    role: Role
    provider: str
    purpose: Purpose
    least: int
    most: int
    cached: int
    tokens: Tokens
    cost_least_usd: float | None
    cost_most_usd: float | None
    assumption: str


class Forecast(Struct, frozen=True):
    """What a run would ask for. Costs are None where one of the rows' is."""

    cases: int
    rows: tuple[ForecastRow, ...]

    @property
    def least(self) -> int:
        return sum(row.least for row in self.rows)

    @property
    def most(self) -> int:
        return sum(row.most for row in self.rows)

    @property
    def cached(self) -> int:
        return sum(row.cached for row in self.rows)

    @property
    def cost_least_usd(self) -> float | None:
        costs = [row.cost_least_usd for row in self.rows]
        return None if None in costs else sum(cost or 0.0 for cost in costs)

    @property
    def cost_most_usd(self) -> float | None:
        costs = [row.cost_most_usd for row in self.rows]
        return None if None in costs else sum(cost or 0.0 for cost in costs)


class _Sum(Struct):
    price: Price | None
    least: int = 0
    most: int = 0
    cached: int = 0
    tokens: Tokens = Tokens()


_NO_TOKENS = Tokens()


class ForecastTally(Struct):
    """Adds up a forecast; what it holds does not grow with the number of tests."""

    cases: int = 0
    _sums: dict[tuple[Role, str, Purpose, str], _Sum] = field(default_factory=dict)

    def add(
        self,
        key: tuple[Role, str, Purpose],
        price: Price | None,
        *,
        counts: tuple[int, int, int] = (0, 0, 0),
        tokens: Tokens = _NO_TOKENS,
        assumption: str = "",
    ) -> None:
        """Count answers of a role, provider and purpose: at least, at most, and from the cache."""
        full_key = (*key, assumption or _ASSUMPTIONS.get(key[2], ""))
        found = self._sums.get(full_key)
        if found is None:
            found = self._sums[full_key] = _Sum(price)
        found.least += counts[0]
        found.most += counts[1]
        found.cached += counts[2]
        found.tokens += tokens

    def forecast(self) -> Forecast:
        """Return the sums so far: generation first, then judges, in the order of their first request."""
        rows = [_row(key, found) for key, found in self._sums.items() if found.most or found.cached]
        order = {purpose: number for number, purpose in enumerate(Purpose)}
        rows.sort(key=lambda row: (row.role is Role.JUDGE, row.provider, order[row.purpose]))
        return Forecast(self.cases, tuple(rows))


def _row(key: tuple[Role, str, Purpose, str], found: _Sum) -> ForecastRow:
    tokens, price = found.tokens, found.price
    least_usd = most_usd = None
    if price is not None:
        least_usd = price.cost_usd(TokenUsage(tokens.input_least, 0))
        # What costs nothing costs nothing however much is written.
        written = tokens.output_most if least_usd or tokens.output_most is not None else 0
        if written is not None:
            most_usd = price.cost_usd(TokenUsage(tokens.input_most, written))
    role, provider, purpose, assumption = key
    return ForecastRow(
        role=role,
        provider=provider,
        purpose=purpose,
        least=found.least,
        most=found.most,
        cached=found.cached,
        tokens=tokens,
        cost_least_usd=least_usd,
        cost_most_usd=most_usd,
        assumption=assumption,
    )
