"""Submits requests to the core, with the keys and values that other engines or the disk have of their prompts."""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future

from inflight.core import EngineCore
from inflight.errors import InvalidRequest
from inflight.guided_decoding.grammar import Grammar
from inflight.kv_cache.disk_tier import DiskTier
from inflight.kv_transfer.connector import Fetched, KVConnector
from inflight.kv_transfer.kv_transfer_params import KVTransferParams
from inflight.pooling_params import PoolingParams
from inflight.prompts import AnyPrompt, EmbedsPrompt, ImagePrompt
from inflight.request import Request
from inflight.request_maker import RequestMaker
from inflight.request_options import RequestOptions
from inflight.sampling_params import SamplingParams
from inflight.scheduler.queue_policy import QueuePolicies
from inflight.text.prompt_encoder import Prompt


class RequestSubmitter:
    """How requests come into an engine. Any thread may call the methods."""

    def __init__(
        self,
        maker: RequestMaker,
        core: EngineCore,
        policies: QueuePolicies,
        *,
        connector: KVConnector | None,
        disk: DiskTier | None,
    ) -> None:
        self._maker = maker
        self._core = core
        self._policies = policies
        self._connector = connector
        self._disk = disk

    def submit_samples(
        self,
        prompt: AnyPrompt,
        params: Mapping[str, SamplingParams],
        options: RequestOptions | None = None,
        grammar: Grammar | None = None,
        fetched: Fetched | None = None,
        *,
        reads_disk: bool = True,
    ) -> None:
        """Queue several samples of a prompt, each under its own id: all of them or none.

        The first one computes the prompt. With the prefix cache, the others wait for its full blocks and share them.

        Args:
            prompt: a text or token ids, perhaps with images or embeddings.
            params: how to sample, by request id.
            options: priority, limits and names, for all samples.
            grammar: what `Engine.grammars` has made of their `structured_outputs`. If it is not given, this waits for
                it.
            fetched: what `fetch` has brought for them. If it is not given, this waits for it.
            reads_disk: read what is on disk of the prompt, where the engine has a disk. It may take some time.

        Raises:
            InvalidRequest: the prompt or a parameter cannot be served; the message names it and the bound.
            QueueFull: too many requests or tokens wait.
            EngineDead: the engine has stopped.
        """
        future = self.fetch(prompt, params, options) if fetched is None else None
        content = self._maker.prompts.read(prompt)
        if future is not None:
            fetched = future.result()
        requests = [self._maker.request(content, given, name, grammar) for name, given in params.items()]
        if fetched is not None:
            fetched.give(requests)
        self._submit(requests, options, reads_disk=reads_disk)

    def submit_embedding(
        self,
        prompt: Prompt,
        pooling: PoolingParams,
        request_id: str,
        options: RequestOptions | None = None,
        *,
        reads_disk: bool = True,
    ) -> None:
        """Queue a request for an embedding. Arguments and exceptions are those of `submit_samples`."""
        if options is not None and options.kv_transfer_params is not None:
            raise InvalidRequest("kv_transfer_params is given with a prompt to embed; it needs one to generate from")
        request = self._maker.embedding_request(self._maker.prompts.encode(prompt), pooling, request_id)
        self._submit([request], options, reads_disk=reads_disk)

    def _submit(self, requests: Sequence[Request], options: RequestOptions | None, *, reads_disk: bool) -> None:
        if options is not None:
            self._maker.check_options(options)
        if options is not None and options.kv_transfer_params is not None:
            self._check_transfer(options.kv_transfer_params)
            if options.kv_transfer_params.do_remote_decode and len(requests) > 1:
                raise InvalidRequest(f"n is {len(requests)}; it must be 1 with do_remote_decode in kv_transfer_params")
        adapter = None if options is None else self._maker.adapter(options.lora_name)
        if adapter is not None and requests[0].images is not None:
            raise InvalidRequest(
                f"lora_name is {adapter.name!r}; it must be absent with images, which are read without adapters"
            )
        try:
            for request in requests:
                if options is not None:
                    request.options, request.adapter = options, adapter
                    request.arrival = request.arrival if options.arrival is None else options.arrival
                self._policies.apply(request)
            if reads_disk:
                self.read_disk(requests[0])  # Other samples wait for the blocks of the first one.
            self._core.submit(*requests)
        except Exception:
            for request in requests:  # A beam search refers to itself, and would keep its adapter in memory.
                request.adapter = None
            raise

    def lateness(self, options: RequestOptions) -> str | None:
        """Return `expired` or `shed` if a request that is not submitted yet has waited as long as it may; else None."""
        now = time.monotonic()
        return self._policies.lateness(options, now if options.arrival is None else options.arrival, now)

    def read_disk(self, request: Request) -> None:
        """Give a request that is not submitted yet what is on disk of its prompt, if the queue has room for it."""
        if self._disk is not None and self._core.has_room(request):
            self._disk.bring(request)

    # -- what other engines have -------------------------------------------------------------------------------------

    def fetch(
        self, prompt: AnyPrompt, params: Mapping[str, SamplingParams], options: RequestOptions | None
    ) -> "Future[Fetched] | None":
        """Begin to fetch the keys and values that `kv_transfer_params` name, if any, for samples of a prompt.

        The future always has a result within `fetch_timeout` and the request's deadline.

        Raises:
            InvalidRequest: the prompt cannot be served, or this engine has not the role that the request wants of it.
        """
        transfer = None if options is None else options.kv_transfer_params
        if options is None or transfer is None:
            return None
        if isinstance(prompt, ImagePrompt):
            raise InvalidRequest("kv_transfer_params is given with images; a prompt with images is computed here")
        if isinstance(prompt, EmbedsPrompt):
            raise InvalidRequest("kv_transfer_params is given with prompt_embeds; such a prompt is computed here")
        if not transfer.do_remote_prefill:
            return None
        # Tokens whose successors get scores must be computed here.
        is_scored = all(each.prompt_logprobs is not None for each in params.values())
        connector = self._check_transfer(transfer)
        return connector.fetch(self._maker.prompts.encode(prompt), options, transfer, computes_all=is_scored)

    def release(self, options: RequestOptions) -> None:
        """Tell the other engine that nobody will fetch what `kv_transfer_params` name, if they name any."""
        params = options.kv_transfer_params
        if params is not None and params.do_remote_prefill and self._connector is not None:
            self._connector.release(params)

    def _check_transfer(self, params: KVTransferParams) -> KVConnector:
        if self._connector is None:
            raise InvalidRequest("kv_transfer_params is given, but kv_transfer_config is not set")
        self._connector.check(params)
        return self._connector
