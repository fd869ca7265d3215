"""Follows KV events as a router does: subscribes, notices gaps, and asks for what it missed."""

from typing import Any

import msgspec
import zmq

_PATIENCE_MS = 20_000


class Follower:
    """A subscriber that holds the hashes of the blocks that are in the cache."""

    def __init__(self, endpoint: str, replay_endpoint: str | None = None, topic: str = "") -> None:
        self._context = zmq.Context()
        self._live = self._context.socket(zmq.SUB)
        self._live.connect(endpoint)
        self._topic = topic
        self._live.subscribe(topic)
        self._replay = self._context.socket(zmq.DEALER)
        if replay_endpoint is not None:
            self._replay.connect(replay_endpoint)
        self.next = 0
        """Number of the first batch that is not applied yet."""
        self.hashes: set[int] = set()
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> "Follower":
        return self

    def __exit__(self, *_: object) -> None:
        self._context.destroy(linger=0)

    def hears(self, *, milliseconds: int) -> bool:
        """Whether a message is there, or comes within the time."""
        return bool(self._live.poll(milliseconds))

    def receive(self) -> int:
        """Wait for a message, and return its number. If it comes after a gap, ask for what is missing."""
        topic, number, payload = self._frames(self._live)
        assert topic == self._topic.encode()
        if int.from_bytes(number, "big") > self.next:
            self.catch_up()
        self._apply(number, payload)
        return int.from_bytes(number, "big")

    def catch_up(self) -> list[int]:
        """Ask for all batches from `next` on, and return the numbers of those that came."""
        self.ask(self.next.to_bytes(8, "big"))
        numbers = []
        while True:
            delimiter, topic, number, payload = self._frames(self._replay)
            assert delimiter == b""
            if number == b"\xff" * 8:
                assert (topic, payload) == (b"", b"")
                return numbers
            assert topic == self._topic.encode()
            self._apply(number, payload)
            numbers.append(int.from_bytes(number, "big"))

    def ask(self, *frames: bytes) -> None:
        self._replay.send_multipart((b"", *frames))

    def follow_until(self, hashes: set[int]) -> None:
        """Receive until exactly these blocks are known to be in the cache."""
        while self.hashes != hashes:
            self.receive()

    def _frames(self, socket: "zmq.Socket[bytes]") -> list[bytes]:
        assert socket.poll(_PATIENCE_MS), "no message came"
        return socket.recv_multipart()

    def _apply(self, number: bytes, payload: bytes) -> None:
        if int.from_bytes(number, "big") < self.next:
            return  # It came in an answer, too.
        self.next = int.from_bytes(number, "big") + 1
        time, events, rank = msgspec.msgpack.decode(payload)
        assert isinstance(time, float)
        assert rank == 0
        for event in events:
            self.events.append(event)
            if event["type"] == "BlockStored":
                self.hashes.update(event["block_hashes"])
            elif event["type"] == "BlockRemoved":
                self.hashes.difference_update(event["block_hashes"])
            else:
                assert event == {"type": "AllBlocksCleared"}
                self.hashes.clear()
