"""Outputs and turns of earlier tests, which later tests of a run may use."""

import json

from msgspec import Struct, field

from geval_cli.assertions.base import MergedTest, Subject
from geval_cli.engine.plan import Job
from geval_cli.records import JsonValue
from geval_cli.specs.base import PromptSpec
from geval_cli.specs.promptfoo import NamedPromptSpec

CONVERSATION_ID = "conversationId"
"""The key of a test's metadata that names its conversation."""

CONVERSATION = "_conversation"
"""The variable that holds the earlier turns: a list of prompt, input, output and a program's metadata."""

ANSWER = "untransformedOutput"
"""The key, among what is reported with an output, of the answer before any transform, which promptfoo's turns hold."""


def uses_conversation(prompt: PromptSpec) -> bool:
    """Return whether a prompt uses earlier turns."""
    if isinstance(prompt, NamedPromptSpec) and prompt.made_by:
        return prompt.sees_conversation
    return CONVERSATION in (prompt.raw or "")


def is_order_bound(test: MergedTest) -> bool:
    """Return whether later tests may depend on this one."""
    return test.promptfoo.store_output_as is not None


class ConversationState(Struct):
    """The outputs and turns that jobs pass on to later ones; such jobs run one after another."""

    _outputs: dict[str, JsonValue] = field(default_factory=dict)
    _turns: dict[str, list[JsonValue]] = field(default_factory=dict)

    def variables_for(self, job: Job) -> dict[str, JsonValue]:
        """Return the variables added to a job's test. All of them came from models, so they are never rendered."""
        found = dict(self._outputs)
        if uses_conversation(job.prompt) and not job.test.promptfoo.disable_conversation_var:
            found[CONVERSATION] = list(self._turns.get(_conversation_of(job), ()))
        return found

    def record(self, job: Job, subject: Subject) -> None:
        """Keep the request and the answer of a job for later jobs."""
        if name := job.test.promptfoo.store_output_as:
            self._outputs[name] = subject.output
        if uses_conversation(job.prompt):
            answer = subject.reported.get(ANSWER, subject.output)
            self._turns.setdefault(_conversation_of(job), []).append(turn_of(subject, answer))


def turn_of(subject: Subject, output: JsonValue) -> dict[str, JsonValue]:
    """Return an output and what it answers as a turn for later tests."""
    prompt = _as_json(subject.rendered_prompt)
    last = prompt[-1] if isinstance(prompt, list) and prompt else prompt
    said = last.get("content", last) if isinstance(last, dict) else last
    turn = {"prompt": prompt, "input": said, "output": "" if output is None else output}
    return turn | {"metadata": subject.reported["metadata"]} if "metadata" in subject.reported else turn


def _conversation_of(job: Job) -> str:
    return f"{job.column}:{job.repeat_index}:{job.test.metadata.get(CONVERSATION_ID, '')}"


def _as_json(text: str) -> JsonValue:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
