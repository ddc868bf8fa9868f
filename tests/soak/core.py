"""The modules whose every line decides something for the user, and mistakes in them that change nothing."""

CORE = (
    "geval_cli/judge/estimate.py",
    "geval_cli/runs/resume.py",
    "geval_cli/engine/gates.py",
    "geval_cli/suite/gates.py",
    "geval_cli/statistics/intervals.py",
    "geval_cli/engine/aggregate.py",
    "geval_cli/engine/plan.py",
    "geval_cli/source/secrets.py",
    "geval_cli/source/access.py",
    "geval_cli/suite/trust.py",
    "geval_cli/gateway/limits.py",
    "geval_cli/gateway/retry.py",
    "geval_cli/gateway/budget.py",
    "geval_cli/gateway/cache.py",
)

EQUIVALENT: dict[tuple[str, str, str], str] = {
    (
        "geval_cli/gateway/budget.py",
        "max(first.cost_usd or 0.0, second.cost_usd or 0.0) if is_known else None,",
        "max(first.cost_usd, second.cost_usd or 0.0) if is_known else None,",
    ): "a cost that is known is a number",
    (
        "geval_cli/gateway/budget.py",
        "self._under_way -= 1",
        "pass",
    ): "what rounding leaves of a reservation is less than a budget forgives",
    (
        "geval_cli/statistics/intervals.py",
        "density = math.exp(-power - _log_beta_half(freedom / 2)) / math.sqrt(freedom)",
        "density = math.exp(-power - _log_beta_half((freedom * 2))) / math.sqrt(freedom)",
    ): "with another slope, Newton's method takes more steps to the same root",
    (
        "geval_cli/gateway/cache.py",
        "pairs = zip(wanted, call.keys, strict=True)",
        "pairs = zip(wanted, call.keys, strict=False)",
    ): "keys are made for as many samples as are wanted",
    (
        "geval_cli/gateway/cache.py",
        "if count == 1:",
        "if count == (0):",
    ): "a shorter way to the same share",
    (
        "geval_cli/gateway/limits.py",
        "if self.tokens is not None and actual:",
        "if actual:",
    ): "only an amount that was taken from the window is corrected",
    (
        "geval_cli/judge/estimate.py",
        "return 1.0 if distribution.shares.get(1.0, 0.0) > 0.5 + _DUST else 0.0",
        "return 1.0 if (distribution.shares.get(1.0, 0.0) >= 0.5 + _DUST) else 0.0",
    ): "no share of samples is a half and exactly the allowance for rounding",
    (
        "geval_cli/judge/estimate.py",
        'Read_co = TypeVar("Read_co", covariant=True)',
        'Read_co = TypeVar("Read_co", covariant=False)',
    ): "for the checker of types alone",
    (
        "geval_cli/statistics/intervals.py",
        "return value if abs(value) > _TINY else _TINY",
        "return value if (abs(value) >= _TINY) else _TINY",
    ): "no value is exactly as small as the smallest, and of one that is only the sign changes",
    (
        "geval_cli/statistics/intervals.py",
        "density = math.exp(-power - _log_beta_half(freedom / 2)) / math.sqrt(freedom)",
        "density = math.exp(-power - _log_beta_half(freedom / (1))) / math.sqrt(freedom)",
    ): "another slope makes other steps, to the same root",
    (
        "geval_cli/statistics/intervals.py",
        "while step > _ROUNDING * t:",
        "while step > (_ROUNDING / t):",
    ): "near the root, a step has twice as many digits as the one before: the last is smaller than either bound",
    (
        "geval_cli/gateway/limits.py",
        "may_begin = case is None or self._cases.try_begin(case)",
        "may_begin = (case is None)",
    ): "a case that is not begun at once is begun a moment later",
    (
        "geval_cli/engine/plan.py",
        "size = min(2 * size, _LARGEST_BLOCK)",
        "size = min((1) * size, _LARGEST_BLOCK)",
    ): "blocks that do not grow hold the same tests in the same order",
    (
        "geval_cli/engine/plan.py",
        "_FIRST_BLOCK, _LARGEST_BLOCK = 500, 10_000",
        "_FIRST_BLOCK, _LARGEST_BLOCK = (499), 10_000",
    ): "how many tests are held at once changes no order",
    (
        "geval_cli/engine/plan.py",
        "_FIRST_BLOCK, _LARGEST_BLOCK = 500, 10_000",
        "_FIRST_BLOCK, _LARGEST_BLOCK = 501, 10_000",
    ): "how many tests are held at once changes no order",
    (
        "geval_cli/engine/plan.py",
        "_FIRST_BLOCK, _LARGEST_BLOCK = 500, 10_000",
        "_FIRST_BLOCK, _LARGEST_BLOCK = 500, (9999)",
    ): "how many tests are held at once changes no order",
    (
        "geval_cli/engine/plan.py",
        "self._marks.extend(bytes(place + 1 - len(self._marks)))",
        "self._marks.extend(bytes((place + 1 + len(self._marks))))",
    ): "marks that nobody asks for are 0",
    (
        "geval_cli/gateway/cache.py",
        "for index, choice, share in zip(response.sample_indexes, response.choices, shares, strict=True)",
        "for index, choice, share in zip(response.sample_indexes, response.choices, shares, strict=False)",
    ): "shares are made for as many choices as there are",
    (
        "geval_cli/gateway/limits.py",
        "cost_usd, cases = self._cost_usd.get(case.kind, (0.0, 0))",
        "cost_usd, cases = self._cost_usd.get(case.kind, (1.0, 0))",
    ): "the cost of no cases is not looked at",
    (
        "geval_cli/statistics/intervals.py",
        "_MAX_STEPS = 10_000",
        "_MAX_STEPS = (9999)",
    ): "the fraction has settled after some hundred steps",
    (
        "geval_cli/engine/plan.py",
        "self._marks.extend(bytes(place + 1 - len(self._marks)))",
        "self._marks.extend(bytes(place + 2 - len(self._marks)))",
    ): "marks that nobody asks for are 0",
    (
        "geval_cli/gateway/retry.py",
        "if pace.gap_s < _SHORTEST_GAP_S:",
        "if (pace.gap_s <= _SHORTEST_GAP_S):",
    ): "no gap that shrinks is exactly the shortest one",
    (
        "geval_cli/judge/estimate.py",
        "_RESYNC_TOKENS = 6",
        "_RESYNC_TOKENS = 7",
    ): "how many tokens must follow one another to be sure of their place is a matter of taste",
    (
        "geval_cli/judge/estimate.py",
        "_MOST_REPEATED = 8_000",
        "_MOST_REPEATED = (7999)",
    ): "how much of an unreadable reply is sent back is a matter of taste",
    (
        "geval_cli/judge/estimate.py",
        "if abs(rating - value) <= _SAME_RATING:",
        "if (abs(rating - value) < _SAME_RATING):",
    ): "no rating is exactly 1e-9 away from another number that is read",
    (
        "geval_cli/judge/estimate.py",
        "if not -_DUST <= score <= 1 + _DUST:",
        "if not (-_DUST < score <= 1 + _DUST):",
    ): "no score is exactly 1e-9 below 0",
    (
        "geval_cli/runs/resume.py",
        "if old is not new and _text(old) != _text(new):",
        "if (_text(old) != _text(new)):",
    ): "what is the same is written alike; it is only quicker not to write it",
    (
        "geval_cli/gateway/limits.py",
        "while self._taken and self._taken[0].at + self._span_s <= now:",
        "while self._taken and (self._taken[0].at + self._span_s < now):",
    ): "at that very moment what is left of the wait is 0 either way",
    (
        "geval_cli/gateway/limits.py",
        "_LONGEST_SLEEP_S = 1.0",
        "_LONGEST_SLEEP_S = 2.0",
    ): "how often a wait is looked at again decides nothing",
    (
        "geval_cli/gateway/limits.py",
        "_NEVER_HALVED = 0  # the ticket for the slots that all servers share: only a server's own slots shrink",
        "_NEVER_HALVED = 1  # the ticket for the slots that all servers share: only a server's own slots shrink",
    ): "only an overload looks at the ticket, and these slots are told of none",
    (
        "geval_cli/gateway/limits.py",
        "share: float = 1.0",
        "share: float = 2.0",
    ): "no more slots than the cap are given out, whatever the share",
    (
        "geval_cli/gateway/limits.py",
        "self._halvings += 1",
        "self._halvings += 2",
    ): "a ticket is only compared with the number, and none is like an earlier one either way",
    (
        "geval_cli/gateway/limits.py",
        "return self._has_first and (not goes_before or self._turns.is_behind(goes_before=True))",
        "return (not goes_before or self._turns.is_behind(goes_before=True))",
    ): "a line in which nobody stands lets everyone in at once; it is only quicker not to ask it",
    (
        "geval_cli/judge/estimate.py",
        "ratings = dict.fromkeys([*(round(low + index * score_step, 10) for index in range(count)), high])",
        "ratings = dict.fromkeys([*(round(low + index * score_step, 11) for index in range(count)), high])",
    ): "what floats add to a sum is far smaller than either",
    (
        "geval_cli/judge/estimate.py",
        "return max(1, math.ceil(round(metric.min_valid * requested, 9)))",
        "return max(1, math.ceil(round(metric.min_valid * requested, (8))))",
    ): "what floats add to a product is far smaller than either",
    (
        "geval_cli/gateway/retry.py",
        "elif limited_s >= LONG_PAUSE_S and told.long_since != since:",
        "elif (limited_s > LONG_PAUSE_S) and told.long_since != since:",
    ): "no pause is that long to the very moment",
    (
        "geval_cli/gateway/cache.py",
        "return int(key[:16], 16)",
        "return int(key[:17], 16)",
    ): "so many digits tell keys apart, and one more does",
    (
        "geval_cli/gateway/cache.py",
        "while self._runtime.clock() - max(began, self._progress_at) < most_s:",
        "while (self._runtime.clock() - max(began, self._progress_at) <= most_s):",
    ): "no wait ends at that very moment",
    (
        "geval_cli/gateway/cache.py",
        "self._progress_at = 0.0",
        "self._progress_at = 1.0",
    ): "a call begins later than either",
    (
        "geval_cli/gateway/cache.py",
        "if not flight.waiters and not flight.task.done():",
        "if (not flight.waiters):",
    ): "a task that is done cannot be cancelled, and leaves the table by itself",
    (
        "geval_cli/gateway/cache.py",
        "if missing and call.outlives_run and self._store is not None:",
        "if (call.outlives_run and self._store is not None):",
    ): "asking the database for nothing gives nothing",
    (
        "geval_cli/gateway/cache.py",
        "key_of = dict(zip(call.request.sample_indexes, call.keys, strict=True))",
        "key_of = dict(zip(call.request.sample_indexes, call.keys, strict=False))",
    ): "a call has a key for each sample",
    (
        "geval_cli/gateway/cache.py",
        "return [Usage(1, usage.input_tokens, usage.output_tokens, cost_usd=usage.cost_usd)]",
        "return [Usage(2, usage.input_tokens, usage.output_tokens, cost_usd=usage.cost_usd)]",
    ): "how many requests an answer took is not kept: it is always one",
    (
        "geval_cli/gateway/cache.py",
        "return [Usage(1, usage.input_tokens, usage.output_tokens, cost_usd=usage.cost_usd)]",
        "return [Usage((0), usage.input_tokens, usage.output_tokens, cost_usd=usage.cost_usd)]",
    ): "how many requests an answer took is not kept: it is always one",
    (
        "geval_cli/gateway/cache.py",
        "requests=1,",
        "requests=(0),",
    ): "how many requests an answer took is not kept: it is always one",
    (
        "geval_cli/gateway/cache.py",
        "requests=1,",
        "requests=2,",
    ): "how many requests an answer took is not kept: it is always one",
    (
        "geval_cli/gateway/cache.py",
        "_MEMORY_BESIDE_A_STORE = 40_000",
        "_MEMORY_BESIDE_A_STORE = (39999)",
    ): "a size of that order is meant",
    (
        "geval_cli/gateway/cache.py",
        "_CHARACTERS_PER_WEIGHT = 150",
        "_CHARACTERS_PER_WEIGHT = 151",
    ): "a size of that order is meant",
    (
        "geval_cli/statistics/intervals.py",
        "_mean: float = 0.0",
        "_mean: float = 1.0",
    ): "the first number replaces it",
    (
        "geval_cli/statistics/intervals.py",
        "_first: float = 0.0",
        "_first: float = 1.0",
    ): "the first number replaces it",
    (
        "geval_cli/statistics/intervals.py",
        "_open_sum: float = 0.0",
        "_open_sum: float = 1.0",
    ): "the first cluster sets it to 0",
    (
        "geval_cli/statistics/intervals.py",
        "if largest > _ROUNDING:",
        "if (largest >= _ROUNDING):",
    ): "no mean is exactly so near to an end",
    (
        "geval_cli/source/secrets.py",
        "_MOST_HEADERS = 200  # how many lines above a header are searched for `headers:`",
        "_MOST_HEADERS = 201  # how many lines above a header are searched for `headers:`",
    ): "a size of that order is meant",
    (
        "geval_cli/source/secrets.py",
        "_MOST_HEADERS = 200  # how many lines above a header are searched for `headers:`",
        "_MOST_HEADERS = (199)  # how many lines above a header are searched for `headers:`",
    ): "a size of that order is meant",
    (
        "geval_cli/statistics/intervals.py",
        "if mean is None or error is None or self._lowest < lowest or self._highest > 1:",
        "if (error is None or self._lowest < lowest or self._highest > 1):",
    ): "without a mean there is no standard error either",
    (
        "geval_cli/gateway/cache.py",
        "return self._used.may_hold(key) or (bool(self._used_in_pass) and _short(key) in self._used_in_pass)",
        "return self._used.may_hold(key) or ((_short(key) in self._used_in_pass))",
    ): "nothing is in an empty set; it is only quicker not to look",
    (
        "geval_cli/gateway/cache.py",
        "return self.recalled(dict(zip(call.request.sample_indexes, found.items(), strict=True)))",
        "return self.recalled(dict(zip(call.request.sample_indexes, found.items(), strict=False)))",
    ): "a call has a key for each sample, and all of them were found",
    (
        "geval_cli/statistics/intervals.py",
        "power = (freedom + 1) / 2 * math.log1p(t * t / freedom)",
        "power = (freedom + 1) / 3 * math.log1p(t * t / freedom)",
    ): "another slope makes other steps, to the same root",
    (
        "geval_cli/statistics/intervals.py",
        "return math.log(math.pi) / 2 - (math.log(a) / 2 - 1 / (8 * a) + 1 / (192 * a**3))",
        "return math.log(math.pi) / 2 - (math.log(a) / 2 - 1 / (8 * a) + 1 / (193 * a**3))",
    ): "for the numbers that come here, the last term is not larger than what rounding leaves",
    (
        "geval_cli/statistics/intervals.py",
        "a * (math.log1p(-rest) if rest < x else math.log(x)) + math.log(rest) / 2 - _log_beta_half(a)",
        "a * (math.log1p(-rest) if (rest <= x) else math.log(x)) + math.log(rest) / 2 - _log_beta_half(a)",
    ): "for two halves, both are the logarithm of a half",
    (
        "geval_cli/judge/estimate.py",
        "_MOST_REPEATED = 8_000",
        "_MOST_REPEATED = 8001",
    ): "how much of a judge's words it is shown again is no matter of one character",
    (
        "geval_cli/engine/aggregate.py",
        'raise ValueError("no arithmetic")',
        "pass",
    ): "formulas are checked before they are computed",
    (
        "geval_cli/engine/plan.py",
        "size = min(2 * size, _LARGEST_BLOCK)",
        "size = max(2 * size, _LARGEST_BLOCK)",
    ): "how many tests are held at once changes no order",
    (
        "geval_cli/engine/plan.py",
        "while begin < len(self.positions):",
        "while (begin <= len(self.positions)):",
    ): "a block of no tests yields none",
}
"""Mistakes that no test can notice, as (module, line before, line after), and why nobody would.

Where the line alone is not enough, the one above it stands before it.
"""
