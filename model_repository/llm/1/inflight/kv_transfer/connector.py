"""What the engine knows of transfers: it exports prompts that it has computed, and fetches those of others."""

import logging
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inflight.errors import InvalidRequest
from inflight.kv_cache.imported_blocks import ImportedBlocks
from inflight.kv_transfer.export_server import ExportServer
from inflight.kv_transfer.export_store import FAILED, ExportStore
from inflight.kv_transfer.fetcher import EVICTED, Fetcher, Wanted
from inflight.kv_transfer.kv_transfer_config import KVTransferConfig
from inflight.kv_transfer.kv_transfer_params import KVTransferParams
from inflight.kv_transfer.kv_transfer_stats import KVTransferStats
from inflight.kv_transfer.prompt_digest import prompt_digest
from inflight.kv_transfer.transport import make_transport
from inflight.request import Request
from inflight.request_options import RequestOptions
from inflight.scheduler.plan import ScheduledRequest, StepPlan
from inflight.step_result import StepResult

logger = logging.getLogger(__name__)

ReadBlocks = Callable[[Sequence[int], NDArray[np.uint8]], None]
"""Writes the bytes of blocks into an array [blocks, bytes per block]."""

NumCached = Callable[[list[int], RequestOptions], int]
"""Returns how many tokens of a prompt are cached here. It is a hint: they may be gone when the prompt is computed."""


@dataclass(frozen=True)
class Fetched:
    """A prompt, and what another engine has of it."""

    prompt_ids: list[int]
    begun: float
    """When the request arrived, on the monotonic clock."""
    imported: ImportedBlocks | None
    """None: what is not cached here is to be computed."""

    def give(self, requests: Sequence[Request]) -> None:
        """Let requests for the prompt begin with it."""
        for request in requests:
            request.imported, request.arrival = self.imported, self.begun


class KVConnector:
    """The transfers of one engine. `export` belongs to the stepping thread; any thread may call the other methods."""

    def __init__(
        self,
        config: KVTransferConfig,
        *,
        fingerprint: str,
        block_size: int,
        bytes_per_block: int,
        read_blocks: ReadBlocks,
        num_cached: NumCached,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`fingerprint`: see `model.cache.layout`."""
        self._config = config
        self._fingerprint = fingerprint
        self._block_size = block_size
        self._bytes_per_block = bytes_per_block
        self._read_blocks = read_blocks
        self._num_cached = num_cached
        self._skipped_blocks = 0
        """Blocks that were not asked for. The lock guards it."""
        self._lock = threading.Lock()
        self.engine_id = uuid.uuid4().hex
        self._transport = transport = make_transport(config)
        most_bytes = int(config.kv_buffer_size)
        self._store = ExportStore(most_bytes, config.export_timeout, clock)
        self._server = ExportServer(self._store, transport, self.engine_id, fingerprint, config.fetch_timeout)
        self._fetcher = Fetcher(transport, fingerprint, most_bytes)

    def start(self) -> None:
        """Listen for consumers. Raises what `ExportServer.start` raises."""
        if self._config.produces:
            self._server.start()

    def close(self) -> None:
        """Stop listening, and free all exports."""
        if self._config.produces:
            self._server.close()
        self._fetcher.close()
        self._store.clear()
        self._transport.close()

    def check(self, params: KVTransferParams) -> None:
        """Raises InvalidRequest if this engine has not the role for what a request wants."""
        for wants, has, role in (
            (params.do_remote_decode, self._config.produces, "do_remote_decode, which a kv_producer does"),
            (params.do_remote_prefill, self._config.consumes, "do_remote_prefill, which a kv_consumer does"),
        ):
            if wants and not has:
                raise InvalidRequest(
                    f"kv_transfer_params has {role}; kv_role in kv_transfer_config is {self._config.kv_role}"
                )

    # -- out ---------------------------------------------------------------------------------------------------------

    def export(self, plan: StepPlan, results: Sequence[StepResult]) -> None:
        """Export the prompts that a step has completed for other engines, before their blocks can change.

        Their requests then know what the other engine is to be told. If there is no room, they tell it nothing.
        """
        if not any(_is_complete(each) for each in plan.scheduled):
            return
        answers = {each.request: result for each, result in zip(plan.answered, results, strict=True)}
        for each, table in zip(plan.scheduled, plan.block_tables, strict=True):
            # What is not a number is not worth to be read.
            if _is_complete(each) and not (each.samples and not answers[each.request].token_ids):
                blocks = table[: self._blocks_for(len(each.request.prompt_ids))].tolist()
                each.request.kv_transfer_params = self._exported(each.request, blocks)

    def _exported(self, request: Request, blocks: Sequence[int]) -> KVTransferParams | None:
        address = self._server.address
        if address is None:
            return None
        num_tokens = len(request.prompt_ids)
        digest = prompt_digest(request.prompt_ids, request.options)
        export = None
        try:
            export = self._store.add(digest, num_tokens, len(blocks) * self._bytes_per_block)
            if export is None:
                return None
            self._read_blocks(blocks, export.data.reshape(len(blocks), self._bytes_per_block))
        except (RuntimeError, MemoryError) as error:  # The host or the device has too little memory for the copy.
            logger.warning("a prompt of %d tokens could not be exported: %s", num_tokens, error)
            if export is not None:
                self._store.drop(export.handle, FAILED)
            return None
        host, port = address
        return KVTransferParams(
            do_remote_prefill=True,
            remote_engine_id=self.engine_id,
            remote_request_id=export.handle,
            remote_host=host,
            remote_port=port,
            num_tokens=num_tokens,
            fingerprint=self._fingerprint,
        )

    # -- in ----------------------------------------------------------------------------------------------------------

    def fetch(
        self, prompt_ids: list[int], options: RequestOptions, params: KVTransferParams, *, computes_all: bool = False
    ) -> "Future[Fetched]":
        """Begin to fetch what another engine has of a prompt and this one lacks. The future always has a result.

        `computes_all`: this engine computes the whole prompt in any case, so that it only releases the export.
        """
        begun = time.monotonic()
        future = Future[Fetched]()
        num_tokens = min(params.num_tokens or 0, len(prompt_ids))
        num_blocks = self._blocks_for(num_tokens)
        first = min(self._num_cached(prompt_ids, options) // self._block_size, num_blocks)
        # The last token is computed in any case.
        if computes_all or first * self._block_size >= min(num_tokens, len(prompt_ids) - 1):
            first = num_blocks

        def done(found: NDArray[np.uint8] | None) -> None:
            imported = None
            if found is not None:
                imported = ImportedBlocks(num_tokens, found.reshape(-1, self._bytes_per_block), first)
                self._count_skipped(first)
            future.set_result(Fetched(prompt_ids, begun, imported))

        if first == num_blocks:
            self.release(params)
            self._count_skipped(num_blocks)
            done(None)
            return future
        size = self._bytes_per_block
        deadline = self._deadline(begun, options)
        digest = prompt_digest(prompt_ids, options)
        self._fetcher.fetch(Wanted(params, digest, first * size, (num_blocks - first) * size, deadline), done)
        return future

    def _count_skipped(self, num_blocks: int) -> None:
        with self._lock:
            self._skipped_blocks += num_blocks

    def release(self, params: KVTransferParams) -> None:
        """Tell another engine that nobody will fetch an export of it."""
        self._fetcher.release(params, self._deadline(time.monotonic(), RequestOptions()))

    def _deadline(self, begun: float, options: RequestOptions) -> float:
        seconds = self._config.fetch_timeout
        if options.deadline_ms is None:
            return begun + seconds
        arrival = begun if options.arrival is None else options.arrival
        return min(begun + seconds, arrival + options.deadline_ms / 1000)

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)

    def stats(self, num_evicted: int = 0) -> KVTransferStats:
        """Return the counters. `num_evicted`: fetched prompts whose beginning had left the cache here."""
        outcomes = dict(self._store.outcomes)
        fetcher = self._fetcher
        return KVTransferStats(
            exports=outcomes,
            exported_bytes=self._store.num_bytes,
            imports=fetcher.fetched,
            fallbacks={**fetcher.fallbacks, EVICTED: num_evicted},
            bytes={
                "sent": self._server.sent_bytes,
                "received": fetcher.received_bytes,
                "skipped": self._skipped_blocks * self._bytes_per_block,
            },
            fetch_seconds=fetcher.seconds,
            imported_bytes=fetcher.held_bytes,
        )


def _is_complete(each: ScheduledRequest) -> bool:
    """Whether a step completes a prompt that another engine waits for."""
    request, params = each.request, each.request.options.kv_transfer_params
    if params is None or not params.do_remote_decode:
        return False
    return each.known_end == len(request.prompt_ids) == len(request.token_ids)
