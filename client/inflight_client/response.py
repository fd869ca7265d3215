"""Answers of a model: chunks of a stream, or the whole completion."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, overload

from inflight_client.schema import AnswerSchema


@dataclass(frozen=True, slots=True)
class Token:
    """A candidate token and its log-probability."""

    id: int
    text: str
    logprob: float
    rank: int
    """1 for the likeliest token."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """A chosen token, and the likeliest tokens at its position, the likeliest first."""

    chosen: Token
    likeliest: tuple[Token, ...]


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of an answer: often one token, more if the server sent several at once."""

    text: str
    finish_reason: str | None
    """None until the last chunk, then "stop", "length" or "deadline"."""
    token_ids: tuple[int, ...]
    """The new tokens. In a stream, empty unless `return_token_ids` or `logprobs` asked for them. The text can lag
    behind the tokens, because the server waits for whole characters and possible stop strings."""
    logprobs: tuple[TokenLogprobs, ...]
    """One element per new token, if `logprobs` asked for them."""
    index: int
    """The index of the answer that the chunk belongs to, from 0 to `n` - 1."""
    stop_reason: str | int | None = None
    """In the last chunk: which text of `stop` or token of `stop_token_ids` ended the answer, if one did."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The number of tokens of a request."""

    prompt_tokens: int
    completion_tokens: int
    """Tokens of all `n` answers together. Before the end of a stream, the number that the client knows. With
    `return_token_ids` that is every token received so far."""
    cached_tokens: int = 0
    """Tokens of the prompt that the server had in its prefix cache."""

    @property
    def total_tokens(self) -> int:
        """Tokens of the prompt and of the answers."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class PerfMetrics:
    """What the server did for one answer. The names are those of TensorRT-LLM's outputs.

    Times are on the server's monotonic clock; 0 where there is nothing to tell.
    """

    acceptance_rate: float
    """The share of the drafted tokens that were right; 0 if none were drafted."""
    total_accepted_draft_tokens: int
    total_draft_tokens: int
    kv_cache_reused_blocks: int
    """Whole blocks of the prompt that were in the prefix cache."""
    arrival_time_ns: int
    first_scheduled_time_ns: int
    first_token_time_ns: int
    last_token_time_ns: int


PERF_OUTPUTS = tuple(entry.name for entry in fields(PerfMetrics))
"""The server's outputs that a `PerfMetrics` is made of."""


@dataclass(frozen=True, slots=True)
class Timings:
    """Times on the client's clock, in seconds since the request was first sent. They include retries."""

    first_token: float
    """Time to the first response. With `generate` that is the only response."""
    total: float
    """Time to the last response."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One whole answer, without its prompt."""

    text: str
    finish_reason: str
    """"stop", "length", or "deadline" where the request had a `deadline_ms`."""
    token_ids: tuple[int, ...]
    """As in `Chunk`; `generate` and `chat` always return them."""
    logprobs: tuple[TokenLogprobs, ...]
    stop_reason: str | int | None = None
    """Which text of `stop` or token of `stop_token_ids` ended it, if one did."""
    schema: AnswerSchema | None = field(default=None, repr=False, compare=False)
    """That of the request."""

    @property
    def parsed(self) -> Any:
        """The text as an object of the request's `schema`; None if it had none.

        Raises:
            ValueError: the answer was cut off, or a class has conditions that its JSON schema does not express.
        """
        if self.schema is None:
            return None
        if self.finish_reason != "stop":
            raise ValueError(f"the answer is not complete: its finish reason is {self.finish_reason}")
        return self.schema.parse(self.text)


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """A prompt as the model read it, with its special tokens and, for a chat, its template."""

    text: str
    token_ids: tuple[int, ...]
    tokens: tuple[str, ...]
    """The text of each token."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished request with its `n` answers. The properties below read the first answer."""

    choices: tuple[Choice, ...]
    usage: Usage
    timings: Timings
    prompt: PromptTokens | None = None
    """Present if `return_prompt` or `prompt_logprobs` asked for it."""
    prompt_logprobs: Sequence[TokenLogprobs | None] = ()
    """One element per token of the prompt, if `prompt_logprobs` asked for them; None for the first token."""
    perf: tuple[PerfMetrics, ...] = ()
    """One element per answer, if `return_perf_metrics` asked for them."""

    @property
    def text(self) -> str:
        """The text of the first answer."""
        return self.choices[0].text

    @property
    def parsed(self) -> Any:
        """The first answer as an object of the request's `schema`. Raises what `Choice.parsed` raises."""
        return self.choices[0].parsed

    @property
    def finish_reason(self) -> str:
        """Why the first answer ended."""
        return self.choices[0].finish_reason

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The tokens of the first answer."""
        return self.choices[0].token_ids

    @property
    def logprobs(self) -> tuple[TokenLogprobs, ...]:
        """One element per token of the first answer, if `logprobs` asked for them."""
        return self.choices[0].logprobs


@dataclass(frozen=True, slots=True)
class Embedding:
    """The embedding of one prompt."""

    values: tuple[float, ...]
    usage: Usage
    timings: Timings


@dataclass(frozen=True, slots=True)
class Reply:
    """One response of the model, independent of the transport. Its lists have one element per sample."""

    texts: Sequence[str]
    finish_reasons: Sequence[str]
    """Empty while no sample has ended. A sample that continues has "None", because tensors cannot hold null."""
    token_ids: Sequence[Sequence[int]]
    """Padded with -1; empty unless the request asked for them."""
    logprobs: Sequence[str]
    """JSON in vllm_backend's format; empty unless the request asked for them."""
    usage: Usage | None
    """The tokens so far; only in the first and the last response."""
    stop_reasons: Sequence[str] = ()
    """JSON; empty while no sample has ended."""
    prompt: str = ""
    """JSON; in one response of a request that asked for it, and so are the next two."""
    prompt_logprobs: str = ""
    embedding: Sequence[float] = ()
    kv_transfer_params: str = ""
    """JSON; in one response of a request that asked another server to go on with its prompt."""
    perf: Sequence[PerfMetrics] = ()
    """Only in the last response of a request that asked for it."""


def parse_logprobs(written: str, token_ids: Sequence[int]) -> tuple[TokenLogprobs, ...]:
    """Read the `logprobs` of a sample: a JSON list with one object per token, {id: {logprob, rank, ...}}."""
    return tuple(
        _token_logprobs(ranked, chosen) for ranked, chosen in zip(json.loads(written) or (), token_ids, strict=False)
    )


def parse_prompt(written: str) -> PromptTokens:
    """Read a prompt from a JSON object with its `token_ids` and, if they were asked for, its `text` and `tokens`."""
    prompt = json.loads(written)
    return PromptTokens(prompt.get("text", ""), tuple(prompt["token_ids"]), tuple(prompt.get("tokens", ())))


_DECODER = json.JSONDecoder()
_BETWEEN_ELEMENTS = re.compile(r"[\s,]*")


@dataclass(frozen=True)
class PromptLogprobs(Sequence[TokenLogprobs | None]):
    """The log-probabilities of a prompt: like those of a sample, but None for the first token.

    As objects, those of a long prompt take several times the memory of their JSON. So this keeps the JSON, and reads it
    while somebody iterates; all of it only where an element is asked for by its index.
    """

    written: str
    """A JSON list."""
    token_ids: tuple[int, ...]
    """Those of the prompt."""

    def __len__(self) -> int:
        return len(self.token_ids)

    def __iter__(self) -> Iterator[TokenLogprobs | None]:
        for ranked, token in zip(_elements(self.written), self.token_ids, strict=False):
            yield None if ranked is None else _token_logprobs(ranked, token)

    @overload
    def __getitem__(self, index: int) -> TokenLogprobs | None: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[TokenLogprobs | None, ...]: ...

    def __getitem__(self, index: int | slice) -> TokenLogprobs | tuple[TokenLogprobs | None, ...] | None:
        return self._all[index]

    @cached_property
    def _all(self) -> tuple[TokenLogprobs | None, ...]:
        return tuple(self)


def _elements(written: str) -> Iterator[Any]:
    """Read the elements of a JSON list one after the other."""
    at = 1
    while written[at] != "]":
        element, end = _DECODER.raw_decode(written, at)
        yield element
        between = _BETWEEN_ELEMENTS.match(written, end)
        assert between is not None  # It may be empty.
        at = between.end()


def _token_logprobs(ranked: dict[str, dict[str, Any]], chosen: int) -> TokenLogprobs:
    # The object holds the likeliest tokens, and the chosen token in any case.
    tokens = {
        int(key): Token(int(key), entry["decoded_token"], float(entry["logprob"]), entry["rank"])
        for key, entry in ranked.items()
    }
    return TokenLogprobs(tokens[chosen], tuple(sorted(tokens.values(), key=lambda one: one.rank)))
