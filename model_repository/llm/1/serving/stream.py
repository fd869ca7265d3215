"""One client request: its samples and its responses."""

import dataclasses
import time
import uuid
from collections.abc import Sequence

from inflight import SamplingParams
from inflight.core import EngineCore
from inflight.outputs import Delta
from serving.parse import ParsedRequest
from serving.response import ResponseFormat, Sample
from serving.sender import Sender


class ResponseStream:
    """Sends the responses of one request. The responder thread and the maintenance thread can use it at once."""

    def __init__(
        self, sender: Sender, parsed: ParsedRequest, form: ResponseFormat, *, interval: int, apart: bool = False
    ) -> None:
        """`interval`: the number of tokens that one streamed response holds, except the first and the last response.
        `apart`: each sample gets responses of its own; the outputs of a beam search do not.
        """
        self.sender = sender
        self._interval, self._begun = interval, False
        self._prompt_sent = False
        self.wants_embedding = parsed.pooling is not None
        self._form = form
        self._outputs = parsed.outputs
        self._streaming = parsed.stream
        self._options, self._arrival = parsed.options, time.monotonic()
        self.cancel_key = parsed.cancel_key
        """The key with which another request can cancel this one."""
        self._cancelled = False
        self._opening = [str(parsed.prompt)] if parsed.prepend_prompt else []
        self._num_beams, self._beams = parsed.num_beams, list[Sample]()
        # Not Triton's request id: clients choose it, so two requests can have the same one.
        run = uuid.uuid4().hex
        self._apart = apart and not self._num_beams
        self.samples = {
            f"{run}-{i}": Sample(text=list(self._opening), index=i if self._apart else None)
            for i in range(parsed.num_samples)
        }
        """The samples, by the engine's request id of each."""
        self.params = {request_id: _sample_params(parsed.params, i) for i, request_id in enumerate(self.samples)}
        """How to sample each of them."""
        if parsed.params.prompt_logprobs is not None:
            next(iter(self.samples.values())).scores = []

    @property
    def name(self) -> str:
        """The name in the log and in `inflight top`: the client's request id, or else the engine's."""
        return self._options.client_request_id or next(iter(self.samples))

    def summary(self, core: EngineCore) -> dict[str, object]:
        """The request's name, tenant, age in seconds, number of output tokens so far, and how far its prompt is.

        While a grammar is compiled, the engine does not know the request yet: it waits, and its prompt has 0 tokens.
        """
        samples = [progress for name in self.samples if (progress := core.progress(name)) is not None]
        return {
            "request_id": self.name,
            "tenant": self._options.tenant,
            "seconds": round(time.monotonic() - self._arrival, 3),
            "output_tokens": sum(sample.num_tokens for sample in self.samples.values()),
            "running": any(progress.running for progress in samples),
            "priority": max((progress.priority for progress in samples), default=0),
            "prompt_tokens": max((progress.prompt_tokens for progress in samples), default=0),
            "computed_prompt_tokens": max((progress.computed_prompt_tokens for progress in samples), default=0),
        }

    @property
    def has_output(self) -> bool:
        """Whether a sample has begun or ended."""
        return any(sample.num_tokens or sample.finish_reason for sample in self.samples.values())

    def add(self, delta: Delta) -> None:
        """Add the new output of one sample, or all outputs of a beam search; `flush` sends them."""
        beams = delta.beams[: self._num_beams]
        self._beams = [Sample.of_beam(beam, delta.request, self._opening) for beam in beams]
        sample = self.samples[delta.request.request_id]
        sample.add(delta)
        self._form.add_scores(sample, delta)

    def flush(self) -> bool:
        """Send the new output if a response is due, and return whether it was the last.

        A streamed request gets a response for each piece of text, or for each token if it asked for tokens. Any other
        request gets one response at the end, or one for each sample. Raises as `Sender.send` does.
        """
        samples = self._beams or list(self.samples.values())
        final = all(sample.finish_reason is not None for sample in samples)
        if final or (self._streaming and self._due(samples)):
            parts = [[sample] for sample in samples if sample.has_news] if self._apart else [samples]
            for number, part in enumerate(parts, start=1):
                self._send(part, final=final and number == len(parts))
        return final

    def _send(self, samples: Sequence[Sample], *, final: bool) -> None:
        with_prompt = not self._prompt_sent and samples[0].knows_prompt and not samples[0].index
        ended = all(sample.finish_reason is not None for sample in samples)
        response = self._form.response(
            samples, self._outputs, first=not self._begun, final=ended, with_prompt=with_prompt
        )
        self._begun, self._prompt_sent = True, self._prompt_sent or with_prompt
        self.sender.send(response, final=final)
        for sample in samples:
            sample.clear()

    def _due(self, samples: Sequence[Sample]) -> bool:
        # Tokens without text, as those of a model without a tokenizer, are news only to whoever asked for them.
        if not any(sample.text or (self._outputs.token_ids and sample.token_ids) for sample in samples):
            return False
        return not self._begun or max(len(sample.token_ids) for sample in samples) >= self._interval

    def cancel(self) -> None:
        """Remember that the request is to end. The engine may not know it yet."""
        self._cancelled = True

    @property
    def was_cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._cancelled

    def is_cancelled(self) -> bool:
        """Whether the client has cancelled the request or disconnected, or `cancel` was called."""
        return self._cancelled or self.sender.is_cancelled()


def _sample_params(params: SamplingParams, index: int) -> SamplingParams:
    """Return the parameters of one sample.

    In a request with a seed each sample has a seed of its own. The first sample alone scores the prompt.
    """
    if params.seed is not None:
        params = dataclasses.replace(params, seed=(params.seed + index) % 2**64)
    return params if index == 0 else dataclasses.replace(params, prompt_logprobs=None)
