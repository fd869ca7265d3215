"""The worst user goes on whatever happens, and leaves when its kind says so."""

import asyncio
import random
from collections.abc import AsyncGenerator

import pytest

from load_tests.chaos.doors import NotAnswered, Piece, Question
from load_tests.neighbour.measure import Neighbour, running
from load_tests.neighbour.worst import WORST, Worst


class CountingDoor:
    """Gives three pieces, or an error after them, and counts those that were taken."""

    name = "door"

    def __init__(self, *, fails: bool) -> None:
        self.fails = fails
        self.asked: list[Question] = []
        self.taken = 0

    async def ask(self, question: Question) -> AsyncGenerator[Piece, None]:
        self.asked.append(question)
        for _ in range(3):
            await asyncio.sleep(0)
            self.taken += 1
            yield Piece("word")
        if self.fails:
            raise NotAnswered("InvalidRequest")


async def _first(door: CountingDoor, worst: Worst, count: int) -> None:
    neighbour = Neighbour(door, random.Random(0), "loud")
    async with running(neighbour.run(worst)):
        while neighbour.sent <= count:
            await asyncio.sleep(0)


@pytest.mark.parametrize(("leaves_after", "fails", "taken"), [(None, False, 3), (None, True, 3), (1, False, 1)])
def test_the_next_request_follows_whatever_the_end_was(leaves_after: int | None, fails: bool, taken: int) -> None:
    door = CountingDoor(fails=fails)
    worst = Worst(lambda chance: Question("Hello", (), {"max_tokens": 5}), leaves_after=leaves_after)
    asyncio.run(asyncio.wait_for(_first(door, worst, 10), 20))
    assert len(door.asked) >= 10
    assert 10 * taken <= door.taken <= len(door.asked) * taken
    assert door.asked[0].sampling == {"max_tokens": 5, "tenant": "loud"}


@pytest.mark.parametrize(
    ("fails", "refused", "unexpected"),
    [
        (False, False, []),
        (True, True, []),
        (True, False, ["refused with InvalidRequest: "]),
        (False, True, ["answered, although it must be refused"]),
    ],
)
def test_requests_that_end_otherwise_than_they_should_are_noted(
    fails: bool, refused: bool, unexpected: list[str]
) -> None:
    neighbour = Neighbour(CountingDoor(fails=fails), random.Random(0), None)

    async def scenario() -> None:
        async with running(neighbour.run(Worst(lambda chance: Question("Hello"), refused=refused))):
            while neighbour.sent <= 1:
                await asyncio.sleep(0)

    asyncio.run(scenario())
    assert neighbour.unexpected == unexpected


def test_a_user_who_dies_ends_the_measurement_with_an_error() -> None:
    def broken(chance: random.Random) -> Question:
        raise KeyError("delta")

    async def scenario() -> None:
        async with running(Neighbour(CountingDoor(fails=False), random.Random(0), None).run(Worst(broken))):
            await asyncio.sleep(0)

    with pytest.raises(KeyError, match="delta"):
        asyncio.run(scenario())


@pytest.mark.parametrize("name", WORST)
def test_no_two_prompts_begin_alike(name: str) -> None:
    chance = random.Random(0)
    first, second = WORST[name].make(chance), WORST[name].make(chance)
    if first.prompt and name != "malformed fields, without a pause":
        assert first.prompt[:20] != second.prompt[:20]
