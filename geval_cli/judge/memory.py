"""What one run has found out about its judges, so that it is found out once."""

import asyncio
from collections.abc import Awaitable, Callable

from geval_cli.records import ModelResponse


class JudgeMemory:
    """Remembers, by judge label, which judges give token probabilities and which need room for long answers.

    One per run and event loop.
    """

    def __init__(self) -> None:
        self._gives_logprobs: dict[str, bool] = {}
        self._needs_room: set[str] = set()
        self._locks: dict[str, asyncio.Lock] = {}

    async def ask_with_logprobs(
        self, judge_label: str, ask: Callable[[], Awaitable[ModelResponse]]
    ) -> ModelResponse | None:
        """The answer of `ask`, or None without asking when the judge is known to give no token probabilities.

        The first caller asks while all others with the same judge wait for what it finds.
        """
        if judge_label not in self._gives_logprobs:
            async with self._locks.setdefault(judge_label, asyncio.Lock()):
                if judge_label not in self._gives_logprobs:
                    response = await ask()
                    self._gives_logprobs[judge_label] = any(
                        choice.token_logprobs is not None for choice in response.choices
                    )
                    return response
        return await ask() if self._gives_logprobs[judge_label] else None

    def needs_room(self, judge_label: str) -> bool:
        """Whether the small token limit of scores-only forms is known to cut this judge's replies off."""
        return judge_label in self._needs_room

    def note_needs_room(self, judge_label: str) -> None:
        """Remember that the small token limit is too small for this judge, as it is for those that think first."""
        self._needs_room.add(judge_label)
