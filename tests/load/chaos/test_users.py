"""The users tell right answers from wrong ones, and errors from both."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from load_tests.chaos.doors import NotAnswered, Piece, Question
from load_tests.chaos.users import Asked, Users

RIGHT = ("It ", "is ", "so.")


class ChangingDoor:
    """Answers rightly until `after` is set; then it gives these pieces, and the error if there is one."""

    name = "door"

    def __init__(self) -> None:
        self.after: tuple[str, ...] = RIGHT
        self.error: str | None = None

    async def ask(self, question: Question) -> AsyncIterator[Piece]:
        for piece in self.after:
            await asyncio.sleep(0)
            yield Piece(piece)
        if self.error is not None:
            raise NotAnswered(self.error)


async def _first(users: Users, wanted: Callable[[], bool]) -> None:
    task = asyncio.create_task(users.run(1))
    while not wanted():
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _ask(pieces: tuple[str, ...], error: str | None) -> Asked:
    door = ChangingDoor()
    users = Users([door])
    await users.learn()
    door.after, door.error = pieces, error
    await _first(users, lambda: bool(users.asked))
    return users.asked[0]


@pytest.mark.parametrize(
    ("pieces", "error", "right", "wrong"),
    [
        (RIGHT, None, True, False),
        (("It is so.",), None, True, False),
        (("It ", "is "), None, False, True),
        (("It ", "was "), None, False, True),
        (("It ", "is "), "TransportError", False, False),
        (("It ", "was "), "TransportError", False, True),
        ((), "ServerFault", False, False),
    ],
)
def test_an_answer_is_right_wrong_or_an_error(
    pieces: tuple[str, ...], error: str | None, right: bool, wrong: bool
) -> None:
    asked = asyncio.run(asyncio.wait_for(_ask(pieces, error), 20))
    assert (asked.right, asked.wrong, asked.error) == (right, wrong, error)
