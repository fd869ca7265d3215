"""Transfers with a peer that does not keep to the protocol: it is given up, and harms nobody else."""

import json
import logging
import socket
import threading
import time

import pytest

from inflight import RequestOptions
from inflight.kv_transfer.connector import KVConnector
from inflight.kv_transfer.kv_transfer_params import KVTransferParams
from inflight.kv_transfer.prompt_digest import prompt_digest
from inflight.kv_transfer.wire import receive_message, send_message
from tests.unit.kv_peers import (
    BYTES_PER_BLOCK,
    FINGERPRINT,
    PROMPT,
    TCP,
    connector,
    export,
    fake_producer,
    fallbacks,
    fetch,
)


def offers(num_bytes: object, body: bytes) -> "list[bytes]":
    head = json.dumps({"num_bytes": num_bytes}).encode()
    return [len(head).to_bytes(4, "big") + head + body]


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        ([], "unreachable"),
        ([b"\0"], "unreachable"),
        ([b"\xff\xff\xff\xff"], "unreachable"),
        ([b"\0\0\0\2xx"], "unreachable"),
        ([b"\0\0\0\2[]"], "unreachable"),
        (offers(10, b"123456789"), "unreachable"),
        (offers(11, b"12345678901"), "size"),
        (offers("10", b"1234567890"), "size"),
        (offers(2**70, b""), "size"),
        ([b'\0\0\0\x10{"refused": "x"}'], "unknown"),
        ([b'\0\0\0\x0f{"refused": []}'], "unknown"),
    ],
)
def test_a_producer_that_sends_nonsense_is_given_up(sent: list[bytes], reason: str) -> None:
    def answer(connection: socket.socket) -> None:
        connection.recv(4096)
        for part in sent:
            connection.sendall(part)

    with connector(**TCP) as consumer, fake_producer(answer) as offer:
        assert fetch(consumer, PROMPT, offer).imported is None
        assert fallbacks(consumer) == {reason: 1}
        assert consumer.stats().imported_bytes == 0


@pytest.mark.parametrize("sent", [b"", *offers(10, b"12345")])
def test_a_producer_that_is_silent_is_not_waited_for(sent: bytes) -> None:
    released = threading.Event()

    def answer(connection: socket.socket) -> None:
        connection.sendall(sent)
        released.wait(20)

    extra = {"fetch_timeout": 0.05}
    with connector(**TCP, kv_connector_extra_config=extra) as consumer, fake_producer(answer) as offer:
        assert fetch(consumer, PROMPT, offer).imported is None
        assert fallbacks(consumer) == {"timeout": 1}
        released.set()


def test_the_deadline_of_a_request_bounds_its_fetch() -> None:
    released = threading.Event()
    extra = {"fetch_timeout": 100}
    with (
        connector(**TCP, kv_connector_extra_config=extra) as consumer,
        fake_producer(lambda _: bool(released.wait(20)) and None) as offer,
    ):
        assert fetch(consumer, PROMPT, offer, RequestOptions(deadline_ms=20)).imported is None
        assert fallbacks(consumer) == {"timeout": 1}
        released.set()


def connected(producer: KVConnector, offer: KVTransferParams) -> socket.socket:
    return socket.create_connection((offer.remote_host, offer.remote_port), timeout=20)


@pytest.mark.parametrize("sent", [b"", b"\0", b"\xff\xff\xff\xff", b"\0\0\0\2xx", b"\0\0\0\2{}"])
def test_a_consumer_that_sends_nonsense_harms_nobody(sent: bytes) -> None:
    with connector(**TCP) as engine:
        offer = export(engine, PROMPT)
        assert offer is not None
        with connected(engine, offer) as connection:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(4096):
                pass
        assert fetch(engine, PROMPT, offer).imported is not None


def answer_to(producer: KVConnector, offer: KVTransferParams | None, **changes: object) -> dict[str, object]:
    """What a producer answers to a consumer that asks for an export, and then ends."""
    assert offer is not None
    digest = prompt_digest(PROMPT, RequestOptions())
    asked = {"op": "fetch", "handle": offer.remote_request_id, "digest": digest, "fingerprint": FINGERPRINT}
    with connected(producer, offer) as connection:
        deadline = time.monotonic() + 20
        send_message(connection, {**asked, **changes}, deadline)
        return receive_message(connection, deadline)


def test_what_was_not_acknowledged_can_be_fetched_again() -> None:
    with connector(**TCP) as engine:
        offer = export(engine, PROMPT)
        assert answer_to(engine, offer) == {"num_bytes": 2 * BYTES_PER_BLOCK}
        assert fetch(engine, PROMPT, offer).imported is not None


@pytest.mark.parametrize("digest", ["\ud800", "", None, 7, {}])
def test_a_digest_that_is_none_is_refused(digest: object) -> None:
    with connector(**TCP) as engine:
        assert answer_to(engine, export(engine, PROMPT), digest=digest) == {"refused": "prompt"}


@pytest.mark.parametrize("first", [-1, 2 * BYTES_PER_BLOCK, 2**70, "1", None, 1.5])
def test_bytes_that_are_not_there_are_refused(first: object) -> None:
    with connector(**TCP) as engine:
        offer = export(engine, PROMPT)
        assert answer_to(engine, offer, first_byte=first) == {"refused": "size"}
        assert fetch(engine, PROMPT, offer).imported is not None


def test_strangers_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with connector(**TCP) as engine:
        offer = export(engine, PROMPT)
        assert offer is not None
        for _ in range(3):
            with connected(engine, offer) as connection:
                connection.sendall(b"\xff\xff\xff\xff")
                assert connection.recv(1) == b""
    assert caplog.text.count("was not fetched") == 1


def test_silent_consumers_lose_their_connections_and_never_all_of_them() -> None:
    with connector(**TCP, kv_connector_extra_config={"fetch_timeout": 0.2}) as producer, connector(**TCP) as consumer:
        offer = export(producer, PROMPT)
        assert offer is not None
        silent = [connected(producer, offer) for _ in range(40)]
        for connection in silent:
            assert connection.recv(1) == b""
            connection.close()
        producer._server._seconds = 20.0  # The next one does read, at the machine's pace.
        assert fetch(consumer, PROMPT, offer).imported is not None
