"""Converts the outputs of a request into tensors, in vllm_backend's format."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from inflight.outputs import Delta, TokenLogprobs
from serving.output_options import OutputOptions


@dataclass
class Sample:
    """The new output of one sample since the last response, and its totals."""

    text: list[str] = field(default_factory=list)
    logprobs: list[tuple[int, TokenLogprobs]] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    num_tokens: int = 0
    """Number of output tokens so far, including those already sent."""
    prompt_ids: list[int] = field(default_factory=list)
    """Token ids of the prompt; empty before the first output."""
    cumulative_logprob: float = 0.0
    finish_reason: str | None = None

    def add(self, delta: Delta) -> None:
        """Add the new output of this sample."""
        if delta.text:
            self.text.append(delta.text)
        self.token_ids += delta.token_ids
        if delta.logprobs:
            self.logprobs += zip(delta.token_ids, delta.logprobs, strict=True)
            self.cumulative_logprob += sum(entry.chosen for entry in delta.logprobs)
        self.num_tokens = delta.num_output
        self.prompt_ids = delta.request.prompt_ids
        self.finish_reason = delta.finish_reason

    def clear(self) -> None:
        """Forget the output that was sent. The totals stay."""
        self.text.clear()
        self.logprobs.clear()
        self.token_ids.clear()


class ResponseFormat:
    """Makes response tensors. All requests of a model share one instance.

    Args:
        decode: returns the text of a token.
        batched: whether the model's config has a batch dimension. Every tensor then has it as its first dimension.
    """

    def __init__(self, decode: Callable[[int], str], *, batched: bool) -> None:
        self._decode = decode
        self._batched = batched

    def response(self, samples: Sequence[Sample], outputs: OutputOptions, *, outermost: bool) -> Any:
        """Make a response. Each output has one element per sample.

        `outermost`: this is the first or the last response of the request.
        """
        tensors = [self._texts("text_output", ["".join(sample.text) for sample in samples])]
        if outputs.finish_reason is True or (outputs.finish_reason and any(s.finish_reason for s in samples)):
            # As in vllm_backend, the value is "None" until the sample ends.
            tensors.append(self._texts("finish_reason", [str(sample.finish_reason) for sample in samples]))
        if outputs.cumulative_logprob:
            tensors.append(self._numbers("cumulative_logprob", [s.cumulative_logprob for s in samples], np.float32))
        if outputs.logprobs:
            entries = [self._logprobs(sample) if outputs.has_logprobs else "null" for sample in samples]
            tensors.append(self._texts("logprobs", entries))
        if outputs.log_probs:
            chosen = [[entry.chosen for _, entry in sample.logprobs] for sample in samples]
            tensors.append(self._numbers("cum_log_probs", [s.cumulative_logprob for s in samples], np.float32))
            tensors.append(self._tensor("output_log_probs", _padded(chosen, np.float32, 0)))
        if outputs.num_input_tokens:
            tensors.append(self._numbers("num_input_tokens", [len(samples[0].prompt_ids)], np.uint32))
        if outputs.num_output_tokens:
            tensors.append(self._numbers("num_output_tokens", [len(s.token_ids) for s in samples], np.uint32))
        if outputs.token_ids:
            tensors.append(self._tensor("token_ids", _padded([s.token_ids for s in samples], np.int32, -1)))
        if outputs.usage and outermost:
            counts = [len(samples[0].prompt_ids), sum(sample.num_tokens for sample in samples)]
            tensors.append(self._numbers("usage", counts, np.uint32))
        return pb_utils.InferenceResponse(output_tensors=tensors)

    def text(self, text: str) -> Any:
        """Make a response with one text."""
        return pb_utils.InferenceResponse(output_tensors=[self._texts("text_output", [text])])

    def _texts(self, name: str, texts: Sequence[str]) -> Any:
        return self._tensor(name, np.array([text.encode() for text in texts], dtype=np.object_))

    def _numbers(self, name: str, numbers: Sequence[float], dtype: Any) -> Any:
        return self._tensor(name, np.array(numbers, dtype=dtype))

    def _tensor(self, name: str, array: Any) -> Any:
        return pb_utils.Tensor(name, array[np.newaxis] if self._batched else array)

    def _logprobs(self, sample: Sample) -> str:
        """A JSON list with one object per new token. It maps the ids of the chosen and the likeliest tokens to their
        log-probabilities."""
        if not sample.logprobs:
            return "null"
        return json.dumps([self._entry(token, entry) for token, entry in sample.logprobs])

    def _entry(self, token: int, entry: TokenLogprobs) -> dict[str, dict[str, object]]:
        ranked = {likely: (rank, value) for rank, (likely, value) in enumerate(entry.top.items(), start=1)}
        ranked[token] = (entry.rank, entry.chosen)
        return {
            str(which): {"logprob": value, "rank": rank, "decoded_token": self._decode(which)}
            for which, (rank, value) in ranked.items()
        }


def _padded(rows: Sequence[Sequence[float]], dtype: Any, filler: int) -> Any:
    """Shape: [samples, maximum number of new tokens, but at least 1]."""
    padded = np.full((len(rows), max(1, *map(len, rows))), filler, dtype=dtype)
    for into, row in zip(padded, rows, strict=True):
        into[: len(row)] = row
    return padded
