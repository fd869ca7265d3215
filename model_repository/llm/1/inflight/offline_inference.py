"""Inference without a server: the caller's own thread runs the steps and collects the outputs."""

import itertools
from collections import deque
from collections.abc import Sequence
from numbers import Number
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from inflight.core import EngineCore
from inflight.errors import InvalidRequest
from inflight.output_handler import OutputHandler
from inflight.outputs import Delta
from inflight.pooling_params import PoolingParams
from inflight.prompts import AnyPrompt, EmbedsPrompt, ImagePrompt
from inflight.request import ERROR, INVALID, Request
from inflight.request_maker import RequestMaker
from inflight.request_output import RequestOutput
from inflight.request_submitter import RequestSubmitter
from inflight.sampling_params import SamplingParams
from inflight.text.prompt_encoder import Prompt
from inflight.text.text_pair import TextPair

T = TypeVar("T", bound=AnyPrompt)


class OfflineInference:
    """Runs steps one at a time for requests that were submitted, or serves a list of prompts in one call.

    Only one thread at a time may use it.
    """

    def __init__(
        self, maker: RequestMaker, submitter: RequestSubmitter, core: EngineCore, handler: OutputHandler
    ) -> None:
        self._maker = maker
        self._submitter = submitter
        self._core = core
        self._handler = handler
        self._calls = itertools.count()
        self._outputs: dict[Request, RequestOutput] = {}
        """Outputs of the unfinished requests that have had at least one delta."""
        self._kept: dict[RequestOutput, None] = {}
        """Outputs of other requests that changed while a list of prompts was served, in order, for the next `step`."""

    @property
    def has_kept(self) -> bool:
        """Whether an output is kept for the next `step`."""
        return bool(self._kept)

    def step(self) -> list[RequestOutput]:
        """See `Engine.step`."""
        changed = dict.fromkeys(self._step())
        kept, self._kept = self._kept, {}
        return list(kept | changed)

    def _step(self) -> list[RequestOutput]:
        deltas = self._handler.process(self._core.step())
        # A stop string may just have ended a request. End it in the core now, as there may be no later step.
        deltas += self._handler.process(self._core.drop_cancelled())
        self._handler.flush_traces()
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

    def generate(
        self,
        prompts: AnyPrompt | Sequence[AnyPrompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
        *,
        progress: bool,
    ) -> list[RequestOutput]:
        """See `Engine.generate`."""
        every = _as_list(prompts)
        each = list(params) if isinstance(params, Sequence) else [params or SamplingParams()] * len(every)
        if len(each) != len(every):
            raise InvalidRequest(f"params has {len(each)} entries for {len(every)} prompts")
        call = f"generate-{next(self._calls)}"
        requests = []
        for number, (prompt, given) in enumerate(zip(every, each, strict=True)):
            requests.append(self._maker.request(self._maker.prompts.read(prompt), given, f"{call}-{number}"))
        return self._serve(requests, progress=progress)

    def embed(
        self, prompts: Prompt | Sequence[Prompt], params: PoolingParams, *, progress: bool
    ) -> list[NDArray[np.float32]]:
        """Return the embeddings, each [dimensions]. See `Engine.embed`."""
        call = f"embed-{next(self._calls)}"
        outputs = self._serve(
            [
                self._maker.embedding_request(self._maker.prompts.encode(p), params, f"{call}-{i}")
                for i, p in enumerate(_as_list(prompts))
            ],
            progress=progress,
        )
        return [output.embedding for output in outputs if output.embedding is not None]

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
            while unsent and self._core.has_room(unsent[0]):
                self._submitter.read_disk(unsent[0])
                self._core.submit(unsent.popleft())
            self._core.wait_for_batch()
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
            self._core.cancel(request_id)
        dropped = self._outputs_of(self._handler.process(self._core.drop_cancelled()))
        self._kept |= {output: None for output in dropped if output.request_id not in ours}
        self._handler.flush_traces()


def _as_list(prompts: T | Sequence[T]) -> list[T]:
    if isinstance(prompts, str | TextPair | ImagePrompt | EmbedsPrompt) or (prompts and isinstance(prompts[0], Number)):
        return [cast(T, prompts)]
    return list(cast("Sequence[T]", prompts))
