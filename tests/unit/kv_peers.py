"""Connectors of two engines without models: the bytes of a block are its number."""

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inflight import RequestOptions
from inflight.kv_transfer.connector import Fetched, KVConnector
from inflight.kv_transfer.kv_transfer_config import KVTransferConfig
from inflight.kv_transfer.kv_transfer_params import KVTransferParams
from inflight.scheduler.plan import ScheduledRequest, StepPlan, Want
from inflight.step_result import StepResult
from tests.unit.builders import make_request

BYTES_PER_BLOCK = 5
BLOCK_SIZE = 4
FINGERPRINT = "f" * 32
PROMPT = [3, 1, 4, 1, 5, 9]
TCP = {"kv_connector": "tcp"}
ASKED = RequestOptions(kv_transfer_params=KVTransferParams(do_remote_decode=True))


def read_blocks(blocks: Sequence[int], found: NDArray[np.uint8]) -> None:
    found[:] = np.array(blocks)[:, None]


@contextmanager
def connector(
    role: str = "kv_both",
    *,
    fingerprint: str = FINGERPRINT,
    clock: Callable[[], float] | None = None,
    read: Callable[[Sequence[int], NDArray[np.uint8]], None] = read_blocks,
    num_cached: Callable[[list[int], RequestOptions], int] = lambda prompt_ids, options: 0,
    **settings: Any,
) -> Iterator[KVConnector]:
    """By default a fetch may take as long as the machine needs."""
    settings["kv_connector_extra_config"] = {"fetch_timeout": 20.0, **settings.get("kv_connector_extra_config", {})}
    made = KVConnector(
        KVTransferConfig.of({"kv_role": role, **settings}),
        fingerprint=fingerprint,
        block_size=BLOCK_SIZE,
        bytes_per_block=BYTES_PER_BLOCK,
        read_blocks=read,
        num_cached=num_cached,
        **({} if clock is None else {"clock": clock}),
    )
    made.start()
    try:
        yield made
    finally:
        made.close()


def export(
    producer: KVConnector, prompt: list[int], token_ids: Sequence[int] = (1,), options: RequestOptions = ASKED
) -> KVTransferParams | None:
    """What the request knows after the step that computes the rest of its prompt, in the blocks 7, 8 and so on."""
    request = make_request("a", prompt, max_tokens=1, options=options)
    share = ScheduledRequest(request, len(prompt) - 1, prompt[-1:], Want.TOKEN, begins=True, last_token_at=None)
    tables = np.arange(7, 8 + len(prompt) // BLOCK_SIZE)[None, :]
    producer.export(StepPlan((share,), tables), [StepResult(token_ids)])
    return request.kv_transfer_params


def fetch(
    consumer: KVConnector,
    prompt: list[int],
    offer: KVTransferParams | None,
    options: RequestOptions | None = None,
    *,
    computes_all: bool = False,
) -> Fetched:
    assert offer is not None
    return consumer.fetch(prompt, options or RequestOptions(), offer, computes_all=computes_all).result(20)


def fallbacks(consumer: KVConnector) -> dict[str, int]:
    """The reasons that have been counted."""
    return {reason: count for reason, count in consumer.stats().fallbacks.items() if count}


@contextmanager
def fake_producer(answer: Callable[[socket.socket], None]) -> Iterator[KVTransferParams]:
    """Listens, and lets `answer` talk to whoever connects. Yields what it offers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                answer(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        yield KVTransferParams(
            do_remote_prefill=True,
            remote_engine_id="e" * 32,
            remote_request_id="a" * 32,
            remote_host="127.0.0.1",
            remote_port=listener.getsockname()[1],
            num_tokens=6,
            fingerprint=FINGERPRINT,
        )
        thread.join(20)
        assert not thread.is_alive()
