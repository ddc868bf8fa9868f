"""Assertions on answers from retrieved passages: how much of them is used and needed, and what is cited."""

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from pydantic import Field

from geval_cli.assertions.base import (
    Assertion,
    CheckContext,
    MergedTest,
    Outcome,
    Subject,
    Tools,
    as_text,
)
from geval_cli.assertions.judges import ContextAssertion
from geval_cli.errors import JudgeParseError, Problem, UnjudgeableError
from geval_cli.extras.graded.asking import (
    JudgeClient,
    Question,
    check_own_prompt,
    check_value,
    needed_question,
    own_prompt,
    question_of,
)
from geval_cli.extras.graded.verdicts import (
    parse_attributions,
    parse_numbers,
    parse_plain,
    parse_texts,
    parse_verdict_list,
)
from geval_cli.json_codec import data_in
from geval_cli.judge.calls import reply_schema
from geval_cli.judge.prompt import Block, numbered
from geval_cli.numbers import plural
from geval_cli.patterns import compile_later
from geval_cli.records import Purpose, to_json
from geval_cli.report.sanitize import value_text

_ATTRIBUTIONS_SCHEMA: Mapping[str, Any] = reply_schema(
    {
        "sentences": {
            "type": "array",
            "items": reply_schema({"sentence": {"type": "string"}, "attributed": {"type": "boolean"}}),
        }
    }
)
_SCHEMA: Mapping[str, Any] = reply_schema({"relevant": {"type": "array", "items": {"type": "integer"}}})
_NOTHING = "insufficient information"
_STATEMENTS_SCHEMA: Mapping[str, Any] = reply_schema(
    {"statements": {"type": "array", "items": {"type": "string"}}}
)
VERDICTS_SCHEMA: Mapping[str, Any] = reply_schema(
    {
        "verdicts": {
            "type": "array",
            "items": reply_schema(
                {
                    "reason": {"type": "string"},
                    "verdict": {"type": "string", "enum": ["yes", "no"]},
                }
            ),
        }
    }
)


class ContextRecallAssertion(ContextAssertion):
    """context-recall: how much of the ground truth the retrieved context contains."""

    value_form = "text"

    value: str = Field(description="The ground truth; a template, may be file://.")

    def check(self, context: CheckContext) -> list[Problem]:
        """Return problems with the ground truth and with a custom prompt in one test."""
        problems: list[Problem] = []
        check_value(self, self.value, "ground truth", context, problems)
        check_own_prompt(self, context, ("context", "groundTruth"), problems)
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Score the share of ground-truth sentences that the context (or else the prompt) supports.

        Raises:
            JudgeError, ProviderError: there is no verdict.
            UnjudgeableError: there is neither a context nor a prompt, or the transform finds no context.
        """
        truth = tools.templates.render(self.value, subject.test.variables)
        has_prompt = self.context_transform is None and subject.rendered_prompt.strip()
        found = context_of(subject.test) if has_prompt else needed_context(subject)
        context = "\n".join(found) or subject.rendered_prompt
        question = Question(
            "recall",
            (Block("Context", context), Block("Known Truth", truth)),
            {"context": context, "groundTruth": truth},
            _ATTRIBUTIONS_SCHEMA,
        )
        judge = JudgeClient(self, subject, tools)
        claims = await judge.ask(question, lambda text: parse_attributions(text, truth))
        score = sum(claims) / len(claims)
        reason = f"{sum(claims)} of {len(claims)} sentences are found in the context"
        return self.scored(score, reason, judge.latency_ms, attributed=list(claims))


class ContextRelevanceAssertion(ContextAssertion):
    """context-relevance: how much of the retrieved context is needed for the question."""

    def check(self, context: CheckContext) -> list[Problem]:
        """Return problems with the context and with a custom prompt in one test."""
        problems: list[Problem] = []
        if self.context_transform is None:
            check_context_is_there(self, context, problems)
        check_own_prompt(self, context, ("context", "query", "question"), problems)
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Score the share of units that are needed: passages of a list, or lines of a text.

        Raises:
            JudgeError, ProviderError: there is no verdict.
            UnjudgeableError: the test has no context, or no question.
        """
        passages = tuple(one for one in numbered_context(subject) if one.strip())
        is_own = own_prompt(self, subject.test) is not None
        query = question_of(subject) if is_own else needed_question(subject)
        context = "\n".join(passages)
        question = Question(
            "relevance",
            (Block("Question", query), Block("Context", numbered(passages))),
            {"query": query, "question": query, "context": context},
            _SCHEMA,
        )
        read = partial(_quoted, passages) if is_own else partial(_numbered, len(passages))
        judge = JudgeClient(self, subject, tools)
        needed = await judge.ask(question, read)
        reason = f"{needed} of {len(passages)} passages are needed"
        return self.scored(needed / len(passages), reason, judge.latency_ms)


def _numbered(count: int, text: str) -> int:
    return len(parse_numbers(text, "relevant", count))


def _quoted(passages: tuple[str, ...], text: str) -> int:
    """Return the number of passages that a reply to a custom prompt quotes, one per line."""
    if _NOTHING in parse_plain(text).lower():
        return 0
    lines = set(parse_texts(text, "relevant"))
    quoted = sum(any(line in passage or passage in line for line in lines) for passage in passages)
    if not quoted:
        raise JudgeParseError("the judge quoted nothing from the context", raw_text=text)
    return quoted


class ContextFaithfulnessAssertion(ContextAssertion):
    """context-faithfulness: how many of the output's claims the retrieved context supports."""

    def check(self, context: CheckContext) -> list[Problem]:
        """Return problems with the context and with custom prompts in one test."""
        problems: list[Problem] = []
        if self.context_transform is None:
            check_context_is_there(self, context, problems)
        check_own_prompt(self, context, ("context", "statements"), problems, in_steps=("question", "answer"))
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Call the judge twice: for the claims of the answer, and for those that follow from the context.

        An answer without claims is faithful: nothing in it can contradict the context.

        Raises:
            JudgeError, ProviderError: there is no verdict.
            UnjudgeableError: the test has no context.
        """
        context = "\n".join(needed_context(subject))
        asked = question_of(subject)
        judge = JudgeClient(self, subject, tools)
        statements = await judge.ask(_statements_question(asked, subject.text), _parse_statements)
        verdicts: tuple[bool, ...] = ()
        if statements:
            question = Question(
                "faithfulness",
                (Block("Context", context), Block("Statements", numbered(statements))),
                {"context": context, "statements": list(statements)},
                VERDICTS_SCHEMA,
            )
            verdicts = await judge.ask(question, lambda text: parse_verdict_list(text, len(statements)))
        score = sum(verdicts) / len(verdicts) if verdicts else 1.0
        if not statements:
            reason = "the answer makes no claims"
        else:
            unsupported = [text for text, holds in zip(statements, verdicts, strict=True) if not holds]
            if not unsupported:
                reason = f"all {len(statements)} claims follow from the context"
            else:
                counted = f"{len(unsupported)} of {len(statements)} claims"
                reason = f"{counted} do not follow from the context: {unsupported[0]}"
        return self.scored(
            score, reason, judge.latency_ms, statements=list(statements), verdicts=list(verdicts)
        )


class ContextPrecisionAssertion(ContextAssertion):
    """context-precision: whether the useful passages come first among those retrieved."""

    value_form = "text"

    value: str | None = Field(
        None,
        description="The expected answer; a template, may be file://. [default: the test's expected_output]",
    )

    def check(self, context: CheckContext) -> list[Problem]:
        """Return problems with the expected answer, the context and a custom prompt in one test."""
        problems: list[Problem] = []
        if self.value is not None:
            check_value(self, self.value, "expected answer", context, problems)
        elif not (context.test.expected_output or "").strip():
            message = f"{self.base_type} needs the expected answer ({context.where})"
            hint = "write it as `value`, or as `expected_output` of the test"
            problems.append(Problem(message, self.place.value("type"), hint))
        if self.context_transform is None:
            check_context_is_there(self, context, problems)
        check_own_prompt(self, context, ("query", "context", "answer"), problems)
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Score the average precision: the mean, over the useful passages, of the share of useful passages up to each.

        Without any useful passage the score is 0. (ragas, `LLMContextPrecisionWithReference`; DeepEval,
        `ContextualPrecisionMetric`.)

        Raises:
            JudgeError, ProviderError: there is no verdict.
            UnjudgeableError: the test has no context.
        """
        passages = numbered_context(subject)
        query = question_of(subject)
        test = subject.test
        written = as_text(test.expected_output) if self.value is None else self.value
        answer = written if self.value is None else tools.templates.render(written, test.variables)
        question = Question(
            "precision",
            (
                Block("Question", query),
                Block("Expected Answer", answer),
                Block("Context", numbered(passages)),
            ),
            {"query": query, "context": list(passages), "answer": answer},
            VERDICTS_SCHEMA,
        )
        judge = JudgeClient(self, subject, tools)
        useful = await judge.ask(question, lambda text: parse_verdict_list(text, len(passages)))
        shares = [sum(useful[:rank]) / rank for rank, is_useful in enumerate(useful, 1) if is_useful]
        ranks = ", ".join(str(rank) for rank, is_useful in enumerate(useful, 1) if is_useful)
        reason = (
            f"{len(shares)} of {plural(len(passages), 'passage')} "
            f"{'is useful, at rank' if len(shares) == 1 else 'are useful, at ranks'} {ranks}"
            if shares
            else f"none of the {len(passages)} passages is useful"
        )
        score = sum(shares) / len(shares) if shares else 0.0
        return self.scored(score, reason, judge.latency_ms, useful=list(useful))


class NoiseSensitivityAssertion(ContextAssertion):
    """noise-sensitivity: the share of the output's claims that are not wrong claims taken from the context."""

    value_form = "text"

    value: str = Field(description="The ground truth; a template, may be file://.")

    def check(self, context: CheckContext) -> list[Problem]:
        """Return problems with the ground truth, the context and custom prompts in one test."""
        problems: list[Problem] = []
        check_value(self, self.value, "ground truth", context, problems)
        if self.context_transform is None:
            check_context_is_there(self, context, problems)
        check_own_prompt(self, context, ("context", "statements"), problems, in_steps=("question", "answer"))
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Score 1 minus the share of claims that the context supports but the ground truth does not.

        That share is the sum of ragas' noise sensitivities to relevant and to irrelevant passages. An answer without
        claims scores 1.

        Raises:
            JudgeError, ProviderError: there is no verdict.
            UnjudgeableError: the test has no context.
        """
        truth = tools.templates.render(self.value, subject.test.variables)
        context = "\n".join(needed_context(subject))
        asked = question_of(subject)
        judge = JudgeClient(self, subject, tools)
        statements = await judge.ask(_statements_question(asked, subject.text), _parse_statements)

        async def supported_by(text: str) -> tuple[bool, ...]:
            question = Question(
                "faithfulness",
                (Block("Context", text), Block("Statements", numbered(statements))),
                {"context": text, "statements": list(statements)},
                VERDICTS_SCHEMA,
            )
            return await judge.ask(question, lambda reply: parse_verdict_list(reply, len(statements)))

        true = await supported_by(truth) if statements else ()
        in_context = await supported_by(context) if not all(true) else true
        noise = [
            text for text, right, said in zip(statements, true, in_context, strict=True) if said and not right
        ]
        share = len(noise) / len(statements) if statements else 0.0
        wrong = len(true) - sum(true)
        reason = "the answer makes no claims"
        if noise:
            reason = (
                f"{len(noise)} of {plural(len(statements), 'claim')} "
                f"{'is wrong and comes' if len(noise) == 1 else 'are wrong and come'} from the context: {noise[0]}"
            )
        elif statements:
            reason = "no claim is an error taken from the context" + (
                f" ({wrong} of {len(statements)} {'is' if wrong == 1 else 'are'} wrong, but not because of it)"
                if wrong
                else ""
            )
        seen = {"statements": list(statements), "true": list(true), "in_context": list(in_context)}
        return self.scored(1.0 - share, reason, judge.latency_ms, **seen)


def by_context(
    spec: NoiseSensitivityAssertion, subject: Subject
) -> tuple[NoiseSensitivityAssertion, Subject]:
    """Return the assertion and the subject with the context as the ground truth, as a plan asks about it."""
    known = {**subject.test.vars, "context_as_truth": "\n".join(context_of(subject.test))}
    about = replace(subject, test=replace(subject.test, vars=known))
    return spec.model_copy(update={"value": "{{ context_as_truth }}"}), about


def _statements_question(asked: str, answer: str) -> Question:
    return Question(
        "statements",
        (Block("Question", asked), Block("Answer", answer)),
        {"question": asked, "answer": answer},
        _STATEMENTS_SCHEMA,
        part="steps",
        purpose=Purpose.CLAIMS,
    )


def _parse_statements(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(parse_texts(text, "statements")))


# [1], [1, 2], [1-3], [^1] and, as some vendors write it, 【1†source】.
_MARK = r"\[\^?\d{1,4}(?:\s{0,2}[,;\u2013-]\s{0,2}\^?\d{1,4}){0,20}\]|【\d{1,4}[^】]{0,80}】"
_MARKS = compile_later(_MARK)
_NUMBERS = compile_later(r"(\d{1,4})(?:\s*[\u2013-]\s*(\d{1,4}))?")
# A mark behind the full stop belongs to the sentence before it.
_MARK_BEHIND = compile_later(rf"([.!?。\uff01\uff1f][\"”»」)]?)((?:\s{{0,2}}(?:{_MARK}))+)")
_SENTENCE_END = compile_later(
    r"(?<=[.!?])(?<!\b[A-Z]\.)(?<!\be\.g\.)(?<!\bi\.e\.)(?<!\bDr\.)(?<!\bMr\.)(?<!\bMs\.)(?<!\bvs\.)(?<!\bNo\.)(?<!^\d\.)"
    r"\s+|(?<=[。\uff01\uff1f])|(?<=[.!?][\"”»)])\s+|\n+",
    re.MULTILINE,
)
_QUOTATION = compile_later(r"“([^“”]{1,2000})”|\"([^\"]{1,2000})\"|«([^«»]{1,2000})»|「([^「」]{1,2000})」")
_ELLIPSIS = compile_later(r"\[?(?:\.\.\.|…)\]?")
_MIN_QUOTED_CHARS = 12
"""Shorter quotations are names and words that an answer mentions."""
_MOST_IN_RANGE = 50


_FENCED = compile_later(
    r"^ {0,3}(`{3,}+|~{3,}+)[^\n]*\n.*?(?:^ {0,3}\1[`~]*[ \t]*$|\Z)", re.MULTILINE | re.DOTALL
)
_LINK = compile_later(
    r"(!?)\[(\[[^\[\]\n]{1,80}\]|[^\[\]\n]{0,300})\]\([^()\n]{0,1000}(?:\([^()\n]{0,300}\)[^()\n]{0,300}){0,3}\)"
)
_TAG = compile_later(r"</?[A-Za-z][^<>\n]{0,1000}>")
_DEFINITION = compile_later(r"^[ \t]{0,8}\[\^?[^\[\]\n]{1,40}\]:[^\n]*$", re.MULTILINE)
_LIST_OF_SOURCES = compile_later(
    r"^[ \t#*_]{0,12}(?:sources?|references?|citations?|footnotes|bibliography|works cited|quellen|literatur)"
    r"[ \t*_:]{0,8}\n(?:[ \t]*\n|[ \t]*(?:[-*•][ \t]+)?\[\^?\d{1,4}\][^\n]*(?:\n|\Z)){1,400}",
    re.MULTILINE | re.IGNORECASE,
)
_CALL = r"\w\((?:[^()\n]|\([^()\n]{0,100}\)){0,100}\)"
_CODE = compile_later(
    # A span of code; an index: x[1], my_list[1], row2[1], f(x)[1], any word's [0], or one that is assigned or called.
    r"(?<!`)(`{1,3})(?!`)[^\n]{1,300}?(?<!`)\1(?!`)"
    rf"|(?:(?<!\w)[a-z]|\b\w{{0,60}}_\w{{0,60}}|\b[a-z]\w{{0,60}}\d|{_CALL})(?:{_MARK})+"
    r"|\w(?:\[\d{1,4}\]){0,3}\[0\]"
    rf"|\w(?:{_MARK})+(?=\s{{0,2}}[-+*/|&]?=|\(|\.[a-z_])|=\s{{0,2}}(?:{_MARK})"
)
_SHIELDED = dict(zip(map(ord, '[]【】"“”«»「」'), range(0xE000, 0xE00B), strict=True))
"""Characters in code that look like citations or quotations, and their placeholders while the text is searched."""
_BARED = {there: here for here, there in _SHIELDED.items()}


class Citation(Struct, frozen=True):
    """A sentence of an answer that cites or quotes passages.

    Attributes:
        claim: the sentence without its citation marks.
        cited: the numbers of the cited passages, from 1; empty if it only quotes.
        quoted: the texts in quotation marks.
        problem: a mistake found without a judge (a passage or quotation that does not exist); empty if there is none.
        is_right: also False if the judge says that the cited passages do not support the claim.
    """

    claim: str
    cited: tuple[int, ...]
    quoted: tuple[str, ...]
    problem: str = ""
    is_right: bool = True


class CitationCorrectnessAssertion(ContextAssertion):
    """citation-correctness: how many of the output's citations and quotations are correct."""

    def check(self, context: CheckContext) -> list[Problem]:
        """Return problems with the context and with a custom prompt in one test."""
        problems: list[Problem] = []
        if self.context_transform is None:
            check_context_is_there(self, context, problems)
        check_own_prompt(self, context, ("context", "claims"), problems)
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Check cited passages and quotations in code, then ask the judge about the remaining claims.

        An answer without citations scores 0.

        Raises:
            JudgeError, ProviderError: there is no verdict.
            UnjudgeableError: the test has no context.
        """
        passages = numbered_context(subject)
        citations = [_checked(citation, passages) for citation in citations_in(subject.text)]
        asked = [place for place, one in enumerate(citations) if not one.problem and one.cited]
        judge = JudgeClient(self, subject, tools)
        if asked:
            claims = [
                f"{citations[place].claim} (cites {', '.join(map(str, citations[place].cited))})"
                for place in asked
            ]
            question = Question(
                "citations",
                (Block("Passages", numbered(passages)), Block("Claims", numbered(claims))),
                {"context": numbered(passages), "claims": claims},
                VERDICTS_SCHEMA,
            )
            verdicts = await judge.ask(question, lambda text: parse_verdict_list(text, len(asked)))
            for place, holds in zip(asked, verdicts, strict=True):
                if not holds:
                    of = " and ".join(map(str, citations[place].cited))
                    what = (
                        f"passage {of} does not say so"
                        if len(citations[place].cited) == 1
                        else f"passages {of} do not say so"
                    )
                    citations[place] = replace(citations[place], is_right=False, problem=what)
        right = sum(one.is_right for one in citations)
        score = right / len(citations) if citations else 0.0
        reason = _cited_reason(citations, right)
        seen = [to_json(one) for one in citations]
        return self.scored(score, reason, judge.latency_ms, citations=seen)


def citations_in(text: str) -> Iterator[Citation]:
    """Yield the sentences of an answer that cite passages by number or quote text.

    Citations and quotations in code, link targets, HTML tags and lists of sources do not count. A number as the text of
    a link is a citation.
    """
    # A text in which nothing but what cites or quotes looks like it.
    text = _FENCED.sub("\n", text.translate(dict.fromkeys(_BARED)))
    text = _CODE.sub(lambda found: found[0].translate(_SHIELDED), text)
    text = _LINK.sub(_link_text, text)
    for sentence in _sentences(
        _MARK_BEHIND.sub(r"\2\1", _DEFINITION.sub("", _LIST_OF_SOURCES.sub("", _TAG.sub("", text))))
    ):
        cited = [number for mark in _MARKS.findall(sentence) for number in _numbers_in(mark)]
        quoted = [next(filter(None, found.groups())).strip() for found in _QUOTATION.finditer(sentence)]
        long = tuple(
            one for one in quoted if len(one) >= _MIN_QUOTED_CHARS and _plain(one).strip(" .,;:!?-…")
        )
        claim = " ".join(_MARKS.sub("", sentence).split()).strip(" -*•").translate(_BARED)
        if claim.strip(".!?:;,") and (cited or long):
            yield Citation(re.sub(r"\s+([.,;:!?])", r"\1", claim), tuple(dict.fromkeys(cited)), long)


def _link_text(link: "re.Match[str]") -> str:
    """Return the visible part of a link: the citation mark if its text is a number, nothing for an image."""
    if link[1]:
        return ""
    marked = link[2] if link[2].startswith("[") else f"[{link[2]}]"
    return marked if _MARKS.fullmatch(marked) else link[2]


def _sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a text; a full stop inside a quotation does not end one."""
    quotations = [found.span() for found in _QUOTATION.finditer(text)]
    start = 0
    for end in _SENTENCE_END.finditer(text):
        if not any(first < end.start() < last for first, last in quotations):
            yield text[start : end.start()]
            start = end.end()
    yield text[start:]


def _numbers_in(mark: str) -> Iterator[int]:
    for first, last in _NUMBERS.findall(mark.partition("†")[0]):
        end = int(last or first)
        yield from range(int(first), min(end, int(first) + _MOST_IN_RANGE) + 1)


def _checked(citation: Citation, passages: Sequence[str]) -> Citation:
    """Return a citation with the problem that can be found without a judge, if any."""
    missing = [number for number in citation.cited if not 1 <= number <= len(passages)]
    if missing:
        problem = f"there is no passage {missing[0]} (the context has {len(passages)})"
        return replace(citation, problem=problem, is_right=False)
    sources = [passages[number - 1] for number in citation.cited] or passages
    plain = [_plain(source) for source in sources]
    for quotation in citation.quoted:
        if not any(_is_in(quotation, source) for source in plain):
            where = "the cited passages" if citation.cited else "the context"
            problem = f"the quotation is not in {where}: “{quotation[:100]}”"
            return replace(citation, problem=problem, is_right=False)
    return citation


def _is_in(quotation: str, source: str) -> bool:
    """Return whether a `_plain` source contains a quotation; an ellipsis in the quotation matches any text."""
    place = 0
    for part in _ELLIPSIS.split(quotation):
        words = _plain(part).strip(" .,;:!?")
        found = source.find(words, place)
        if found < 0:
            return False
        place = found + len(words)
    return True


def _plain(text: str) -> str:
    """Normalise a text for matching quotations: ignore case, kinds of quotation marks and dashes, and line breaks."""
    folded = unicodedata.normalize("NFKC", text).translate(_SAME).casefold()
    return " ".join(folded.split())


_SAME = str.maketrans(
    {
        **dict.fromkeys("“”„«»「」", '"'),
        **dict.fromkeys("\u2018\u2019\u201a`", "'"),
        **dict.fromkeys("\u2013—\u2011\u2212", "-"),
    }
)


def _cited_reason(citations: Sequence[Citation], right: int) -> str:
    if not citations:
        return "the output cites and quotes nothing"
    if right == len(citations):
        return "the citation is correct" if right == 1 else f"all {right} citations are correct"
    first = next(one for one in citations if not one.is_right)
    wrong = len(citations) - right
    said = f"{wrong} of {plural(len(citations), 'citation')} {'is' if wrong == 1 else 'are'} wrong"
    return f"{said}: {first.claim[:200]} ({first.problem})"


def context_of(test: MergedTest) -> tuple[str, ...]:
    """Return the context passages: from the variable, else from the test itself; empty if there are none."""
    written = _written_context(test)
    return tuple(text for text in ((written,) if isinstance(written, str) else written) if text.strip())


def needed_context(subject: Subject) -> tuple[str, ...]:
    """Return the context passages.

    Raises:
        UnjudgeableError: there are none.
    """
    found = context_of(subject.test)
    if not found:
        raise UnjudgeableError("the test has no `context`", hint="put the retrieved text into `vars.context`")
    return found


def numbered_context(subject: Subject) -> tuple[str, ...]:
    """Return the numbered units of a context: the passages of a list, including empty ones, or the lines of a text.

    A text that is a list in JSON, as from a file or a cell of a table, is a list.

    Raises:
        UnjudgeableError: there are none.
    """
    needed_context(subject)
    written = _written_context(subject.test)
    if isinstance(written, str):
        lines = tuple(line.strip() for line in written.splitlines() if line.strip())
        listed = data_in(written.strip()) if subject.rules.template_language == "strict" else None
        if not isinstance(listed, list) or not any(isinstance(item, str | dict) for item in listed):
            return lines
        return tuple("" if item is None else value_text(item) for item in listed)
    return written


def check_context_is_there(spec: Assertion, context: CheckContext, problems: list[Problem]) -> None:
    """Report a test without context."""
    if not context_of(context.test):
        where = context.where.removeprefix("in ")
        message = f"{spec.base_type} needs a context, but {where} has none"
        hint = "put the retrieved text into `vars.context`"
        problems.append(Problem(message, spec.place.value("type"), hint))


def _written_context(test: MergedTest) -> str | tuple[str, ...]:
    """Return the first context that is not empty, as written: a text, or the passages of a list."""
    for value in (test.vars.get("context"), test.retrieval_context, test.context):
        if isinstance(value, str) and value.strip():
            return value
        if isinstance(value, list | tuple):
            passages = tuple("" if item is None else value_text(item) for item in value)
            if any(passage.strip() for passage in passages):
                return passages
    return ()
