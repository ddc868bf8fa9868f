"""The cache key of a sample: a hash of everything that changes an answer, and of nothing else."""

import hashlib

from geval_cli.json_codec import encode_json
from geval_cli.providers.base import ProviderIdentity
from geval_cli.records import JsonValue, Message, ModelRequest

_VERSION = 1
"""Raised when the meaning of a stored answer changes, so that older ones are asked for again."""


def choice_keys(identity: ProviderIdentity, request: ModelRequest) -> tuple[str, ...]:
    """Return the keys of all samples of `request`, in the order of its `sample_indexes`.

    Each is 64 hexadecimal digits, the same on every machine and in every process. How many samples are asked for
    together does not change them, nor on whose behalf they are asked for.
    """
    question = hashlib.sha256(_question_bytes(identity, request))
    return tuple([_sample_key(question.copy(), index) for index in request.sample_indexes])


def _question_bytes(identity: ProviderIdentity, request: ModelRequest) -> bytes:
    params = {**identity.params, **request.params}
    question = [
        _VERSION,
        identity.kind,
        identity.model,
        identity.endpoint,
        # Sorted at this level only: inside a value (a JSON Schema, say) order can change what a model writes.
        sorted((name, value) for name, value in params.items() if name != "n" and value is not None),
        [_said(message) for message in request.messages],
        request.want_logprobs,
        request.response_schema,
        request.repeat_index,
        *request.ratings,
    ]
    if identity.variables:
        question.append({name: request.variables.get(name) for name in identity.variables})
    return encode_json(question)


def _said(message: Message) -> list[JsonValue]:
    if not message.further:  # as with most, whose keys stay what they were
        return [message.role, message.content]
    return [message.role, message.content, dict(message.further)]


def _sample_key(question: "hashlib._Hash", sample_index: int) -> str:
    question.update(b"#%d" % sample_index)
    return question.hexdigest()
