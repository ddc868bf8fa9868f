"""The assertions about retrieval on labelled summaries: by a judge with known errors, figures are what arithmetic says.

QAGS has human verdicts on each sentence of summaries of CNN/DailyMail articles, kept as the share of consistent ones.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.graded import SpeakingJudge, graded, graded_tools

DATA = Path(__file__).parents[3] / "shared" / "data" / "qags_cnndm.jsonl"
MISSED_EVERY, INVENTED_EVERY = 5, 10
"""The judge denies every 5th claim that holds, and grants every 10th that does not."""


@dataclass(frozen=True)
class Summary:
    article: str
    claims: tuple[str, ...]
    holds: tuple[bool, ...]
    consistency: float


class ErringJudge:
    """Knows whether a claim holds, and errs on known ones. With `errs` off it is always right."""

    def __init__(self, *, errs: bool) -> None:
        self._errs = errs
        self.seen = {True: 0, False: 0}

    def verdict(self, holds: bool) -> bool:
        self.seen[holds] += 1
        every = MISSED_EVERY if holds else INVENTED_EVERY
        return holds != (self._errs and self.seen[holds] % every == 0)

    def granted(self) -> int:
        """How many claims it has granted, by what it was shown and by its error rates alone."""
        true, false = self.seen[True], self.seen[False]
        return true - true // MISSED_EVERY + false // INVENTED_EVERY if self._errs else true


@pytest.fixture(scope="module")
def summaries() -> list[Summary]:
    if not DATA.is_file():
        pytest.skip(f"there are no human labels at {DATA}")
    return list(read_summaries())


def read_summaries() -> Iterator[Summary]:
    for line in DATA.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        parts = re.split(r"(?<=[.!?]) +", row["system_output"].strip())
        claims = tuple(f"claim {number}: {part}" for number, part in enumerate(parts) if part.strip(" ."))
        share = row["human"]["consistency"]
        count = round(share * len(claims))
        if abs(count - share * len(claims)) < 1e-6:  # not where people saw other sentences
            holds = tuple(number < count for number in range(len(claims)))
            yield Summary(row["source"], claims, holds, share)


def statements_of(summary: Summary) -> str:
    return json.dumps({"statements": list(summary.claims)})


def verdicts_on(claims: Sequence[str], verdicts: Sequence[bool], *, needs: str = "") -> Callable[[str], str]:
    """A reply to a question that shows these claims, in this order, and `needs`."""

    def reply(prompt: str) -> str:
        places = [prompt.rindex(claim) for claim in claims]
        assert places == sorted(places)
        assert needs in prompt
        return json.dumps(
            {"verdicts": [{"reason": "", "verdict": "yes" if one else "no"} for one in verdicts]}
        )

    return reply


def score(kind: str, replies: Sequence[Any], summary: Summary, context: Any, **keys: Any) -> float:
    judge = SpeakingJudge(replies)
    output = keys.pop("output", " ".join(summary.claims))
    test = {"vars": {"query": "Summarise the article.", "context": context}}
    found = graded(kind, graded_tools(judge=judge), output=output, test=test, **keys)
    assert found.score is not None, found
    assert len(judge.requests) == len(replies)
    return found.score


def test_the_data_has_consistent_and_inconsistent_claims(summaries: list[Summary]) -> None:
    holds = [one for summary in summaries for one in summary.holds]
    assert len(summaries) >= 200
    assert min(sum(holds), len(holds) - sum(holds)) >= 100


@pytest.mark.parametrize("errs", [False, True])
def test_faithfulness_is_the_share_of_claims_that_the_judge_grants(
    summaries: list[Summary], errs: bool
) -> None:
    judge = ErringJudge(errs=errs)
    granted = 0.0
    for summary in summaries:
        said = [judge.verdict(holds) for holds in summary.holds]
        replies = [statements_of(summary), verdicts_on(summary.claims, said, needs=summary.article[:200])]
        found = score("context-faithfulness", replies, summary, summary.article)
        assert errs or found == pytest.approx(summary.consistency)
        granted += found * len(summary.claims)
    assert errs == (judge.granted() != judge.seen[True])
    assert granted == pytest.approx(judge.granted())


@pytest.mark.parametrize("errs", [False, True])
def test_noise_sensitivity_counts_the_false_claims_that_the_context_makes(
    summaries: list[Summary], errs: bool
) -> None:
    """The context is the article and, as noise, every other false claim."""
    of_truth, of_context = ErringJudge(errs=errs), ErringJudge(errs=errs)
    for summary in summaries:
        false = [claim for claim, holds in zip(summary.claims, summary.holds, strict=True) if not holds]
        noise = false[::2]
        in_context = [
            holds or claim in noise for claim, holds in zip(summary.claims, summary.holds, strict=True)
        ]
        true = [of_truth.verdict(holds) for holds in summary.holds]
        replies = [statements_of(summary), verdicts_on(summary.claims, true, needs=summary.article[:200])]
        taken = 0
        if not all(true):
            said = [of_context.verdict(one) for one in in_context]
            replies.append(verdicts_on(summary.claims, said, needs="\n".join(noise)))
            taken = sum(there and not right for there, right in zip(said, true, strict=True))
        context = [summary.article, *noise]
        found = score("noise-sensitivity", replies, summary, context, value=summary.article)
        assert found == pytest.approx(1 - taken / len(summary.claims))
        assert errs or taken == len(noise)


@pytest.mark.parametrize("errs", [False, True])
def test_context_precision_is_the_average_precision_of_what_the_judge_finds_useful(
    summaries: list[Summary], errs: bool
) -> None:
    """Two passages of the article are retrieved among two of other articles, in four orders."""
    judge = ErringJudge(errs=errs)
    for place, summary in enumerate(summaries):
        others = [summaries[place - step].article[:300] for step in (1, 2)]
        own = [summary.article[:300], summary.article[300:600]]
        useful = [(True, True, False, False), (True, False, True, False), (False, True, False, True)][
            place % 3
        ]
        passages = [
            f"passage {rank}: {(own if one else others)[sum(useful[:rank]) % 2]}"
            for rank, one in enumerate(useful)
        ]
        said = [judge.verdict(one) for one in useful]
        replies = [verdicts_on([one[:60] for one in passages], said)]
        found = score("context-precision", replies, summary, passages, value=summary.claims[0])
        hits = [rank for rank, one in enumerate(said, start=1) if one]
        expected = sum(number / rank for number, rank in enumerate(hits, start=1)) / len(hits) if hits else 0
        assert found == pytest.approx(expected)
        assert errs or found == pytest.approx((1, 5 / 6, 1 / 2)[place % 3])


@pytest.mark.parametrize("errs", [False, True])
def test_citation_correctness_is_the_share_of_citations_that_code_and_judge_let_pass(
    summaries: list[Summary], errs: bool
) -> None:
    """Each claim cites the article; one more cites a passage that is not there, and code that looks like a citation."""
    judge = ErringJudge(errs=errs)
    right = cited = 0.0
    for summary in summaries:
        plain = [" ".join(re.findall(r"[A-Za-z]+", claim)) for claim in summary.claims]
        output = "\n".join([*(f"{claim} [1]." for claim in plain), "It is elsewhere [9].", "Call `a[2]`."])
        said = [judge.verdict(holds) for holds in summary.holds]
        replies = [verdicts_on(plain, said, needs="(cites 1)")]
        context = [summary.article, "Another article."]
        found = score("citation-correctness", replies, summary, context, output=output)
        right += found * (len(plain) + 1)
        cited += len(plain)
    assert right == pytest.approx(judge.granted())
    assert cited == sum(judge.seen.values())
