"""Converts the outputs of a request into tensors, in vllm_backend's format."""

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from inflight.outputs import Beam, Delta
from inflight.request import Request
from inflight.step_result import TokenLogprobs
from serving.output_options import OutputOptions
from serving.perf_metrics import perf_metrics

# OpenAI's value for an impossible token; JSON has no infinity.
_LOWEST = -9999.0
# Some vocabularies have more tokens, but hardly any text does.
_KNOWN_TOKENS = 2**16


@dataclass
class Sample:
    """The new output of one sample since the last response, and its totals."""

    text: list[str] = field(default_factory=list)
    logprobs: list[tuple[int, TokenLogprobs]] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    num_tokens: int = 0
    """Number of output tokens so far, including those already sent."""
    request: Request | None = None
    """The engine's request; None before the first output."""
    cumulative_logprob: float = 0.0
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    ends_here: bool = False
    """Whether it has ended since the last response."""
    scores: list[str] | None = None
    """The entry in JSON of each prompt token with a log-probability so far; None if the request asked for none."""
    embedding: NDArray[np.float32] | None = None
    """[dimensions]."""
    index: int | None = None
    """Its place among the samples of its request, if it gets responses of its own."""

    @classmethod
    def of_beam(cls, beam: Beam, request: Request, opening: Sequence[str]) -> "Sample":
        """Return one output of a beam search. `opening` is text before it."""
        return cls(
            text=[*opening, beam.text],
            token_ids=list(beam.token_ids),
            num_tokens=len(beam.token_ids),
            request=request,
            cumulative_logprob=beam.logprob,
            finish_reason=beam.finish_reason,
            stop_reason=beam.stop_reason,
            ends_here=True,
        )

    @property
    def prompt_ids(self) -> list[int]:
        """Token ids of the prompt; empty before the first output."""
        return [] if self.request is None else self.request.prompt_ids

    @property
    def num_cached_tokens(self) -> int:
        """Tokens of the prompt that were in the prefix cache."""
        return 0 if self.request is None else self.request.num_cached

    @property
    def knows_prompt(self) -> bool:
        """Whether the prompt has been read, so that its outputs are complete."""
        return self.num_tokens > 0 or self.finish_reason is not None

    @property
    def has_news(self) -> bool:
        """Whether something has come since the last response."""
        return bool(self.text or self.token_ids or self.ends_here)

    def add(self, delta: Delta) -> None:
        """Add the new output of this sample."""
        if delta.text:
            self.text.append(delta.text)
        self.token_ids += delta.token_ids
        if delta.logprobs:
            self.logprobs += zip(delta.token_ids, delta.logprobs, strict=True)
            self.cumulative_logprob += sum(entry.chosen for entry in delta.logprobs)
        self.num_tokens = delta.num_output
        self.request = delta.request
        self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason
        self.ends_here = delta.finish_reason is not None
        self.embedding = delta.embedding

    def clear(self) -> None:
        """Forget the output that was sent. The totals stay."""
        self.text.clear()
        self.logprobs.clear()
        self.token_ids.clear()
        self.ends_here = False


def text_within(decode: Callable[[Sequence[int]], str], token: int) -> str:
    """Return the text that a token adds to a text. Alone, it may lack the space before it: see SentencePiece."""
    alone, twice = decode([token]), decode([token, token])
    return twice.removeprefix(alone)


class ResponseFormat:
    """Makes response tensors. All requests of a model share one instance.

    Args:
        decode: returns the text of tokens, special ones included.
        block_size: tokens per block of the KV cache.
        batched: whether the model's config has a batch dimension. Every tensor then has it as its first dimension.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], *, block_size: int, batched: bool) -> None:
        self._decode = decode
        self._block_size = block_size
        self._token_text = functools.lru_cache(_KNOWN_TOKENS)(functools.partial(text_within, decode))
        self._batched = batched

    def response(
        self, samples: Sequence[Sample], outputs: OutputOptions, *, first: bool, final: bool, with_prompt: bool = False
    ) -> Any:
        """Make a response. Each output has one element per sample.

        `first`, `final`: this is the first or the last response with these samples. `with_prompt`: add what the request
        asks to know about its prompt.
        """
        tensors = self._tensors(samples, outputs, first=first, final=final)
        if with_prompt:
            tensors += self._of_prompt(samples[0], outputs)
        return pb_utils.InferenceResponse(output_tensors=tensors)

    def sends_apart(self, request: Any) -> bool:
        """Whether each sample of a Triton request gets responses of its own."""
        return False

    def _tensors(self, samples: Sequence[Sample], outputs: OutputOptions, *, first: bool, final: bool) -> list[Any]:
        tensors = [self._texts("text_output", [self._text(sample, outputs) for sample in samples])]
        ends_sample = any(sample.ends_here for sample in samples)
        if outputs.finish_reason is True or (outputs.finish_reason and ends_sample):
            # As in vllm_backend, the value is "None" until the sample ends.
            tensors.append(self._texts("finish_reason", [str(sample.finish_reason) for sample in samples]))
        if outputs.stop_reason and ends_sample:
            tensors.append(self._texts("stop_reason", [json.dumps(sample.stop_reason) for sample in samples]))
        if outputs.cumulative_logprob:
            tensors.append(self._numbers("cumulative_logprob", [s.cumulative_logprob for s in samples], np.float32))
        if outputs.logprobs:
            entries = [self._logprobs(sample) if outputs.has_logprobs else "null" for sample in samples]
            tensors.append(self._texts("logprobs", entries))
        if outputs.log_probs:
            tensors += self._log_probs(samples)
        if outputs.num_input_tokens:
            tensors.append(self._numbers("num_input_tokens", [len(samples[0].prompt_ids)], np.uint32))
        if outputs.num_output_tokens:
            tensors.append(self._numbers("num_output_tokens", [len(s.token_ids) for s in samples], np.uint32))
        if outputs.token_ids:
            tensors.append(self._tensor("token_ids", padded([s.token_ids for s in samples], np.int32, -1)))
        if outputs.usage and (first or final):
            counts = [len(samples[0].prompt_ids), sum(sample.num_tokens for sample in samples)]
            tensors.append(self._numbers("usage", counts, np.uint32))
        if outputs.num_cached_tokens and (first or final):
            tensors.append(self._numbers("num_cached_tokens", [samples[0].num_cached_tokens], np.uint32))
        if outputs.perf_metrics and final:
            found = perf_metrics([s.request for s in samples if s.request is not None], self._block_size)
            tensors += [self._tensor(name, values) for name, values in found.items()]
        return tensors

    def _log_probs(self, samples: Sequence[Sample]) -> list[Any]:
        chosen = [[entry.chosen for _, entry in sample.logprobs] for sample in samples]
        return [
            self._numbers("cum_log_probs", [s.cumulative_logprob for s in samples], np.float32),
            self._tensor("output_log_probs", padded(chosen, np.float32, 0)),
        ]

    def _text(self, sample: Sample, outputs: OutputOptions) -> str:
        if sample.embedding is None or outputs.embedding:
            return "".join(sample.text)
        # Nine digits tell every float32 from its neighbours.
        return json.dumps([float(f"{number:.9g}") for number in sample.embedding])

    def _of_prompt(self, sample: Sample, outputs: OutputOptions) -> list[Any]:
        tensors = []
        if outputs.prompt_logprobs:
            scores = "null" if sample.scores is None else f"[{', '.join(('null', *sample.scores))}]"
            tensors.append(self._texts("prompt_logprobs", [scores]))
        if outputs.prompt:
            ids = sample.prompt_ids
            prompt: dict[str, Any] = {"token_ids": ids}
            if outputs.prompt is True:
                tokens = [self._decode(ids[:1]), *map(self._token_text, ids[1:])]
                prompt |= {"text": self._decode(ids), "tokens": tokens}
            tensors.append(self._texts("prompt", [json.dumps(prompt)]))
        if outputs.kv_transfer_params:
            offer = None if sample.request is None else sample.request.kv_transfer_params
            tensors.append(self._texts("kv_transfer_params", [json.dumps(offer and offer.as_dict())]))
        if outputs.embedding and sample.embedding is not None:
            tensors.append(self._numbers("embedding", sample.embedding, np.float32))
        return tensors

    def add_scores(self, sample: Sample, delta: Delta) -> None:
        """Add the log-probabilities of further prompt tokens to a sample.

        They become JSON here, as they come: for a long prompt at once, that would hold up all other requests.
        """
        if sample.scores is None or not delta.prompt_logprobs:
            return
        following = delta.request.prompt_ids[1 + len(sample.scores) :]
        sample.scores += [
            json.dumps(self._entry(token, entry))
            for token, entry in zip(following, delta.prompt_logprobs, strict=False)
        ]

    def text(self, text: str) -> Any:
        """Make a response with one text."""
        return pb_utils.InferenceResponse(output_tensors=[self._texts("text_output", [text])])

    def _texts(self, name: str, texts: Sequence[str]) -> Any:
        return self._tensor(name, np.array([text.encode() for text in texts], dtype=np.object_))

    def _numbers(self, name: str, numbers: Sequence[float] | NDArray[np.float32], dtype: Any) -> Any:
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
        ranked |= {other: (rank, value) for other, (value, rank) in entry.others.items()}
        ranked[token] = (entry.rank, entry.chosen)
        return {
            str(which): {"logprob": max(value, _LOWEST), "rank": rank, "decoded_token": self._token_text(which)}
            for which, (rank, value) in ranked.items()
        }


def padded(rows: Sequence[Sequence[float]], dtype: Any, filler: int) -> Any:
    """Shape: [samples, maximum number of new tokens, but at least 1]."""
    padded = np.full((len(rows), max(1, *map(len, rows))), filler, dtype=dtype)
    for into, row in zip(padded, rows, strict=True):
        into[: len(row)] = row
    return padded
