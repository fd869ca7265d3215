"""Converts the server's log-probabilities into OpenAI's two formats."""

from collections.abc import Sequence

from inflight_client import PromptTokens, Token, TokenLogprobs
from inflight_gateway.responses import ChatLogprobs, ChosenToken, CompletionLogprobs, LikelyToken

# The text of a token that is not a whole character.
_NO_CHARACTER = "\N{REPLACEMENT CHARACTER}"
# OpenAI's value for an impossible token; JSON has no infinity.
_LOWEST = -9999.0


def echoed_logprobs(prompt: PromptTokens, scores: Sequence[TokenLogprobs | None]) -> CompletionLogprobs:
    """Return the log-probabilities of a prompt in the format of completions. The first token has none."""
    entries = [entry for entry in scores if entry is not None]
    rest = completion_logprobs(entries, len(prompt.tokens[0]))
    return {
        "tokens": [prompt.tokens[0], *rest["tokens"]],
        "token_logprobs": [None, *rest["token_logprobs"]],
        "top_logprobs": [None, *rest["top_logprobs"]],
        "text_offset": [0, *rest["text_offset"]],
    }


def joined_logprobs(first: CompletionLogprobs, then: CompletionLogprobs) -> CompletionLogprobs:
    """Return the log-probabilities of two texts, of which the second follows the first."""
    return {
        "tokens": first["tokens"] + then["tokens"],
        "token_logprobs": first["token_logprobs"] + then["token_logprobs"],
        "top_logprobs": first["top_logprobs"] + then["top_logprobs"],
        "text_offset": first["text_offset"] + then["text_offset"],
    }


def completion_logprobs(entries: Sequence[TokenLogprobs], offset: int) -> CompletionLogprobs:
    """Return log-probabilities in the format of completions. The first token begins after `offset` characters."""
    offsets = []
    for entry in entries:
        offsets.append(offset)
        offset += len(entry.chosen.text)
    return {
        "tokens": [entry.chosen.text for entry in entries],
        "token_logprobs": [_logprob(entry.chosen) for entry in entries],
        # If several tokens have the same text, the likeliest one stays.
        "top_logprobs": [{token.text: _logprob(token) for token in reversed(entry.likeliest)} for entry in entries],
        "text_offset": offsets,
    }


def length_of(entries: Sequence[TokenLogprobs]) -> int:
    """Return the number of characters of the chosen tokens, as `text_offset` counts them."""
    return sum(len(entry.chosen.text) for entry in entries)


def chat_logprobs(entries: Sequence[TokenLogprobs], count: int) -> ChatLogprobs:
    """Return the log-probabilities in the format of chats, with the `count` likeliest tokens at each position."""
    return {"content": [_chosen(entry, count) for entry in entries]}


def _chosen(entry: TokenLogprobs, count: int) -> ChosenToken:
    # Cut the list: if the chosen token is not among the `count` likeliest, it follows them.
    return {**_likely(entry.chosen), "top_logprobs": [_likely(token) for token in entry.likeliest[:count]]}


def _likely(token: Token) -> LikelyToken:
    whole = _NO_CHARACTER not in token.text
    return {"token": token.text, "logprob": _logprob(token), "bytes": list(token.text.encode()) if whole else None}


def _logprob(token: Token) -> float:
    return max(token.logprob, _LOWEST)
