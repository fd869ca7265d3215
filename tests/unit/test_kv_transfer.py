"""Transfers between two engines over real sockets, without models: what arrives, what is refused, and what is freed."""

import errno
import json
import os
import re
import socket
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from inflight import InvalidRequest, RequestOptions
from inflight.kv_transfer.connector import KVConnector
from inflight.kv_transfer.kv_transfer_params import KVTransferParams
from inflight.kv_transfer.prompt_digest import prompt_digest
from inflight.kv_transfer.transport import TcpTransport
from inflight.kv_transfer.wire import receive_message, send_message
from tests.eventually import eventually
from tests.unit.kv_peers import BYTES_PER_BLOCK, FINGERPRINT, connector, export, fake_producer, fallbacks, fetch

PROMPT = [3, 1, 4, 1, 5, 9]
TCP = {"kv_connector": "tcp"}


@pytest.fixture(params=["shared_memory", "tcp"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_bytes_of_a_prompt_arrive_and_are_freed(kind: str) -> None:
    with connector("kv_producer", kv_connector=kind) as producer, connector(kv_connector=kind) as consumer:
        offer = export(producer, PROMPT)
        assert producer.stats().exported_bytes == 2 * BYTES_PER_BLOCK
        found = fetch(consumer, PROMPT, offer)
        assert found.imported is not None
        assert (found.prompt_ids, found.imported.num_tokens) == (PROMPT, 6)
        assert found.imported.data.tolist() == [[7] * BYTES_PER_BLOCK, [8] * BYTES_PER_BLOCK]
        assert consumer.stats().imported_bytes == 2 * BYTES_PER_BLOCK
        assert eventually(lambda: producer.stats().exports["fetched"] == 1)
        assert producer.stats().exported_bytes == 0
        assert producer.stats().bytes["sent"] == consumer.stats().bytes["received"] == 2 * BYTES_PER_BLOCK
        kept = found.imported.data[1:]
        del found
        assert consumer.stats().imported_bytes == 2 * BYTES_PER_BLOCK
        del kept
        assert (consumer.stats().imported_bytes, consumer.stats().imports) == (0, 1)


@pytest.mark.parametrize(("cached", "first"), [(3, 0), (4, 1), (7, 1), (8, 2), (11, 2)])
def test_only_what_is_not_cached_is_fetched(kind: str, cached: int, first: int) -> None:
    prompt = [*PROMPT, *PROMPT]
    with (
        connector("kv_producer", kv_connector=kind) as producer,
        connector(kv_connector=kind, num_cached=lambda prompt_ids, options: cached) as consumer,
    ):
        found = fetch(consumer, prompt, export(producer, prompt)).imported
        assert found is not None
        assert (found.num_tokens, found.first_block) == (12, first)
        assert found.data.tolist() == [[7 + block] * BYTES_PER_BLOCK for block in range(first, 3)]
        assert eventually(lambda: producer.stats().exports["fetched"] == 1)
        size = (3 - first) * BYTES_PER_BLOCK
        assert producer.stats().bytes == {"sent": size, "received": 0, "skipped": 0}
        assert consumer.stats().bytes == {"sent": 0, "received": size, "skipped": first * BYTES_PER_BLOCK}
        assert consumer.stats().imported_bytes == size


@pytest.mark.parametrize(("prompt", "cached"), [([3, 1, 4, 1, 5], 4), (PROMPT + PROMPT, 12), ([3], 0)])
def test_what_is_cached_but_for_the_last_token_is_not_fetched(kind: str, prompt: list[int], cached: int) -> None:
    with (
        connector("kv_producer", kv_connector=kind) as producer,
        connector(kv_connector=kind, num_cached=lambda prompt_ids, options: cached) as consumer,
    ):
        assert fetch(consumer, prompt, export(producer, prompt)).imported is None
        assert eventually(lambda: producer.stats().exports["released"] == 1)
        assert (consumer.stats().imports, fallbacks(consumer)) == (0, {})
        assert consumer.stats().bytes["received"] == 0


def test_what_was_fetched_is_gone(kind: str) -> None:
    with connector(kv_connector=kind) as engine:
        offer = export(engine, PROMPT)
        assert fetch(engine, PROMPT, offer).imported is not None
        assert eventually(lambda: engine.stats().exported_bytes == 0)
        assert fetch(engine, PROMPT, offer).imported is None
        assert fallbacks(engine) == {"unknown": 1}


@pytest.mark.parametrize(
    ("prompt", "options"),
    [
        ([3, 1, 4, 1, 5, 8], RequestOptions()),
        (PROMPT, RequestOptions(tenant="other")),
        (PROMPT, RequestOptions(cache_salt="other")),
    ],
)
def test_nobody_gets_what_belongs_to_another_prompt_or_tenant(
    kind: str, prompt: list[int], options: RequestOptions
) -> None:
    with connector(kv_connector=kind) as engine:
        offer = export(engine, PROMPT)
        assert fetch(engine, prompt, offer, options).imported is None
        assert fallbacks(engine) == {"prompt": 1}
        assert fetch(engine, PROMPT, offer).imported is not None


def test_nobody_gets_what_it_cannot_read(kind: str) -> None:
    with (
        connector(kv_connector=kind) as producer,
        connector(kv_connector=kind, fingerprint="0" * 32) as consumer,
    ):
        offer = export(producer, PROMPT)
        assert offer is not None
        # A client may change what it passes on; the producer knows better.
        assert fetch(consumer, PROMPT, replace(offer, fingerprint="0" * 32)).imported is None
        assert fallbacks(consumer) == {"layout": 1}
        assert producer.stats().exported_bytes > 0
        assert fetch(consumer, PROMPT, offer).imported is None
        assert fallbacks(consumer) == {"layout": 2}
        assert eventually(lambda: producer.stats().exports["released"] == 1)


def test_an_export_of_another_length_is_not_taken(kind: str) -> None:
    with connector(kv_connector=kind) as engine:
        offer = export(engine, PROMPT)
        assert offer is not None
        assert fetch(engine, PROMPT, replace(offer, num_tokens=3)).imported is None
        assert fallbacks(engine) == {"size": 1}


def test_exports_end_after_a_while(kind: str) -> None:
    now = 0.0
    extra = {"export_timeout": 5}
    with connector(kv_connector=kind, clock=lambda: now, kv_connector_extra_config=extra) as engine:
        offer = export(engine, PROMPT)
        now = 5.0
        assert fetch(engine, PROMPT, offer).imported is None
        assert fallbacks(engine) == {"unknown": 1}
        assert (engine.stats().exports["expired"], engine.stats().exported_bytes) == (1, 0)


def test_exports_end_without_anybody_asking(kind: str) -> None:
    with connector(kv_connector=kind, kv_connector_extra_config={"export_timeout": 0.01}) as engine:
        export(engine, PROMPT)
        assert eventually(lambda: engine.stats().exports["expired"] == 1)


def test_exports_are_released_on_request(kind: str) -> None:
    with connector(kv_connector=kind) as engine:
        offer = export(engine, PROMPT)
        assert offer is not None
        engine.release(offer)
        assert eventually(lambda: engine.stats().exports["released"] == 1)


def test_an_engine_that_is_gone_is_not_waited_for(kind: str) -> None:
    with connector(kv_connector=kind) as consumer:
        with connector("kv_producer", kv_connector=kind) as producer:
            offer = export(producer, PROMPT)
        assert producer.stats().exported_bytes == 0
        assert fetch(consumer, PROMPT, offer).imported is None
        assert fallbacks(consumer) == {"unreachable": 1}


def test_engines_with_different_connectors_do_not_talk() -> None:
    with connector(**TCP) as one, connector() as other:
        assert fetch(one, PROMPT, export(other, PROMPT)).imported is None
        assert fetch(other, PROMPT, export(one, PROMPT)).imported is None
        assert fallbacks(one) == fallbacks(other) == {"forbidden": 1}


def test_a_client_cannot_choose_where_to_fetch() -> None:
    with connector(**TCP) as engine:
        offer = export(engine, PROMPT)
        assert offer is not None
        for host in ("10.0.0.1", "localhost", "169.254.169.254", "::ffff:10.0.0.1"):
            assert fetch(engine, PROMPT, replace(offer, remote_host=host)).imported is None
        assert fallbacks(engine) == {"forbidden": 4}


def test_what_has_no_room_is_not_exported() -> None:
    with connector(kv_buffer_size=3 * BYTES_PER_BLOCK) as engine:
        offer = export(engine, PROMPT)
        assert export(engine, PROMPT) is None
        assert engine.stats().exports["full"] == 1
        fetch(engine, PROMPT, offer)
        assert eventually(lambda: engine.stats().exported_bytes == 0)
        assert export(engine, PROMPT) is not None


def test_what_has_no_room_is_not_fetched() -> None:
    with connector() as producer, connector(kv_buffer_size=3 * BYTES_PER_BLOCK) as consumer:
        held = fetch(consumer, PROMPT, export(producer, PROMPT))
        offer = export(producer, PROMPT)
        assert fetch(consumer, PROMPT, offer).imported is None
        assert fallbacks(consumer) == {"busy": 1}
        del held
        assert fetch(consumer, PROMPT, offer).imported is not None


def test_a_request_without_a_token_exports_nothing() -> None:
    with connector() as engine:
        assert export(engine, PROMPT, token_ids=()) is None
        assert export(engine, PROMPT, options=RequestOptions()) is None
        assert engine.stats().exported_bytes == 0


def test_a_copy_that_fails_leaves_nothing() -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    with connector(read=fail) as engine:
        assert export(engine, PROMPT) is None
        assert (engine.stats().exports["failed"], engine.stats().exported_bytes) == (1, 0)


# -- peers that do not keep to the protocol ---------------------------------------------------------------------------


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


def test_silent_consumers_lose_their_connections_and_never_all_of_them() -> None:
    with connector(**TCP, kv_connector_extra_config={"fetch_timeout": 0.2}) as engine:
        offer = export(engine, PROMPT)
        assert offer is not None
        silent = [connected(engine, offer) for _ in range(40)]
        for connection in silent:
            assert connection.recv(1) == b""
            connection.close()
        assert fetch(engine, PROMPT, offer).imported is not None


def test_a_port_that_is_in_use_is_taken_once_it_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as first:
        port = first.getsockname()[1]
        with connector(**TCP, kv_port=port) as engine:
            assert export(engine, PROMPT) is None
            first.close()
            assert eventually(lambda: export(engine, PROMPT) is not None)


def test_a_port_is_tried_again_whatever_was_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    faults = [OSError(errno.EADDRINUSE, "in use"), OSError(errno.EMFILE, "too many open files")]
    listen = TcpTransport.listen

    def fail_twice(transport: TcpTransport, engine_id: str) -> socket.socket:
        if faults:
            raise faults.pop(0)
        return listen(transport, engine_id)

    monkeypatch.setattr(TcpTransport, "listen", fail_twice)
    with connector(**TCP) as engine:
        assert export(engine, PROMPT) is None
        assert eventually(lambda: export(engine, PROMPT) is not None)


def test_a_system_without_a_free_thread_turns_one_consumer_away(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    start, faults = threading.Thread.start, [RuntimeError("can't start new thread")]

    def fail_once(thread: threading.Thread) -> None:
        if thread.name == "kv-export" and faults:
            raise faults.pop()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fail_once)
    with connector(kv_connector=kind) as engine:
        offer = export(engine, PROMPT)
        assert fetch(engine, PROMPT, offer).imported is None
        assert fetch(engine, PROMPT, offer).imported is not None


def test_nothing_is_fetched_or_released_after_the_end(kind: str) -> None:
    with connector(kv_connector=kind) as producer:
        with connector(kv_connector=kind) as consumer:
            offer = export(producer, PROMPT)
        assert offer is not None
        consumer.release(offer)
        assert fetch(consumer, PROMPT, offer).imported is None
        assert fallbacks(consumer) == {"busy": 1}


def test_an_address_of_another_host_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot listen"), connector(**TCP, kv_ip="192.0.2.1"):
        pass


def test_nothing_is_left_behind(kind: str) -> None:
    before = set(os.listdir("/dev/shm")), set(os.listdir("/proc/self/fd"))
    with connector(kv_connector=kind) as engine:
        found = fetch(engine, PROMPT, export(engine, PROMPT))
        export(engine, PROMPT)
        assert set(os.listdir("/dev/shm")) == before[0]
    assert found.imported is not None
    assert np.all(found.imported.data[0] == 7)
    del found
    assert eventually(lambda: set(os.listdir("/proc/self/fd")) <= before[1])


# -- the field --------------------------------------------------------------------------------------------------------

COMPLETE = {
    "do_remote_prefill": True,
    "remote_engine_id": "0" * 32,
    "remote_request_id": "1" * 32,
    "num_tokens": 5,
    "fingerprint": "2" * 32,
}


def test_an_offer_survives_the_way_through_a_client() -> None:
    with connector(**TCP) as engine:
        offer = export(engine, PROMPT)
        assert offer is not None
        assert KVTransferParams.of(json.loads(json.dumps(offer.as_dict()))) == offer


def test_what_vllm_sends_in_its_first_call_is_taken() -> None:
    names = ("remote_engine_id", "remote_block_ids", "remote_host", "remote_port")
    given = {"do_remote_decode": True, "do_remote_prefill": False, **dict.fromkeys(names)}
    assert KVTransferParams.of(given) == KVTransferParams(do_remote_decode=True)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"do_remote_decode": 1}, "do_remote_decode is 1; it must be true or false"),
        ({**COMPLETE, "do_remote_decode": True}, "at most one of them may be true"),
        ({"remote_block_ids": [1]}, "has the key 'remote_block_ids'"),
        ({"do_remote_prefill": True}, "remote_engine_id is None; it must be 32 digits"),
        ({**COMPLETE, "remote_request_id": "../../x"}, "remote_request_id is '../../x'"),
        ({**COMPLETE, "fingerprint": 7}, "fingerprint is 7"),
        ({**COMPLETE, "num_tokens": 0}, "num_tokens is 0; it must be a whole number from 1"),
        ({**COMPLETE, "num_tokens": True}, "num_tokens is True"),
        ({**COMPLETE, "remote_host": 1}, "remote_host is 1; it must be an address"),
        ({**COMPLETE, "remote_host": "127.0.0.1"}, "remote_port is None"),
        ({**COMPLETE, "remote_host": "127.0.0.1", "remote_port": 65536}, "remote_port is 65536"),
    ],
)
def test_an_impossible_field_is_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(message)):
        KVTransferParams.of(given)


@pytest.mark.parametrize(
    ("role", "params"),
    [("kv_consumer", KVTransferParams(do_remote_decode=True)), ("kv_producer", KVTransferParams.of(COMPLETE))],
)
def test_a_role_that_the_engine_has_not_is_refused(role: str, params: KVTransferParams) -> None:
    with connector(role) as engine, pytest.raises(InvalidRequest, match=f"kv_role in kv_transfer_config is {role}"):
        engine.check(params)
