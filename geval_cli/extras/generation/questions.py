"""Similarity of questions: duplicates are dropped, similar questions are grouped."""

import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

SAME_AT = 0.9
"""Questions with at least this cosine similarity are duplicates."""
GROUPED_AT = {"tf-idf": 0.4, "embeddings": 0.75}
"""A question with at least this cosine similarity to a group's centre belongs to the group."""

_WORD = re.compile(r"\w+")
_NUMBER = re.compile(r"\d+")
_STEM = 6
_LABEL_WORDS, _LEAST_LABEL = 3, 3
_YES_OR_NO = frozenset({"yes", "no", "true", "false"})
_FUNCTION_WORDS = frozenset(
    {
        "a",
        "an",
        "the",
        "of",
        "in",
        "on",
        "at",
        "to",
        "for",
        "by",
        "with",
        "from",
        "and",
        "please",
        "tell",
        "me",
        "can",
    }
    | {
        "is",
        "are",
        "was",
        "were",
        "be",
        "been",
        "did",
        "do",
        "does",
        "has",
        "have",
        "had",
        "could",
        "you",
        "my",
    }
)


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case and in one Unicode normal form."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


class KnownQuestions:
    """Questions that exist already. Two are equal if they differ only in function words."""

    def __init__(self, questions: Iterable[str] = ()) -> None:
        self._by_number: defaultdict[tuple[str, ...], list[list[str]]] = defaultdict(list)
        for question in questions:
            self.add(question)

    def add(self, question: str) -> None:
        words = _telling(question)
        self._by_number[_numbers(words)].append(words)

    def has(self, question: str) -> bool:
        """Return whether a question, or a near duplicate, is known; different numbers make a different question."""
        words = _telling(question)
        return any(_is_nearly(words, known) for known in self._by_number[_numbers(words)])


def _telling(question: str) -> list[str]:
    words = words_of(question)
    return [word for word in words if word not in _FUNCTION_WORDS] or words


def _numbers(words: Sequence[str]) -> tuple[str, ...]:
    return tuple(word for word in words if any(map(str.isdigit, word)))


def _is_nearly(first: Sequence[str], second: Sequence[str]) -> bool:
    if first == second:
        return True
    one, other = set(first), set(second)
    # Long questions in other words of one kind; in another order a question may be another one.
    in_order = [word for word in first if word in other] == [word for word in second if word in one]
    return in_order and len(one & other) >= SAME_AT * len(one | other)


def repeats_answer(question: str, answer: str) -> bool:
    """Return whether a question gives its answer away; naming it among several alternatives is fine."""
    asked, answered = words_of(question), words_of(answer)
    if not answered or (len(answered) == 1 and answered[0] in _YES_OR_NO) or "or" in asked:
        return False
    size = len(answered)
    return any(asked[place : place + size] == answered for place in range(len(asked) - size + 1))


class Group(Struct, frozen=True):
    """Similar questions by their indexes: the centre first, then those that differ most from the ones before.

    `size` includes duplicates; `words` are those that its members share and others lack.
    """

    members: tuple[int, ...]
    size: int
    words: tuple[str, ...]


Vector = Mapping[str, float]


def tf_idf(texts: Sequence[str]) -> list[Vector]:
    """Return TF-IDF vectors of word stems with length 1; all numbers count as the same word."""
    counts = [Counter(_stems(text)) for text in texts]
    holding = Counter(stem for found in counts for stem in found)
    vectors = []
    for found in counts:
        weights = {
            stem: (1 + math.log(count)) * math.log(1 + len(texts) / holding[stem])
            for stem, count in found.items()
        }
        vectors.append(_of_length_one(weights))
    return vectors


def _stems(text: str) -> list[str]:
    return [_NUMBER.sub("#", word)[:_STEM] for word in words_of(text)]


def _of_length_one(weights: Mapping[str, float]) -> Vector:
    length = math.hypot(*weights.values()) or 1.0
    return {name: weight / length for name, weight in weights.items()}


def similar_pairs(vectors: Sequence[Vector], least: float) -> list[dict[int, float]]:
    """Return for each vector the indexes of those with at least this cosine similarity, and the similarity."""
    posted: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
    near: list[dict[int, float]] = [{} for _ in vectors]
    for place, vector in enumerate(vectors):
        shared: defaultdict[int, float] = defaultdict(float)
        for name, weight in vector.items():
            for other, weight_there in posted[name]:
                shared[other] += weight * weight_there
            posted[name].append((place, weight))
        for other, cosine in shared.items():
            if cosine >= least:
                near[place][other] = near[other][place] = cosine
    return near


def grouped(texts: Sequence[str], near: Sequence[Mapping[int, float]], least: float) -> list[Group]:
    """Return groups of similar texts, the largest first; each text is in one group.

    The text with the most similar ones becomes a centre, with these as its group, and so on with the rest. Of
    duplicates,
    the first is kept, and all are counted.
    """
    firsts: dict[int, int] = {}
    for place in range(len(texts)):
        same = [other for other, cosine in near[place].items() if other < place and cosine >= SAME_AT]
        firsts[place] = min((firsts[other] for other in same), default=place)
    repeats = Counter(firsts.values())
    left = sorted(repeats)
    groups = []
    waiting = {
        place: {other for other in near[place] if other in repeats and near[place][other] >= least}
        for place in left
    }
    while waiting:
        centre = max(
            waiting,
            key=lambda place: (sum(repeats[item] for item in waiting[place]) + repeats[place], -place),
        )
        members = [centre, *sorted(waiting[centre], key=lambda item: (-near[centre][item], item))]
        size = sum(repeats[item] for item in members)
        groups.append(Group(tuple(_spread(members, near)), size, ()))
        for member in members:
            for other in waiting.pop(member):
                if other in waiting:
                    waiting[other].discard(member)
    groups.sort(key=lambda group: (-group.size, group.members[0]))
    everywhere = Counter(word for text in texts for word in set(words_of(text)))
    found = []
    for group in groups:
        inside = Counter(word for place in group.members for word in set(words_of(texts[place])))
        scores = {
            word: count**2 * math.log(1 + len(texts) / everywhere[word])
            for word, count in inside.items()
            if len(word) >= _LEAST_LABEL and not word.isdigit() and word not in _FUNCTION_WORDS
        }
        best = sorted(scores, key=lambda word: (-scores[word], word))[:_LABEL_WORDS]
        found.append(Group(group.members, group.size, tuple(best)))
    return found


_MOST_SPREAD = 20


def _spread(members: Sequence[int], near: Sequence[Mapping[int, float]]) -> list[int]:
    """Return the centre, then repeatedly the member least similar to those before it."""
    found, rest = [members[0]], list(members[1:])
    nearest = {item: near[members[0]].get(item, 0.0) for item in rest}
    while rest and len(found) < _MOST_SPREAD:
        chosen = min(rest, key=lambda item: (nearest[item], item))
        rest.remove(chosen)
        found.append(chosen)
        for item in rest:
            nearest[item] = max(nearest[item], near[chosen].get(item, 0.0))
    return [*found, *rest]
