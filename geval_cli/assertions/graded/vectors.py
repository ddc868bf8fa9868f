"""Texts as vectors of an embedding model, and how near two of them are."""

import json
import math
from collections.abc import Sequence

from geval_cli.assertions.base import ModelGradedAssertion, Subject, Tools
from geval_cli.assertions.graded.judges import judge_provider
from geval_cli.errors import JudgeParseError, UnjudgeableError
from geval_cli.judge.calls import all_of
from geval_cli.judge.prompt import user_message
from geval_cli.providers.judge_kinds import EMBEDDING
from geval_cli.records import ModelRequest, Purpose, Role

Vector = tuple[float, ...]


async def embed(
    texts: Sequence[str], spec: ModelGradedAssertion, subject: Subject, tools: Tools
) -> tuple[list[Vector], float]:
    """Return the vectors of `texts`, and the latency of the slowest in milliseconds; equal texts are requested once.

    Raises:
        ProviderError: the model could not answer.
        JudgeParseError: it answered with something else.
        UnjudgeableError: a text is empty, which has no meaning to compare.
    """
    if any(not text.strip() for text in texts):
        raise UnjudgeableError(
            "an empty text has no embedding", hint="check the output and `value` for emptiness first"
        )
    model = tools.judge_for(judge_provider(spec, subject.test, tools.defaults, EMBEDDING))
    # An embedding is the same in every repeat, so that the repeat is no part of the request.
    requests = [
        ModelRequest(user_message(text), role=Role.JUDGE, purpose=Purpose.EMBEDDING) for text in texts
    ]
    responses = await all_of(model.complete(request) for request in requests)
    vectors = [_vector(response.choices[0].text) for response in responses]
    if len({len(vector) for vector in vectors}) > 1:
        raise JudgeParseError("the embeddings differ in length", raw_text=responses[0].choices[0].text)
    return vectors, max(response.latency_ms for response in responses)


def cosine(first: Vector, second: Vector) -> float:
    """Return the cosine of the angle between two vectors, -1 to 1; 0 when one of them is all zeros."""
    norms = math.hypot(*first) * math.hypot(*second)
    return dot(first, second) / norms if norms else 0.0


def dot(first: Vector, second: Vector) -> float:
    """Return the scalar product."""
    return math.fsum(one * other for one, other in zip(first, second, strict=True))


def distance(first: Vector, second: Vector) -> float:
    """Return the Euclidean distance."""
    return math.dist(first, second)


def _vector(text: str) -> Vector:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not found or not all(isinstance(item, int | float) for item in found):
        raise JudgeParseError(
            "the embedding model answered with something else than a vector",
            raw_text=text,
            hint="name an embedding model, for example openai:embedding:text-embedding-3-small",
        )
    return tuple(float(item) for item in found)
