"""The cache key: a hash of everything that changes an answer, and of nothing else."""

import hashlib

from geval_cli.json_codec import encode_json
from geval_cli.providers.base import ProviderIdentity
from geval_cli.records import JsonValue, Message, ModelRequest

_VERSION = 1
"""Raised when the meaning of a stored answer changes, so that older ones are asked for again."""


def choice_keys(identity: ProviderIdentity, request: ModelRequest) -> tuple[str, ...]:
    """The keys of all samples of `request`, in the order of its `sample_indexes`.

    Each is 64 hexadecimal digits, the same on every machine and in every process. How many samples are asked for
    together does not change them, nor on whose behalf they are asked for.
    """
    question = _question_hash(identity, request)
    return tuple(_sample_key(question, index) for index in request.sample_indexes)


def _question_hash(identity: ProviderIdentity, request: ModelRequest) -> "hashlib._Hash":
    params = {**identity.params, **request.params}
    question = [
        _VERSION,
        identity.kind,
        identity.model,
        identity.endpoint,
        # Sorted at this level only: inside a value (a JSON Schema, say) order can change what a model writes.
        sorted((name, value) for name, value in params.items() if name != "n" and value is not None),
        [[message.role, message.content, *_further(message)] for message in request.messages],
        request.want_logprobs,
        request.response_schema,
        request.repeat_index,
        *request.ratings,
    ]
    if identity.variables:
        question.append({name: request.variables.get(name) for name in identity.variables})
    return hashlib.sha256(encode_json(question))


def _further(message: Message) -> list[JsonValue]:
    """What else a message says; nothing for most, so that their keys stay what they were."""
    return [dict(message.further)] if message.further else []


def _sample_key(question: "hashlib._Hash", sample_index: int) -> str:
    digest = question.copy()
    digest.update(f"#{sample_index}".encode("ascii"))
    return digest.hexdigest()
