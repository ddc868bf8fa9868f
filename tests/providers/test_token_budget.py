import asyncio

from support.calls import run

from geval_cli.extras.local.llama_server import TokenBudget


def test_whoever_does_not_fit_waits_in_order() -> None:
    async def body() -> list[str]:
        budget = TokenBudget(10)
        seen: list[str] = []

        async def use(name: str, tokens: int) -> None:
            async with budget.hold(tokens):
                seen.append(f"+{name}")
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                seen.append(f"-{name}")

        await asyncio.gather(use("a", 6), use("b", 6), use("c", 4), use("d", 99))
        return seen

    seen = run(body())
    assert seen[:2] == ["+a", "-a"]
    assert seen.index("+b") < seen.index("+c") < seen.index("-b")
    assert seen[-2:] == ["+d", "-d"]


def test_a_cancelled_wait_lets_the_next_one_through() -> None:
    async def body() -> None:
        budget = TokenBudget(10)
        async with budget.hold(8):
            large = asyncio.create_task(_enter(budget, 9))
            small = asyncio.create_task(_enter(budget, 2))
            await asyncio.sleep(0)
            assert not small.done()
            large.cancel()
            await asyncio.gather(large, return_exceptions=True)
            await small
        async with budget.hold(10):
            pass

    run(body())


async def _enter(budget: TokenBudget, tokens: int) -> None:
    async with budget.hold(tokens):
        pass
