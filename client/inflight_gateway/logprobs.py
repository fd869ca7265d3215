"""The server's log-probabilities in OpenAI's two forms."""

from collections.abc import Sequence

from inflight_client import Token, TokenLogprobs
from inflight_gateway.responses import ChatLogprobs, ChosenToken, CompletionLogprobs, LikelyToken

# A token that is no whole character is told of as this.
_NO_CHARACTER = "\N{REPLACEMENT CHARACTER}"
# OpenAI's word for "impossible"; JSON has no infinity.
_LOWEST = -9999.0


def completion_logprobs(entries: Sequence[TokenLogprobs], offset: int) -> CompletionLogprobs:
    """The form of completions, for tokens before which `offset` characters came."""
    offsets = []
    for entry in entries:
        offsets.append(offset)
        offset += len(entry.chosen.text)
    return {
        "tokens": [entry.chosen.text for entry in entries],
        "token_logprobs": [_logprob(entry.chosen) for entry in entries],
        # Of tokens with the same text the likeliest stays.
        "top_logprobs": [{token.text: _logprob(token) for token in reversed(entry.likeliest)} for entry in entries],
        "text_offset": offsets,
    }


def length_of(entries: Sequence[TokenLogprobs]) -> int:
    """The characters of the chosen tokens, by which `text_offset` counts."""
    return sum(len(entry.chosen.text) for entry in entries)


def chat_logprobs(entries: Sequence[TokenLogprobs], count: int) -> ChatLogprobs:
    """The form of chats, with the `count` likeliest tokens in each place."""
    return {"content": [_chosen(entry, count) for entry in entries]}


def _chosen(entry: TokenLogprobs, count: int) -> ChosenToken:
    # The chosen one may come last, besides the likeliest.
    return {**_likely(entry.chosen), "top_logprobs": [_likely(token) for token in entry.likeliest[:count]]}


def _likely(token: Token) -> LikelyToken:
    whole = _NO_CHARACTER not in token.text
    return {"token": token.text, "logprob": _logprob(token), "bytes": list(token.text.encode()) if whole else None}


def _logprob(token: Token) -> float:
    return max(token.logprob, _LOWEST)
