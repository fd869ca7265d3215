"""What comes back: pieces of text, or all of it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Token:
    """A token that the model might have chosen, and how likely it was."""

    id: int
    text: str
    logprob: float
    rank: int
    """1 is the likeliest."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """A token that was chosen, and the likeliest ones there, best first."""

    chosen: Token
    likeliest: tuple[Token, ...]


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of an answer as it came: often one token, more when the server sent several at once."""

    text: str
    finish_reason: str | None
    """None until the last chunk, then "stop", "length" or "deadline"."""
    token_ids: tuple[int, ...]
    """New ones, in a stream where they or logprobs were asked for. Text may lag behind, as whole characters and stop
    strings are waited for."""
    logprobs: tuple[TokenLogprobs, ...]
    """One for each new token, where they were asked for."""
    index: int
    """Which of `n` answers it belongs to."""


@dataclass(frozen=True, slots=True)
class Usage:
    """How many tokens a request took."""

    prompt_tokens: int
    completion_tokens: int
    """Of all `n` answers together. Before the end of a stream those that the server has told of: all that have come if
    `return_token_ids` asked for them."""

    @property
    def total_tokens(self) -> int:
        """Both together."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class Timings:
    """What the client's clock says, in seconds since the request was sent, retries and waits for them included."""

    first_token: float
    """When the first response came; with `generate` it is the only one."""
    total: float


@dataclass(frozen=True, slots=True)
class Choice:
    """One whole answer, without its prompt."""

    text: str
    finish_reason: str
    """"stop", "length", or "deadline" where the request had a `deadline_ms`."""
    token_ids: tuple[int, ...]
    """As in `Chunk`; always there from `generate` and `chat`."""
    logprobs: tuple[TokenLogprobs, ...]


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished request: `n` answers, the first of which also stands in fields of its own."""

    choices: tuple[Choice, ...]
    usage: Usage
    timings: Timings

    @property
    def text(self) -> str:
        """The text of the first answer."""
        return self.choices[0].text

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
        """One for each token of the first answer, where they were asked for."""
        return self.choices[0].logprobs


@dataclass(frozen=True, slots=True)
class Reply:
    """One response of the model, in no transport's form any more; lists have an element for each sample."""

    texts: Sequence[str]
    finish_reasons: Sequence[str]
    """Empty while no sample has ended; the model has no null on the wire and says "None"."""
    token_ids: Sequence[Sequence[int]]
    """Padded with -1; empty where none were asked for."""
    logprobs: Sequence[str]
    """JSON, as vllm_backend has it; empty where none were asked for."""
    usage: Usage | None
    """So far; the first response says so, and the last."""


def parse_logprobs(written: str, token_ids: Sequence[int]) -> tuple[TokenLogprobs, ...]:
    """Read the `logprobs` of a sample, a JSON list with an object for each token: {id: {logprob, rank, ...}}."""
    return tuple(
        _token_logprobs(ranked, chosen) for ranked, chosen in zip(json.loads(written) or (), token_ids, strict=False)
    )


def _token_logprobs(ranked: dict[str, dict[str, object]], chosen: int) -> TokenLogprobs:
    def token(key: str) -> Token:
        entry = ranked[key]
        return Token(int(key), str(entry["decoded_token"]), float(str(entry["logprob"])), int(str(entry["rank"])))

    # The chosen one is among the likeliest, or comes besides.
    tokens = sorted(map(token, ranked), key=lambda one: one.rank)
    return TokenLogprobs(token(str(chosen)), tuple(tokens))
