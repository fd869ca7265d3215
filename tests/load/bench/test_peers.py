"""The arithmetic of `make bench-peers`; the servers themselves run when it does."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

import pytest

from load_tests.bench.peers import (
    LEVELS,
    OURS,
    ROUNDS,
    Contender,
    Load,
    Measured,
    Running,
    Stream,
    ask,
    closed_loop,
    compare,
    num_tasks,
    table,
    tasks_of,
)
from load_tests.workload import Task


def measured(tokens: int) -> Measured:
    return Measured(
        {users: [Load(tokens, 2.0, [0.1, 0.3], [0.01, 0.02]), Load(tokens, 2.0, [0.2], [])] for users in LEVELS}
    )


def test_the_table_compares_with_each_peer_at_every_level() -> None:
    lines = table({OURS: measured(300), "other": measured(200)}).splitlines()
    assert len(lines) == 2 + 2 * len(LEVELS)
    assert lines[2].split(" | ")[1:5] == [OURS, "150", "150, 150", ""]
    assert lines[3].split(" | ")[1:6] == ["other", "100", "100, 100", "1.50", "200, 298"]


@pytest.mark.parametrize(("restarts", "places"), [(False, [max(LEVELS)]), (True, list(LEVELS))])
def test_all_levels_are_measured_each_round_however_often_the_server_starts(restarts: bool, places: list[int]) -> None:
    starts = []

    async def stream(prompt: str, output_tokens: int) -> AsyncIterator[str]:
        yield "piece"

    @contextlib.asynccontextmanager
    async def connect() -> AsyncIterator[Stream]:
        yield stream

    @contextlib.contextmanager
    def start(users: int) -> Iterator[Running]:
        starts.append(users)
        yield Running(connect, lambda: 2**30)

    results = compare({"any": Contender(start, restarts)})
    assert starts == ROUNDS * places
    assert {users: len(loads) for users, loads in results["any"].loads.items()} == dict.fromkeys(LEVELS, ROUNDS)


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
