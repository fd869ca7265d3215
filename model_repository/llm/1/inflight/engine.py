"""The engine as a Python object: a model, a scheduler and a KV cache behind `generate`, or `submit` and `step`."""

import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from numbers import Number
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from inflight.config import EngineConfig
from inflight.core import EngineCore
from inflight.errors import InvalidRequest
from inflight.guided_decoding.grammar import Grammar
from inflight.guided_decoding.grammars import Grammars
from inflight.kv_cache.block_events import BlockEvents
from inflight.kv_cache.disk_folder import hash_key, open_folder
from inflight.kv_cache.disk_store import DiskStore
from inflight.kv_cache.disk_tier import DiskTier
from inflight.kv_cache.imported_blocks import REMOTE
from inflight.kv_events.factory import make_publisher
from inflight.kv_events.kv_events_config import KVEventsConfig
from inflight.kv_transfer.connector import Fetched, KVConnector
from inflight.kv_transfer.kv_transfer_config import KVTransferConfig
from inflight.kv_transfer.kv_transfer_params import KVTransferParams
from inflight.model.cache.layout import fingerprint
from inflight.model.draft_model import load_draft_model, make_drafter
from inflight.model.factory import load, make_runner
from inflight.model.loading.loader import LoadedModel
from inflight.model.parallel.divided_model import DividedModel
from inflight.model.runner import ModelRunner
from inflight.outputs import Delta, OutputProcessor, TokenEvent
from inflight.pooling_params import LAST, PoolingParams
from inflight.request import ERROR, INVALID, STOP, Request
from inflight.request_maker import RequestMaker
from inflight.request_options import RequestOptions
from inflight.request_output import RequestOutput
from inflight.sampling_params import SamplingParams
from inflight.scheduler.factory import make_tables
from inflight.scheduler.scheduler import Scheduler
from inflight.speculation.speculative_config import SpeculativeConfig
from inflight.stats import EngineStats
from inflight.text.chat import Chat
from inflight.text.prompt_encoder import Prompt, PromptEncoder
from inflight.trace import Trace
from inflight.tracing import make_spans

# By default, the waiting requests together may fill the KV cache so many times.
_QUEUED_CACHES = 16


class Engine:
    """Batches requests in flight.

    `generate` serves a list of prompts in one call. With `submit`, `cancel` and `step`, requests join and leave
    between steps. A server runs `core.run` on one thread and `process` on another.

    Raises:
        UnsupportedModel: the engine cannot reproduce the output of the model token for token.
        ValueError: the model or a setting cannot be used; the message names it.
    """

    def __init__(self, config: EngineConfig, model: LoadedModel | DividedModel | None = None) -> None:
        """`model` is a loaded model; the engine uses it instead of loading the model that `config` names.

        The processes of a divided model end when `close` is called, unless the model was given.
        """
        self.config = config
        self.trace = Trace(config.trace_file, config.max_num_batched_tokens) if config.trace_file else None
        """The caller that steps `core` must flush the trace and the spans."""
        self.spans = make_spans(config.otlp_traces_endpoint)
        recorded = BlockEvents() if KVEventsConfig.of(config.kv_events_config).is_on else None
        self._publisher = None if recorded is None else make_publisher(config, recorded)
        loaded = model or load(config)
        self.model = loaded.mine if isinstance(loaded, DividedModel) else loaded
        self.grammars = Grammars(self.model.backend_tokenizer, self.model.vocab_size, self.model.eos_token_ids)
        draft_model = load_draft_model(config, self.model)
        self._runner = make_runner(loaded, config, beside=draft_model)
        self.max_model_len = self.model.max_model_len
        self._encoder = PromptEncoder(self.model.tokenizer, self.max_model_len)
        folder = open_folder(config.kv_offloading_path) if config.kv_offloading_path else None
        tables = make_tables(
            config,
            self._runner.num_blocks,
            self._runner.num_host_blocks,
            recorded,
            None if folder is None else hash_key(folder),
        )
        drafts = bool(config.speculative_config)
        self._most_drafted = SpeculativeConfig.of(config.speculative_config).num_speculative_tokens if drafts else 0
        """Maximum number of drafted tokens of a request in a step, unless the request asks for another one."""
        self._scheduler = Scheduler(
            config,
            tables,
            config.queue_policies,
            swap_seconds_per_block=self._runner.swap_seconds_per_block,
            row_times=self._runner.measure_rows(config.max_num_batched_tokens) if drafts else None,
            drafter=None
            if draft_model is None
            else make_drafter(config, self.model, draft_model, self._runner.num_blocks),
        )
        self._maker = RequestMaker(config, self.model, self._encoder, self.grammars, self._scheduler)
        self.disk = None if folder is None else self._make_disk(folder)
        """The prefixes on disk, if `kv_offloading_path` is given."""
        self._connector = self._make_connector()
        self.core = EngineCore(
            self._scheduler,
            self._runner,
            max_queue_size=config.max_queue_size,
            max_queue_tokens=self._max_queue_tokens(),
            trace=self.trace,
            publish=None if self._publisher is None and self.disk is None else self._step_ended,
            export=None if self._connector is None else self._connector.export,
        )
        self._workers = loaded.workers if isinstance(loaded, DividedModel) and model is None else None
        if isinstance(loaded, DividedModel):
            loaded.workers.serve(self.core.abort)
        self._processor = OutputProcessor(self.model.backend_tokenizer)
        self._ids = itertools.count()
        self._outputs: dict[Request, RequestOutput] = {}
        """Outputs of the unfinished requests that have had at least one delta in `step` or `generate`."""
        self._kept: dict[RequestOutput, None] = {}
        """Outputs of other requests that changed while `generate` stepped, in order. The next `step` returns them."""
        if self._publisher is not None:
            self._publisher.start()
        if self._connector is not None:
            self._connector.start()

    def close(self) -> None:
        """Stop publishing KV events and exporting prompts, write to disk what waits for it, and end the processes of a
        divided model.

        Call this after the last step.
        """
        if self._publisher is not None:
            self._publisher.close()
        if self._connector is not None:
            self._connector.close()
        if self.disk is not None:
            self.disk.close()
        if self._workers is not None:
            self._workers.close()

    def _make_disk(self, folder: Path) -> DiskTier:
        assert isinstance(self._runner, ModelRunner), "the settings allow no other"
        times = self._scheduler.times
        return DiskTier(
            DiskStore(
                folder,
                fingerprint(self.model, self.config),
                self._runner.bytes_per_block,
                round(self.config.kv_offloading_disk_size * 2**30),
            ),
            self._scheduler.tables,
            read_blocks=self._runner.read_blocks,
            prefill_seconds=lambda tokens: times.prefill_seconds(tokens) if times.known else None,
        )

    def _step_ended(self) -> None:
        if self._publisher is not None:
            self._publisher.publish()
        if self.disk is not None:
            self.disk.save()

    def _make_connector(self) -> KVConnector | None:
        transfer = KVTransferConfig.of(self.config.kv_transfer_config)
        if transfer.kv_role is None:
            return None
        assert isinstance(self._runner, ModelRunner), "the settings allow no other"
        return KVConnector(
            transfer,
            fingerprint=fingerprint(self.model, self.config),
            block_size=self.config.block_size,
            bytes_per_block=self._runner.bytes_per_block,
            read_blocks=self._runner.read_blocks,
            num_cached=lambda prompt_ids, options: self._scheduler.tables.num_known_of(
                Request("", prompt_ids, SamplingParams(), max_tokens=1, seed=0, options=options)
            ),
        )

    def _max_queue_tokens(self) -> int:
        """Raises ValueError if a prompt that fits the cache and the context would not fit the empty queue."""
        capacity = self._runner.num_blocks * self.config.block_size
        bound = self.config.max_queue_tokens
        if bound is None:
            return _QUEUED_CACHES * capacity
        longest = min(capacity, self.max_model_len)
        if bound < longest:
            raise ValueError(f"max_queue_tokens is {bound}; it must be at least {longest}, so that any prompt fits")
        return bound

    # -- requests in -------------------------------------------------------------------------------------------------

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        options: RequestOptions | None = None,
        *,
        request_id: str | None = None,
    ) -> str:
        """Queue a request and return its id. Any thread may call this.

        Args:
            prompt: a text or token ids.
            params: how to sample. Default: the model's defaults.
            options: priority, limits and names of the request.
            request_id: an id that no unfinished request has. Default: a generated one.

        Raises:
            InvalidRequest: the prompt or a parameter cannot be served; the message names it and the bound.
            QueueFull: too many requests or tokens wait.
            EngineDead: the engine has stopped.
        """
        request_id = request_id or f"request-{next(self._ids)}"
        self.submit_samples(prompt, {request_id: params or SamplingParams()}, options)
        return request_id

    def submit_samples(
        self,
        prompt: Prompt,
        params: Mapping[str, SamplingParams],
        options: RequestOptions | None = None,
        grammar: Grammar | None = None,
        fetched: Fetched | None = None,
        *,
        reads_disk: bool = True,
    ) -> None:
        """Queue several samples of a prompt, each under its own id: all of them or none. Any thread may call this.

        The first one computes the prompt. With the prefix cache, the others wait for its full blocks and share them.

        Args:
            prompt: a text or token ids.
            params: how to sample, by request id.
            options: as in `submit`, for all samples.
            grammar: what `grammars` has made of their `structured_outputs`. If it is not given, this waits for it.
            fetched: what `fetch` has brought for them. If it is not given, this waits for it.
            reads_disk: read what is on disk of the prompt, where the engine has a `disk`. It may take some time.

        Raises:
            InvalidRequest, QueueFull, EngineDead: as in `submit`.
        """
        prompt_ids = self._maker.encode(prompt)
        if fetched is None and (future := self.fetch(prompt_ids, options)) is not None:
            fetched = future.result()
        requests = [self._maker.request(prompt_ids, given, name, grammar) for name, given in params.items()]
        if fetched is not None:
            fetched.give(requests)
        self._submit(requests, options, reads_disk=reads_disk)

    def fetch(self, prompt: Prompt, options: RequestOptions | None) -> "Future[Fetched] | None":
        """Begin to fetch the keys and values that `kv_transfer_params` name, if any. Any thread may call this.

        The future always has a result within `fetch_timeout` and the request's deadline.

        Raises:
            InvalidRequest: the prompt cannot be served, or this engine has not the role that the request wants of it.
        """
        params = None if options is None else options.kv_transfer_params
        if options is None or params is None or not params.do_remote_prefill:
            return None
        return self._check_transfer(params).fetch(self._maker.encode(prompt), options, params)

    def _check_transfer(self, params: KVTransferParams) -> KVConnector:
        if self._connector is None:
            raise InvalidRequest("kv_transfer_params is given, but kv_transfer_config is not set")
        self._connector.check(params)
        return self._connector

    def release(self, options: RequestOptions) -> None:
        """Tell the other engine that nobody will fetch what `kv_transfer_params` name, if they name any."""
        params = options.kv_transfer_params
        if params is not None and params.do_remote_prefill and self._connector is not None:
            self._connector.release(params)

    def submit_embedding(
        self,
        prompt: Prompt,
        pooling: PoolingParams | None = None,
        options: RequestOptions | None = None,
        *,
        request_id: str | None = None,
        reads_disk: bool = True,
    ) -> str:
        """Queue a request for an embedding and return its id. Any thread may call this.

        It is batched with all other requests. Its output has the finish reason `stop` and no tokens.

        Args:
            prompt: a text or token ids.
            pooling: how to make the embedding. Default: the normalised hidden state of the last token.
            options, request_id: as in `submit`.
            reads_disk: as in `submit_samples`.

        Raises:
            InvalidRequest, QueueFull, EngineDead: as in `submit`.
        """
        request_id = request_id or f"request-{next(self._ids)}"
        if options is not None and options.kv_transfer_params is not None:
            raise InvalidRequest("kv_transfer_params is given with a prompt to embed; it needs one to generate from")
        request = self._maker.embedding_request(self._maker.encode(prompt), pooling or PoolingParams(), request_id)
        self._submit([request], options, reads_disk=reads_disk)
        return request_id

    def _submit(self, requests: Sequence[Request], options: RequestOptions | None, *, reads_disk: bool) -> None:
        if options is not None:
            self._maker.check_options(options)
        if options is not None and options.kv_transfer_params is not None:
            self._check_transfer(options.kv_transfer_params)
            if options.kv_transfer_params.do_remote_decode and len(requests) > 1:
                raise InvalidRequest(f"n is {len(requests)}; it must be 1 with do_remote_decode in kv_transfer_params")
        for request in requests:
            if options is not None:
                request.options = options
            self._scheduler.policies.apply(request)
        if reads_disk:
            self._bring(requests[0])
        self.core.submit(*requests)

    def _bring(self, request: Request) -> None:
        """Give a request what is on disk of its prompt. Other samples wait for the blocks of the first one."""
        if self.disk is not None and self.core.has_room(request):
            self.disk.bring(request)

    def chat_prompt_ids(
        self, messages: object, *, tools: object | None = None, template_kwargs: object | None = None
    ) -> list[int]:
        """Return the prompt tokens of a chat, built with the model's chat template.

        Args:
            messages: a list of chat messages.
            tools: a list of OpenAI's tool objects, which the template shows to the model.
            template_kwargs: variables for the template, such as {"enable_thinking": False}.

        Raises:
            InvalidRequest: the chat is malformed or too long, or the model has no chat template or tokenizer.
        """
        return self._encoder.encode_chat(Chat(messages, tools, {} if template_kwargs is None else template_kwargs))

    def text_prompt_ids(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the prompt tokens of a text.

        `add_special_tokens`: with those that the model expects around every text, as `submit` adds them.

        Raises:
            InvalidRequest: the text is too long, or the model has no tokenizer.
        """
        return self._encoder.encode(text, add_special_tokens=add_special_tokens)

    def checked_text_of(self, token_ids: Sequence[int]) -> str:
        """Like `text_of`, for tokens of a client.

        Raises:
            InvalidRequest: a token is outside of the vocabulary, or the model has no tokenizer.
        """
        self._encoder.tokenizer("input_ids")
        for token in token_ids:
            self._maker.check_token("input_ids", token)
        return self.text_of(token_ids)

    def text_of(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, special ones included. Empty if the model has no tokenizer."""
        tokenizer = self.model.backend_tokenizer
        return "" if tokenizer is None else str(tokenizer.decode(token_ids, skip_special_tokens=False))

    @property
    def takes_drafts(self) -> bool:
        """Whether requests may bring drafts of their outputs."""
        return self._maker.takes_drafts

    def cancel(self, request_id: str) -> None:
        """End a waiting or running request before the next step. Any thread may call this."""
        self.core.cancel(request_id)

    # -- steps -------------------------------------------------------------------------------------------------------

    def step(self) -> list[RequestOutput]:
        """Run one step and return the outputs that it changed. Each output grows until it is `finished`.

        Outputs that changed during `generate` come first.
        """
        kept, self._kept = self._kept, {}
        return list(kept | dict.fromkeys(self._step()))

    def _step(self) -> list[RequestOutput]:
        deltas = self.process(self.core.step())
        # A stop string may just have ended a request. End it in the core now, as there may be no later step.
        deltas += self.process(self.core.drop_cancelled())
        self.flush_traces()
        return self._outputs_of(deltas)

    def _outputs_of(self, deltas: Sequence[Delta]) -> list[RequestOutput]:
        """Add deltas to the outputs that they belong to, and return these outputs, each once."""
        changed: dict[RequestOutput, None] = {}
        for delta in deltas:
            output = self._outputs.get(delta.request)
            if output is None:
                output = self._outputs[delta.request] = RequestOutput.of(delta.request)
            output.add(delta)
            if output.finished:
                del self._outputs[delta.request]
            changed[output] = None
        return list(changed)

    def process(self, events: Sequence[TokenEvent]) -> list[Delta]:
        """Detokenise the events of a step. Requests that a stop string ends are dropped from the engine."""
        deltas, stopped = self._processor.process(events)
        for request_id in stopped:
            self.core.cancel(request_id, STOP)
        self.core.metrics.outputs(deltas)
        if self.spans is not None:
            self.spans.add(deltas)
        return deltas

    def flush_traces(self) -> None:
        """Write the trace, and make the spans of the requests that have ended. One thread may call this at a time."""
        if self.trace is not None:
            self.trace.flush()
        if self.spans is not None:
            self.spans.flush()

    def close_traces(self) -> None:
        """Like `flush_traces`, for the last time. Also send the spans, which takes at most 5 seconds."""
        self.flush_traces()
        if self.spans is not None:
            self.spans.close()

    @property
    def has_work(self) -> bool:
        """Whether a request waits or runs, or an output is kept for the next `step`."""
        return self.core.has_work or bool(self._kept)

    def stats(self) -> EngineStats:
        """Return the counters and the use of the KV cache."""
        stats, lost_imports = self.core.stats(), self._scheduler.tables.lost_imports
        return replace(
            stats,
            accepted_draft_tokens_at=stats.accepted_draft_tokens_at[: self._most_drafted],
            grammars_compiled=self.grammars.num_compiled,
            grammar_compile_seconds=self.grammars.seconds,
            grammar_mask_seconds=self._runner.masker.seconds,
            kv_event_batches={} if self._publisher is None else self._publisher.counts(),
            disk=None if self.disk is None else self.disk.counts(),
            kv_transfer=None if self._connector is None else self._connector.stats(lost_imports[REMOTE]),
        )

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = False,
    ) -> list[RequestOutput]:
        """Serve a list of prompts and return their outputs in order. The queue's timeouts don't apply.

        Requests that were submitted earlier also make progress; the next `step` returns their outputs. If an exception
        ends this call early, Ctrl-C included, the requests of this call are cancelled.

        Args:
            prompts: texts or lists of token ids. A single prompt gives a list of one output.
            params: one for all prompts, or one for each.
            progress: show a progress bar.

        Raises:
            InvalidRequest: a prompt or parameter cannot be served. In this case nothing is computed.
            RuntimeError: a step failed, or a grammar turned out to be too complex.
        """
        every = _as_list(prompts)
        each = list(params) if isinstance(params, Sequence) else [params or SamplingParams()] * len(every)
        if len(each) != len(every):
            raise InvalidRequest(f"params has {len(each)} entries for {len(every)} prompts")
        run = f"generate-{next(self._ids)}"
        return self._serve(
            [
                self._maker.request(self._maker.encode(p), s, f"{run}-{i}")
                for i, (p, s) in enumerate(zip(every, each, strict=True))
            ],
            progress=progress,
        )

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling: str = LAST,
        normalize: bool = True,
        dimensions: int | None = None,
        progress: bool = False,
    ) -> NDArray[np.float32]:
        """Return the embeddings [prompts, dimensions] of a list of prompts. In all else this is like `generate`.

        Args:
            prompts: texts or lists of token ids. A single prompt gives a single row.
            pooling: `last` takes the hidden state of the last token, `mean` the mean of those of all tokens.
            normalize: divide each embedding by its length.
            dimensions: keep so many of the first numbers. Default: all.
            progress: show a progress bar.

        Raises:
            InvalidRequest: a prompt or argument cannot be served. In this case nothing is computed.
            RuntimeError: a step failed.
        """
        params = PoolingParams(pooling=pooling, normalize=normalize, dimensions=dimensions)
        run = f"embed-{next(self._ids)}"
        outputs = self._serve(
            [
                self._maker.embedding_request(self._maker.encode(p), params, f"{run}-{i}")
                for i, p in enumerate(_as_list(prompts))
            ],
            progress=progress,
        )
        rows = [output.embedding for output in outputs if output.embedding is not None]
        return np.stack(rows) if rows else np.zeros((0, dimensions or self.model.hidden_width or 0), np.float32)

    def _serve(self, requests: list[Request], *, progress: bool) -> list[RequestOutput]:
        """Return the outputs of requests that were not submitted yet, in order."""
        outputs: dict[str, RequestOutput] = {}
        try:
            with tqdm(total=len(requests), unit="request", disable=not progress) as bar:
                self._drain(requests, outputs, bar)
        finally:
            self._drop(requests)
        failed = next((o for o in outputs.values() if o.finish_reason in (ERROR, INVALID)), None)
        if failed is not None:
            raise RuntimeError(f"{failed.request_id} failed: {failed.error}")
        return [outputs[request.request_id] for request in requests]

    def _drain(self, requests: list[Request], outputs: dict[str, RequestOutput], bar: "tqdm[None]") -> None:
        """Step until each of `requests` has an output. Submit requests while the queue has room."""
        unsent = deque(requests)
        ours = {request.request_id for request in requests}
        while len(outputs) < len(requests):
            while unsent and self.core.has_room(unsent[0]):
                self._bring(unsent[0])
                self.core.submit(unsent.popleft())
            self.core.wait_for_batch()
            for output in self._step():
                if output.request_id not in ours:
                    self._kept[output] = None
                elif output.finished:
                    outputs[output.request_id] = output
                    bar.update()

    def _drop(self, requests: list[Request]) -> None:
        """End the unfinished requests among `requests`, without a step."""
        ours = {request.request_id for request in requests}
        for request_id in ours:
            self.core.cancel(request_id)
        dropped = self._outputs_of(self.process(self.core.drop_cancelled()))
        self._kept |= {output: None for output in dropped if output.request_id not in ours}
        self.flush_traces()


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str) or (prompts and isinstance(prompts[0], Number)):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]
