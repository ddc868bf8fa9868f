"""Keys by which a test is found again in another run, wherever it stands: hashes of what it says. Pure.

A test says its description, its variables, its input, what its turns bring, and its images. What outputs are held
against and what a system made (`output`, `retrieval_context`, `trace`, answers) are no part of it: they may change from
run to run while the test stays the same.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence

from geval_cli.assertions.base import MergedTest
from geval_cli.json_codec import decode_json, encode_json
from geval_cli.judge.conversation import ASSISTANT, USER
from geval_cli.records import JsonValue, Turn
from geval_cli.source.media import is_marker, named_and_hashed, without_media_data


def content_key(
    description: str | None, variables: Mapping[str, JsonValue] | str, said: JsonValue = None
) -> str:
    """Return the key of a test with this content: 32 hexadecimal digits.

    Args:
        description: None counts as empty.
        variables: its `vars`, or their JSON text. Their order decides nothing.
        said: what else it says. Without anything, the key is of description and variables alone.
    """
    if isinstance(variables, str):
        try:
            variables = decode_json(variables)
        except ValueError:
            variables = {"": variables}
    named = sorted(variables.items()) if isinstance(variables, Mapping) else variables
    content = [description or "", named, said] if said else [description or "", named]
    try:
        text = encode_json(content)
    except TypeError:  # a Python program's own values; what stores them says whether that can be
        text = json.dumps(content, default=str).encode()
    return hashlib.blake2b(text, digest_size=16).hexdigest()


def with_texts(variables: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
    """Return variables with numbers and truth values as the texts that a table has of them."""
    if not any(isinstance(value, int | float) for value in variables.values()):
        return variables
    return {
        name: encode_json(value).decode() if isinstance(value, int | float) else value
        for name, value in variables.items()
    }


def key_across_formats(key: str, description: str | None, variables: Mapping[str, JsonValue]) -> str:
    """Return the key that a test would have in a table, where every cell is a text; its own where that is unknown.

    A suite may move from YAML (`n: 1`) to CSV (the text `1`), and its tests stay the same. Stored keys stay what they
    are; this one is made when runs are compared. That takes all that a key is made of, which results do not have of
    tests with an input, turns or images.
    """
    texts = with_texts(variables)
    if texts is variables or key != content_key(description, variables):
        return key
    return content_key(description, texts)


NOTHING_SAID = content_key(None, {})
"""The key of every test that brings nothing but an output."""


def key_of(test: MergedTest) -> str:
    """Return the key of a test as its config has it, before programs change its variables."""
    said = _given(
        input=test.input,
        turns=_turns_said(test),
        images=[_hash_said(item) for item in (*test.images, *test.audio)],
    )
    if not (said or test.description or test.vars):
        # An output that is judged as it is. Elsewhere these two may be corrected, and the test stays the same.
        said = _given(context=test.context, expected_output=test.expected_output)
    return content_key(test.description, without_media_data(test.vars), without_media_data(said))


def _given(**parts: JsonValue) -> dict[str, JsonValue]:
    return {name: value for name, value in parts.items() if value}


def _turns_said(test: MergedTest) -> list[JsonValue]:
    """Return the turns without answers that models gave, and without the one that is judged."""
    if test.user is not None:
        return [[test.user.goal, test.user.opening]]
    if test.plays_turns:
        return [[turn.role, turn.content] for turn in test.turns if turn.role == USER]
    before = test.turns[:-1] if test.ends_with_answer else test.turns
    found = []
    for turn in before:
        further = [list(turn.tool_calls), turn.tool_call_id] if turn.tool_calls or turn.tool_call_id else []
        found.append([turn.role, turn.content, *further])
    return found


def _hash_said(marker: str) -> str:
    """Return the hash of an image or a recording: its file may be called otherwise."""
    return named_and_hashed(marker)[1] if is_marker(marker) else marker


def rough_key(
    description: str | None, variables: Mapping[str, JsonValue] | str, words: Sequence[str] = ()
) -> str:
    """Return the key of what any result has of its test, also one of another program.

    `words` are what was said in its turns by others than the assistant, as `words_of` has them.
    """
    return content_key(description, variables, list(words))


def words_of(turns: Iterable[Turn]) -> list[str]:
    """Return what was said by others than the assistant: in a result, the rest may be answers of a model."""
    return [turn.content for turn in turns if turn.role != ASSISTANT]
