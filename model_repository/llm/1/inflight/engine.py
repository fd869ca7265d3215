"""The engine as a Python object: a model, a scheduler and a KV cache behind `generate`, or `submit` and `step`."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from inflight.arrivals import max_queue_tokens
from inflight.config import EngineConfig
from inflight.core import EngineCore
from inflight.guided_decoding.grammars import Grammars
from inflight.kv_cache.block_events import BlockEvents
from inflight.kv_cache.block_tables import BlockTables
from inflight.kv_cache.disk_folder import hash_key, open_folder
from inflight.kv_cache.imported_blocks import REMOTE
from inflight.kv_events.factory import make_publisher
from inflight.kv_events.kv_events_config import KVEventsConfig
from inflight.kv_sources import make_connector, make_disk
from inflight.model.cache.memory import num_state_snapshots
from inflight.model.draft_model import load_draft_model, make_drafter
from inflight.model.factory import load, make_runner
from inflight.model.loading.loader import LoadedModel
from inflight.model.parallel.divided_model import DividedModel
from inflight.offline_inference import OfflineInference
from inflight.output_handler import OutputHandler
from inflight.pooling_params import CLASSIFY, LAST, PoolingParams
from inflight.prompts import AnyPrompt
from inflight.request_maker import RequestMaker
from inflight.request_options import RequestOptions
from inflight.request_output import RequestOutput
from inflight.request_submitter import RequestSubmitter
from inflight.sampling_params import SamplingParams
from inflight.scheduler.factory import make_tables
from inflight.scheduler.scheduler import Scheduler
from inflight.speculation.speculative_config import SpeculativeConfig
from inflight.stats import EngineStats
from inflight.text.prompt_encoder import Prompt, PromptEncoder
from inflight.trace import Trace
from inflight.tracing import make_spans


class Engine:
    """Batches requests in flight.

    `generate` serves a list of prompts in one call. With `submit`, `cancel` and `step`, requests join and leave
    between steps. A server submits to `submitter`, runs `core.run` on one thread and `outputs.process` on another.

    Raises:
        UnsupportedModel: the engine cannot reproduce the output of the model token for token.
        ValueError: the model or a setting cannot be used; the message names it.
    """

    def __init__(self, config: EngineConfig, model: LoadedModel | DividedModel | None = None) -> None:
        """`model` is a loaded model; the engine uses it instead of loading the model that `config` names.

        The processes of a divided model end when `close` is called, unless the model was given.
        """
        self.config = config
        trace = Trace(config.trace_file, config.max_num_batched_tokens) if config.trace_file else None
        spans = make_spans(config.otlp_traces_endpoint)
        recorded = BlockEvents() if KVEventsConfig.of(config.kv_events_config).is_on else None
        self._publisher = None if recorded is None else make_publisher(config, recorded)
        loaded = model or load(config)
        self.model = loaded.mine if isinstance(loaded, DividedModel) else loaded
        self.grammars = Grammars(self.model.backend_tokenizer, self.model.num_logits, self.model.eos_token_ids)
        draft_model = load_draft_model(config, self.model)
        self._runner = make_runner(loaded, config, beside=draft_model)
        self.max_model_len = self.model.max_model_len
        self.encoder = PromptEncoder(self.model.tokenizer, self.max_model_len)
        folder = open_folder(config.kv_offloading_path) if config.kv_offloading_path else None
        tables = make_tables(
            config,
            self._runner.num_blocks,
            self._runner.num_host_blocks,
            recorded,
            None if folder is None else hash_key(folder),
            num_state_snapshots=num_state_snapshots(self.model, config) if self.model.states else None,
            reuses_output=all(layer.time_step_limit is None for layer in self.model.states),
        )
        drafts = bool(config.speculative_config)
        self._most_drafted = SpeculativeConfig.of(config.speculative_config).num_speculative_tokens if drafts else 0
        """Maximum number of drafted tokens of a request in a step, unless the request asks for another one."""
        self._scheduler = self._make_scheduler(tables, draft_model)
        self.maker = RequestMaker(config, self.model, self.encoder, self.grammars, self._scheduler)
        self.disk = None if folder is None else make_disk(config, folder, self.model, self._runner, self._scheduler)
        """The prefixes on disk, if `kv_offloading_path` is given."""
        self._connector = make_connector(config, self.model, self._runner, tables)
        self.core = EngineCore(
            self._scheduler,
            self._runner,
            max_queue_size=config.max_queue_size,
            max_queue_tokens=max_queue_tokens(
                config.max_queue_tokens, self._runner.num_blocks * config.block_size, self.max_model_len
            ),
            trace=trace,
            publish=None if self._publisher is None and self.disk is None else self._step_ended,
            export=None if self._connector is None else self._connector.export,
        )
        if self.model.adapters is not None:
            self.core.metrics.lora_requests.update(dict.fromkeys(self.model.adapters.named, 0))
        self._workers = loaded.workers if isinstance(loaded, DividedModel) and model is None else None
        if isinstance(loaded, DividedModel):
            loaded.workers.serve(self.core.abort)
        self.submitter = RequestSubmitter(
            self.maker, self.core, self._scheduler.policies, connector=self._connector, disk=self.disk
        )
        self.outputs = OutputHandler(self.core, self.model.backend_tokenizer, trace, spans)
        """The caller that steps `core` must pass it the events, and flush the traces."""
        self._offline = OfflineInference(self.maker, self.submitter, self.core, self.outputs)
        self._ids = itertools.count()
        if self._publisher is not None:
            self._publisher.start()
        if self._connector is not None:
            self._connector.start()

    def _make_scheduler(self, tables: BlockTables, draft_model: LoadedModel | None) -> Scheduler:
        config, runner = self.config, self._runner
        # They are the rows of one sequence, and some models have no positions beyond their context.
        most = min(config.max_num_batched_tokens, self.max_model_len)
        times = runner.measure_rows(most) if config.speculative_config else None
        drafter = None if draft_model is None else make_drafter(config, self.model, draft_model, runner.num_blocks)
        return Scheduler(
            config,
            tables,
            config.queue_policies,
            swap_seconds_per_block=runner.swap_seconds_per_block,
            row_times=times,
            drafter=drafter,
            num_logits=self.model.num_logits,
        )

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

    def close_traces(self) -> None:
        """Write the trace and send the spans for the last time, which takes at most 5 seconds."""
        self.outputs.close_traces()

    def _step_ended(self) -> None:
        if self._publisher is not None:
            self._publisher.publish()
        if self.disk is not None:
            self.disk.save()

    # -- requests in -------------------------------------------------------------------------------------------------

    def submit(
        self,
        prompt: AnyPrompt,
        params: SamplingParams | None = None,
        options: RequestOptions | None = None,
        *,
        request_id: str | None = None,
    ) -> str:
        """Queue a request and return its id. Any thread may call this.

        Args:
            prompt: a text or token ids, or an `ImagePrompt`.
            params: how to sample. Default: the model's defaults.
            options: priority, limits and names of the request.
            request_id: an id that no unfinished request has. Default: a generated one.

        Raises:
            InvalidRequest: the prompt or a parameter cannot be served; the message names it and the bound.
            QueueFull: too many requests or tokens wait.
            EngineDead: the engine has stopped.
        """
        request_id = request_id or f"request-{next(self._ids)}"
        self.submitter.submit_samples(prompt, {request_id: params or SamplingParams()}, options)
        return request_id

    def submit_embedding(
        self,
        prompt: Prompt,
        pooling: PoolingParams | None = None,
        options: RequestOptions | None = None,
        *,
        request_id: str | None = None,
    ) -> str:
        """Queue a request for an embedding and return its id. Any thread may call this.

        It is batched with all other requests. Its output has the finish reason `stop` and no tokens.

        Args:
            prompt: a text or token ids.
            pooling: how to make the embedding. Default: the normalised hidden state of the last token.
            options, request_id: as in `submit`.

        Raises:
            InvalidRequest, QueueFull, EngineDead: as in `submit`.
        """
        request_id = request_id or f"request-{next(self._ids)}"
        self.submitter.submit_embedding(prompt, pooling or PoolingParams(), request_id, options)
        return request_id

    def cancel(self, request_id: str) -> None:
        """End a waiting or running request before the next step. Any thread may call this."""
        self.core.cancel(request_id)

    # -- steps -------------------------------------------------------------------------------------------------------

    def step(self) -> list[RequestOutput]:
        """Run one step and return the outputs that it changed. Each output grows until it is `finished`.

        Outputs that changed during `generate` come first.
        """
        return self._offline.step()

    @property
    def has_work(self) -> bool:
        """Whether a request waits or runs, or an output is kept for the next `step`."""
        return self.core.has_work or self._offline.has_kept

    def stats(self) -> EngineStats:
        """Return the counters and the use of the KV cache."""
        stats, lost_imports, images = self.core.stats(), self._scheduler.tables.lost_imports, self.model.images
        adapters = self.model.adapters
        lora = None if adapters is None else adapters.cache
        return replace(
            stats,
            accepted_draft_tokens_at=stats.accepted_draft_tokens_at[: self._most_drafted],
            grammars_compiled=self.grammars.num_compiled,
            grammar_compile_seconds=self.grammars.seconds,
            images_read=0 if images is None else images.num_read,
            image_read_seconds=0.0 if images is None else images.seconds,
            lora_adapters=None if lora is None else len(lora),
            lora_waiting=None if lora is None else len(lora.waiting),
            lora_loads=None if lora is None else lora.num_read,
            lora_most=0 if adapters is None else adapters.most_in_memory,
            lora_wanted=stats.lora_wanted if lora is None else stats.lora_wanted.union(lora.waiting),
            grammar_mask_seconds=self._runner.masker.seconds,
            kv_event_batches={} if self._publisher is None else self._publisher.counts(),
            disk=None if self.disk is None else self.disk.counts(),
            kv_transfer=None if self._connector is None else self._connector.stats(lost_imports[REMOTE]),
        )

    def generate(
        self,
        prompts: AnyPrompt | Sequence[AnyPrompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = False,
    ) -> list[RequestOutput]:
        """Serve a list of prompts and return their outputs in order. The queue's timeouts don't apply.

        Requests that were submitted earlier also make progress; the next `step` returns their outputs. If an exception
        ends this call early, Ctrl-C included, the requests of this call are cancelled.

        Args:
            prompts: texts, lists of token ids, or `ImagePrompt`s. A single prompt gives a list of one output.
            params: one for all prompts, or one for each.
            progress: show a progress bar.

        Raises:
            InvalidRequest: a prompt or parameter cannot be served. In this case nothing is computed.
            RuntimeError: a step failed, or a grammar turned out to be too complex.
        """
        return self._offline.generate(prompts, params, progress=progress)

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
        rows = self._offline.embed(prompts, params, progress=progress)
        return np.stack(rows) if rows else np.zeros((0, dimensions or self.model.hidden_width or 0), np.float32)

    def classify(
        self, prompts: Prompt | Sequence[Prompt], *, use_activation: bool = True, progress: bool = False
    ) -> NDArray[np.float32]:
        """Return the probabilities [prompts, classes] of a model that classifies. In all else this is like `embed`.

        Args:
            prompts: texts or lists of token ids. A single prompt gives a single row.
            use_activation: False returns the logits, as reward models need them.
            progress: show a progress bar.

        Raises:
            InvalidRequest: a prompt cannot be served, or the model has no head for classes.
            RuntimeError: a step failed.
        """
        params = PoolingParams(task=CLASSIFY, use_activation=use_activation)
        rows = self._offline.embed(prompts, params, progress=progress)
        classifier = self.model.classifier
        return np.stack(rows) if rows else np.zeros((0, len(classifier.labels) if classifier else 0), np.float32)
