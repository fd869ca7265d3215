"""The arithmetic of `make bench-peers`; the servers themselves run when it does."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from load_tests.workload import Task
from scripts.bench_peers import LEVELS, OURS, Load, Measured, ask, closed_loop, num_tasks, table, tasks_of


def measured(tokens: int) -> Measured:
    return Measured(
        {users: [Load(tokens, 2.0, [0.1, 0.3], [0.01, 0.02]), Load(tokens, 2.0, [0.2], [])] for users in LEVELS}
    )


def test_the_table_compares_with_each_peer_at_every_level() -> None:
    lines = table({OURS: measured(300), "other": measured(200)}).splitlines()
    assert len(lines) == 2 + 2 * len(LEVELS)
    assert lines[2].split(" | ")[1:5] == [OURS, "150", "150, 150", ""]
    assert lines[3].split(" | ")[1:6] == ["other", "100", "100, 100", "1.50", "200, 298"]


def test_every_round_and_level_has_requests_of_its_own() -> None:
    prompts = [task.prompt for seed in (1, 2) for users in LEVELS for task in tasks_of(users, seed)]
    assert len(prompts) == len(set(prompts)) == 2 * sum(map(num_tasks, LEVELS))
    assert tasks_of(8, 1) == tasks_of(8, 1)


def test_a_closed_loop_answers_every_request_once() -> None:
    answered = []

    async def stream(prompt: str, output_tokens: int) -> AsyncIterator[str]:
        answered.append(prompt)
        for piece in ("", *["piece"] * output_tokens):
            yield piece

    tasks = [Task(str(number), number + 1) for number in range(5)]
    load = asyncio.run(closed_loop(stream, 2, tasks, lambda: None))
    assert sorted(answered) == [task.prompt for task in tasks]
    assert load.tokens == 15
    assert len(load.first_tokens) == 5
    assert len(load.gaps) == 10


def test_an_answer_without_text_is_an_error() -> None:
    async def stream(prompt: str, output_tokens: int) -> AsyncIterator[str]:
        yield ""

    with pytest.raises(RuntimeError, match="no text"):
        asyncio.run(ask(stream, Task("x", 1)))
