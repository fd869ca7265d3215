"""Transfers between two engines over real sockets, without models: what arrives, what is refused, and what is freed."""

import contextlib
import errno
import os
import socket
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from inflight import RequestOptions
from inflight.kv_transfer.kv_transfer_config import CONNECTORS
from inflight.kv_transfer.stream_transports import TcpTransport
from tests.eventually import eventually
from tests.unit.kv_peers import BYTES_PER_BLOCK, PROMPT, TCP, connector, export, fallbacks, fetch


@pytest.fixture(params=CONNECTORS)
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


def test_a_prompt_that_is_computed_here_in_any_case_is_not_fetched(kind: str) -> None:
    with connector("kv_producer", kv_connector=kind) as producer, connector(kv_connector=kind) as consumer:
        assert fetch(consumer, PROMPT, export(producer, PROMPT), computes_all=True).imported is None
        assert eventually(lambda: producer.stats().exports["released"] == 1)
        assert consumer.stats().bytes == {"sent": 0, "received": 0, "skipped": 2 * BYTES_PER_BLOCK}


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


# -- ports, threads and the end ---------------------------------------------------------------------------------------


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


def in_shared_memory() -> set[str]:
    """What is in /dev/shm, without what other processes have there: tests with servers run at the same time."""
    found, theirs = set(os.listdir("/dev/shm")), []
    for process in Path("/proc").glob("[0-9]*"):
        if process.name != str(os.getpid()):
            with contextlib.suppress(OSError):  # It has ended.
                theirs.append((process / "maps").read_text())
    return {name for name in found if not any(f"/dev/shm/{name}" in maps for maps in theirs)}


def test_nothing_is_left_behind(kind: str) -> None:
    before = in_shared_memory(), set(os.listdir("/proc/self/fd"))
    with connector(kv_connector=kind) as engine:
        found = fetch(engine, PROMPT, export(engine, PROMPT))
        export(engine, PROMPT)
        # A server of another test may have made a region that it has yet to map.
        assert eventually(lambda: in_shared_memory() <= before[0])
    assert found.imported is not None
    assert np.all(found.imported.data[0] == 7)
    del found
    assert eventually(lambda: set(os.listdir("/proc/self/fd")) <= before[1])
