"""Identify what a judge is asked to rate, and by what: two hashes that stay equal from run to run.

`criterion_key` stands for the judge, its wire parameters, the criterion and the way a score is made of ratings.
`rating_key` adds the texts that are judged. Thresholds, weights and the names of metrics are in neither: they decide
what a rating means, and not what it is.
"""

import hashlib
from collections.abc import Mapping, Sequence

from geval_cli.assertions.base import CriterionKey, ModelGradedAssertion, Outcome, Subject, Tools, negated
from geval_cli.assertions.graded.judges import judges_of
from geval_cli.json_codec import encode_json
from geval_cli.judge.metric import Judge, identity_of
from geval_cli.judge.prompt import prompt_version
from geval_cli.providers.redaction import public_url
from geval_cli.records import AssertionResult, JsonValue, Status
from geval_cli.source.secrets import mask_config
from geval_cli.specs.base import JurySpec, ProviderSpec

CRITERION_KEY, RATING_KEY, JUDGED_FROM = "criterion_key", "rating_key", "judged_from"
CRITERION_PARTS = "criterion_parts"

STEPS = "evaluation_steps"
"""The part of a criterion that a judge may have written, and that is not known before."""

_PART_DIGITS = 8

_VERSION = 1
"""Raised when the meaning of the hashes changes, so that ratings of before are not taken for equal ones."""

OWN_HASHES = (CRITERION_KEY, CRITERION_PARTS, RATING_KEY)
"""Members of a detail that hold nothing that anybody wrote."""

P_PASS, BORDERLINE = "p_pass", "borderline"
_OF_THIS_RUN = (*OWN_HASHES, P_PASS, BORDERLINE)


def rating_keys(
    spec: ModelGradedAssertion,
    subjects: Sequence[Subject],
    tools: Tools,
    detail: Mapping[str, JsonValue],
    place: int = 0,
) -> dict[str, JsonValue]:
    """Return both keys, each `sha256:` and 64 hexadecimal digits, and a short hash of each part of the first.

    Args:
        spec: the assertion.
        subjects: the output that it judges, or all outputs that it compares.
        tools: of the run.
        detail: of a rating, for the evaluation steps that a judge wrote for it.
        place: which of the compared outputs the rating is of.
    """
    criterion = criterion_key(spec, subjects[0], tools, detail)
    texts = [spec.judged_texts(subject, tools) for subject in subjects]
    votes = _votes_with_keys(spec, subjects[0], tools, detail)
    return {
        **({} if votes is None else {"judges": votes}),
        CRITERION_KEY: criterion.key,
        RATING_KEY: _hash([criterion.key, texts, place]),
        CRITERION_PARTS: criterion.parts,
    }


def criterion_key(
    spec: ModelGradedAssertion, subject: Subject, tools: Tools, detail: Mapping[str, JsonValue]
) -> CriterionKey:
    """Return the key of what an output is judged by; hashed once for all tests that share it."""
    test = subject.test
    steps = _generated_steps(detail)
    sources = (spec.criterion_source(test, tools), spec, test.options, test.default_options)

    def make() -> CriterionKey:
        judges = [_facts_of(judge, tools) for judge in judges_of(spec, test, tools.defaults)]
        return _key_of(spec, judges, spec.criterion(test, tools), steps)

    return tools.criteria.find(sources, steps, make)


def member_key(
    spec: ModelGradedAssertion,
    judge: ProviderSpec,
    subject: Subject,
    tools: Tools,
    detail: Mapping[str, JsonValue],
) -> CriterionKey:
    """Return the key of what one judge of a jury rates by: the one that it would have if it judged alone."""
    test, steps = subject.test, _generated_steps(detail)
    sources = (spec.criterion_source(test, tools), spec, test.options, test.default_options, judge)

    def make() -> CriterionKey:
        return _key_of(spec, [_facts_of(judge, tools)], spec.criterion_alone(test, tools), steps)

    return tools.criteria.find(sources, steps, make)


def _key_of(
    spec: ModelGradedAssertion,
    judges: Sequence[JsonValue],
    written: JsonValue,
    steps: Sequence[Sequence[str]],
) -> CriterionKey:
    version = prompt_version()
    parts = {
        "type": spec.type,
        "judge": [judge[:-1] for judge in judges],
        "params": [judge[-1] for judge in judges],
        **spec.criterion_parts(written),
        STEPS: steps,
        "prompt_version": version,
    }
    return CriterionKey(
        _hash([_VERSION, version, spec.base_type, judges, written, steps]),
        {name: _short(part) for name, part in parts.items()},
    )


def _votes_with_keys(
    spec: ModelGradedAssertion, subject: Subject, tools: Tools, detail: Mapping[str, JsonValue]
) -> list[JsonValue] | None:
    """Return the votes of a jury, each with the key of its judge; None where one judge decides."""
    votes, jury = detail.get("judges"), spec.provider
    if not votes or not isinstance(jury, JurySpec):
        return None
    return [
        vote if vote["score"] is None else _with_key(vote, member_key(spec, judge, subject, tools, vote))
        for judge, vote in zip(jury.members, votes, strict=True)
    ]


def _with_key(vote: Mapping[str, JsonValue], found: CriterionKey) -> dict[str, JsonValue]:
    return {**vote, CRITERION_KEY: found.key, CRITERION_PARTS: found.parts}


def _facts_of(spec: ProviderSpec, tools: Tools) -> JsonValue:
    judge, known = tools.judge_for(spec), tools.judge_memory.facts
    if judge not in known:
        known[judge] = judge_facts(judge)
    return known[judge]


def judge_facts(judge: Judge) -> JsonValue:
    """Return what of a judge decides its answers. Credentials are left out, so that a new key is the same judge."""
    identity = identity_of(judge)
    if identity is None:
        return [judge.label, mask_config(dict(judge.provider_params))]
    endpoint = public_url(identity.endpoint) if "://" in identity.endpoint else identity.endpoint
    return [identity.kind, identity.model, endpoint, mask_config(dict(identity.params))]


def judge_parts(judge: Judge) -> dict[str, str]:
    """Return the parts of a key that say which judge it is, of a judge that judges alone."""
    facts = judge_facts(judge)
    return {"judge": _short([facts[:-1]]), "params": _short([facts[-1]])}


def earlier_outcomes(
    spec: ModelGradedAssertion, subjects: Sequence[Subject], tools: Tools
) -> Sequence[Outcome] | None:
    """Return the outcomes that the ratings of an earlier run give, in the order of `subjects`; None unless all do."""
    outcomes = []
    for place in range(len(subjects)):
        found = _earlier(spec, subjects, tools, place)
        again = None if found is None else spec.decide_again(_as_judged(found), subjects[place].test, tools)
        if again is None:
            return None
        outcomes.append(again)
    return outcomes


def _earlier(
    spec: ModelGradedAssertion, subjects: Sequence[Subject], tools: Tools, place: int
) -> AssertionResult | None:
    for result in tools.earlier:
        key = result.detail.get(RATING_KEY)
        if key is None or result.status is Status.ERROR or result.score is None:
            continue
        # The steps of that rating are taken as given: what counts is whether all else is the same.
        if criterion_key(spec, subjects[0], tools, result.detail).key != result.detail.get(CRITERION_KEY):
            continue
        if not spec.holds_again(result, subjects[0], tools):
            continue
        if rating_keys(spec, subjects, tools, result.detail, place)[RATING_KEY] == key:
            return result
    return None


def _as_judged(result: AssertionResult) -> Outcome:
    """Return a stored result as the judge decided it, before `not-` turned it round."""
    detail = {name: value for name, value in result.detail.items() if name not in _OF_THIS_RUN}
    outcome = Outcome(
        status=result.status,
        score=result.score,
        reason=result.reason or "",
        threshold=result.threshold,
        threshold_is_default=result.threshold_is_default,
        detail=detail,
        latency_ms=result.latency_ms or 0.0,
    )
    return negated(outcome) if result.type.startswith("not-") else outcome


def _generated_steps(detail: Mapping[str, JsonValue]) -> tuple[tuple[str, ...], ...]:
    """Return the evaluation steps of a rating; of each criterion or judge where there are several."""
    rated = detail.get("judges") or detail.get("parts") or [detail]
    return tuple(tuple(part.get("evaluation_steps") or ()) for part in rated)


def _short(part: JsonValue) -> str:
    return _hash(part).removeprefix("sha256:")[:_PART_DIGITS]


def _hash(facts: JsonValue) -> str:
    return f"sha256:{hashlib.sha256(encode_json(facts)).hexdigest()}"
