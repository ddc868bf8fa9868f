import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.judge_server import judge_sensibly
from support.loopback import LoopbackServer
from support.scripted_judge import ScriptedJudge

from geval_cli.errors import UsageError
from geval_cli.judge.estimate import Grade
from geval_cli.judge.metric import Judge, JudgedCase, Metric
from geval_cli.runs.session import Session, judge_problems, open_session
from geval_cli.specs.base import ProviderSpec
from geval_cli.store.cache import ResponseCache

METRIC = Metric("Tone", ("Be kind.",))
CASE = JudgedCase("Thank you.", input="Say thanks.")


def grade(env: dict[str, str], choose: Callable[[Session], Judge], **options: Any) -> Grade:
    async def body() -> Grade:
        async with open_session(env=env, base_dir=Path(), **options) as judges:
            return await judges.grade(METRIC, CASE, choose(judges))

    return asyncio.run(body())


def openai(judges: Session) -> Judge:
    return judges.find(ProviderSpec(id="openai:gpt-4o"))


def test_answers_are_kept_in_the_cache_that_is_given(tmp_path: Path) -> None:
    cache = ResponseCache.open(tmp_path / "home")
    with LoopbackServer(respond=judge_sensibly) as server:
        env = {"OPENAI_BASE_URL": server.base_url}
        grades = [grade(env, openai, cache=cache) for _ in range(2)]
        assert len(server.requests) == 2
    cache.close()
    assert [item.score for item in grades] == [0.9, 0.9]
    assert grades[1].usage.cached_requests == 2


def test_without_a_cache_answers_last_as_long_as_the_judges() -> None:
    with LoopbackServer(respond=judge_sensibly) as server:
        env = {"OPENAI_BASE_URL": server.base_url}
        for _ in range(2):
            grade(env, openai)
        assert len(server.requests) == 4


def test_a_provider_is_built_once() -> None:
    async def body() -> bool:
        async with open_session(env={"OPENAI_API_KEY": "k"}, base_dir=Path()) as judges:
            return openai(judges) == openai(judges)

    assert asyncio.run(body())


def test_every_problem_of_a_judge_is_named() -> None:
    config = {"timeout_s": 0, "max_retries": -1}
    with pytest.raises(UsageError, match=r"^openai:gpt-4o cannot judge:\n- `timeout_s` .*\n- `max_retries`"):
        grade({}, lambda judges: judges.find(ProviderSpec(id="openai:gpt-4o", config=config)))


def test_a_lacking_key_is_a_problem_only_for_who_is_going_to_judge() -> None:
    spec = ProviderSpec(id="openai:gpt-4o")
    [problem] = judge_problems(spec, env={}, base_dir=Path())
    assert "OPENAI_API_KEY is not set" in problem.message
    assert [*judge_problems(spec, env={}, base_dir=Path(), is_going_to_judge=False)] == []


def test_what_a_server_lacks_is_told_in_a_sentence() -> None:
    notices: list[str] = []
    with LoopbackServer(respond=judge_sensibly) as server:
        grade({"OPENAI_BASE_URL": server.base_url}, openai, notice=notices.append)
    assert notices == ["openai:gpt-4o gives no token log-probabilities"]


def test_equal_requests_reach_an_adopted_judge_once() -> None:
    judge = ScriptedJudge(lambda request: '{"reason": "Kind.", "score": 8}')

    async def body() -> list[float]:
        async with open_session(env={}, base_dir=Path()) as judges:
            adopted = judges.adopt(judge)
            grades = await asyncio.gather(*(judges.grade(METRIC, CASE, adopted) for _ in range(3)))
            return [item.score for item in grades]

    assert asyncio.run(body()) == [0.8] * 3
    assert len(judge.requests) == 2


def test_adopted_judges_that_are_called_the_same_are_kept_apart() -> None:
    replies = [f'{{"reason": "r", "score": {score}}}' for score in (8, 2)]
    ours = [ScriptedJudge(lambda request, text=text: text) for text in replies]  # type: ignore[misc]

    async def body() -> list[float]:
        async with open_session(env={}, base_dir=Path()) as judges:
            return [(await judges.grade(METRIC, CASE, judges.adopt(judge))).score for judge in ours]

    assert asyncio.run(body()) == [0.8, 0.2]


def test_answers_of_an_adopted_judge_do_not_outlive_it(tmp_path: Path) -> None:
    cache = ResponseCache.open(tmp_path / "home")
    judges = [ScriptedJudge(lambda request: '{"reason": "Kind.", "score": 8}') for _ in range(2)]
    for judge in judges:
        grade({}, lambda known, judge=judge: known.adopt(judge), cache=cache)  # type: ignore[misc]
    cache.close()
    assert [len(judge.requests) for judge in judges] == [2, 2]


def test_a_function_that_judges_writes_the_steps_once(tmp_path: Path) -> None:
    calls = tmp_path / "calls.txt"
    (tmp_path / "judge.py").write_text(
        "def judge(prompt, options, context):\n"
        "    steps = '\"score\"' not in prompt\n"
        f"    with open({str(calls)!r}, 'a') as file:\n"
        "        file.write('steps ' if steps else 'rating ')\n"
        '    return \'{"steps": ["Read."]}\' if steps else \'{"reason": "r", "score": 5}\'\n',
        encoding="utf-8",
    )

    async def body() -> None:
        async with open_session(env={}, base_dir=tmp_path) as judges:
            judge = judges.find(ProviderSpec(id="python:judge.py:judge"))
            for output in ("a", "b", "c"):
                await judges.grade(METRIC, JudgedCase(output), judge)

    asyncio.run(body())
    assert calls.read_text(encoding="utf-8").split() == ["steps", "rating", "rating", "rating"]
