"""Exports that are read with NIXL: what becomes of a consumer whose producer lies or stands still, and of a producer
whose consumer does not read."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from inflight import RequestOptions
from inflight.kv_transfer.kv_transfer_config import KVTransferConfig
from inflight.kv_transfer.nixl_transport import NixlTransport
from inflight.kv_transfer.prompt_digest import prompt_digest
from inflight.kv_transfer.wire import BrokenTransfer, receive_message, send_message
from tests.unit.kv_peers import (
    BYTES_PER_BLOCK,
    FINGERPRINT,
    PROMPT,
    connector,
    export,
    fake_producer,
    fallbacks,
    fetch,
)

NIXL = {"kv_connector": "nixl"}
SECONDS = 20.0


@pytest.mark.parametrize(
    ("offer", "metadata"),
    [
        ({}, b""),
        ({"agent": "a", "address": 0, "metadata_bytes": 4}, b"meta"),
        ({"agent": "a", "address": 4096, "metadata_bytes": 1 << 40}, b""),
        ({"agent": "a", "address": "4096", "metadata_bytes": 4}, b"meta"),
        ({"agent": "a", "address": 4096, "metadata_bytes": 4}, b"meta"),
        ({"agent": "a", "address": 4096, "metadata_bytes": 400}, bytes(400)),
    ],
)
def test_a_producer_that_offers_nonsense_is_given_up(offer: dict[str, object], metadata: bytes) -> None:
    def answer(connection: socket.socket) -> None:
        deadline = time.monotonic() + SECONDS
        receive_message(connection, deadline)
        send_message(connection, {"num_bytes": 2 * BYTES_PER_BLOCK}, deadline)
        send_message(connection, offer, deadline)
        connection.sendall(metadata)

    with connector(**NIXL) as consumer, fake_producer(answer) as params:
        assert fetch(consumer, PROMPT, params).imported is None
        assert fallbacks(consumer) == {"unreachable": 1}
        assert consumer.stats().imported_bytes == 0


def test_a_consumer_that_does_not_read_is_not_waited_for() -> None:
    with connector("kv_producer", **NIXL, kv_connector_extra_config={"fetch_timeout": 0.2}) as producer:
        offer = export(producer, PROMPT)
        assert offer is not None
        asked = {"op": "fetch", "handle": offer.remote_request_id, "fingerprint": FINGERPRINT}
        with socket.create_connection((offer.remote_host, offer.remote_port), timeout=SECONDS) as silent:
            digest = prompt_digest(PROMPT, RequestOptions())
            send_message(silent, {**asked, "digest": digest}, time.monotonic() + SECONDS)
            while silent.recv(4096):
                pass
        producer._server._seconds = SECONDS  # The next one does read, at the machine's pace.
        with connector(**NIXL) as consumer:
            assert fetch(consumer, PROMPT, offer).imported is not None


@pytest.fixture
def transports() -> Iterator[list[NixlTransport]]:
    made = [NixlTransport(KVTransferConfig.of({"kv_role": "kv_both", **NIXL})) for _ in range(2)]
    yield made
    for each in made:
        each.close()


def test_several_exports_of_one_engine_are_read_at_once(transports: list[NixlTransport]) -> None:
    """Each has metadata of its own, and NIXL knows an engine by one name."""
    sender, reader = transports

    def carry(number: int) -> bool:
        data = np.random.default_rng(number).integers(0, 256, 1_000_003, dtype=np.uint8)
        mine, theirs = socket.socketpair()
        deadline = time.monotonic() + SECONDS
        with mine, theirs, ThreadPoolExecutor(1) as pool:
            sent = pool.submit(sender.send, mine, data, deadline)
            found = reader.receive(theirs, len(data), deadline)
            sent.result()
        return bool(np.array_equal(found, data))

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(carry, range(60)))


OFFERS = """
import socket, sys, time
import numpy as np
from inflight.kv_transfer.kv_transfer_config import KVTransferConfig
from inflight.kv_transfer.nixl_transport import NixlTransport

transport = NixlTransport(KVTransferConfig.of({"kv_role": "kv_both", "kv_connector": "nixl"}))
connection = socket.socket(fileno=int(sys.argv[1]))
transport.send(connection, np.ones(1 << 20, dtype=np.uint8), time.monotonic() + 20)
"""


def test_a_producer_that_stands_still_is_given_up(transports: list[NixlTransport]) -> None:
    mine, theirs = socket.socketpair()
    with mine, theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", OFFERS, str(mine.fileno())],
            pass_fds=[mine.fileno()],
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        mine.close()
        try:
            offered = theirs.recv(1 << 16, socket.MSG_PEEK)
            process.send_signal(signal.SIGSTOP)
            assert offered
            with pytest.raises((TimeoutError, BrokenTransfer)):
                transports[1].receive(theirs, 1 << 20, time.monotonic() + 1)
        finally:
            process.kill()
            process.wait()
    # The next one is read.
    mine, theirs = socket.socketpair()
    data = np.arange(1000, dtype=np.uint8)
    deadline = time.monotonic() + SECONDS
    with mine, theirs, ThreadPoolExecutor(1) as pool:
        sent = pool.submit(transports[0].send, mine, data, deadline)
        assert np.array_equal(transports[1].receive(theirs, len(data), deadline), data)
        sent.result()
