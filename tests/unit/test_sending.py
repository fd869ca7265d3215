"""What Triton removes from a response stays alive until the response has been sent."""

import weakref

from serving.sending import send


class Tensor:
    """An output."""


class Response:
    """Has the only references to its tensors, as when a model has just made it."""

    def __init__(self, count: int) -> None:
        self.tensors = [Tensor() for _ in range(count)]

    def output_tensors(self) -> list[Tensor]:
        return list(self.tensors)


class Sender:
    """Like Triton's sender, it removes outputs that the client did not ask for."""

    def __init__(self) -> None:
        self.flags: list[int] = []
        self.all_alive = False

    def send(self, response: Response, flags: int) -> None:
        removed = [weakref.ref(tensor) for tensor in response.tensors]
        response.tensors.clear()
        self.flags.append(flags)
        self.all_alive = all(tensor() is not None for tensor in removed)


def test_removed_outputs_are_not_freed_while_triton_sends() -> None:
    sender = Sender()
    send(sender, Response(3))
    send(sender, Response(1), 1)
    assert sender.all_alive
    assert sender.flags == [0, 1]


def test_nothing_is_kept_after_sending() -> None:
    response = Response(1)
    (tensor,) = map(weakref.ref, response.tensors)
    send(Sender(), response)
    assert tensor() is None
