"""Converts the server's log-probabilities into OpenAI's two formats."""

from collections.abc import Iterator, Sequence

from inflight_client import PromptTokens, Token, TokenLogprobs
from inflight_gateway.responses import ChatLogprobs, ChosenToken, CompletionLogprobs, LikelyToken, PromptLogprob

# The text of a token that is not a whole character.
_NO_CHARACTER = "\N{REPLACEMENT CHARACTER}"
# OpenAI's value for an impossible token; JSON has no infinity.
_LOWEST = -9999.0


def echo_logprobs(
    text: str,
    prompt: PromptTokens,
    scores: Sequence[TokenLogprobs | None],
    answer: Sequence[TokenLogprobs],
    *,
    by_ids: bool = False,
) -> CompletionLogprobs:
    """Return the log-probabilities of a prompt and its answer in the format of completions.

    The first token of the prompt has none. `text`: the prompt as it is echoed. Tokens that the tokenizer put before it,
    such as <s>, begin where it begins. `by_ids`: see `completion_logprobs`.
    """
    hidden = len(prompt.text) - len(text) if prompt.text.endswith(text) else 0
    entries = [entry for entry in scores if entry is not None]
    rest = completion_logprobs([*entries, *answer], len(prompt.tokens[0]) - hidden, by_ids=by_ids)
    first = _by_id(prompt.token_ids[0]) if by_ids else prompt.tokens[0]
    return {
        "tokens": [first, *rest["tokens"]],
        "token_logprobs": [None, *rest["token_logprobs"]],
        "top_logprobs": [None, *rest["top_logprobs"]],
        "text_offset": [0, *rest["text_offset"]],
    }


def completion_logprobs(entries: Sequence[TokenLogprobs], offset: int, *, by_ids: bool = False) -> CompletionLogprobs:
    """Return log-probabilities in the format of completions. The first token begins after `offset` characters.

    An offset below 0 means that the text does not show so many characters of the first tokens. `by_ids`: tokens are
    named by their ids and not by their texts, as several tokens may have the same text.
    """
    offsets = []
    for entry in entries:
        offsets.append(max(0, offset))
        offset += len(entry.chosen.text)
    return {
        "tokens": [_name(entry.chosen, by_ids) for entry in entries],
        "token_logprobs": [_logprob(entry.chosen) for entry in entries],
        # If several tokens have the same text, the likeliest one stays.
        "top_logprobs": [
            {_name(token, by_ids): _logprob(token) for token in reversed(entry.likeliest)} for entry in entries
        ],
        "text_offset": offsets,
    }


def length_of(entries: Sequence[TokenLogprobs]) -> int:
    """Return the number of characters of the chosen tokens, as `text_offset` counts them."""
    return sum(len(entry.chosen.text) for entry in entries)


def chat_logprobs(entries: Sequence[TokenLogprobs], count: int, *, by_ids: bool = False) -> ChatLogprobs:
    """Return the log-probabilities in the format of chats, with the `count` likeliest tokens at each position.

    `by_ids`: see `completion_logprobs`.
    """
    return {"content": [_chosen(entry, count, by_ids) for entry in entries]}


def prompt_logprobs(entries: Sequence[TokenLogprobs | None]) -> Iterator[dict[str, PromptLogprob] | None]:
    """Yield the log-probabilities of a prompt in vLLM's format: tokens by their ids, that of the prompt first."""
    for entry in entries:
        yield None if entry is None else {str(token.id): _ranked(token) for token in (entry.chosen, *entry.likeliest)}


def response_logprobs(entries: Sequence[TokenLogprobs], count: int) -> list[ChosenToken]:
    """Return what `chat_logprobs` does in the format of responses, where bytes are never null."""
    return [
        {**_listed(chosen), "top_logprobs": [_listed(token) for token in chosen["top_logprobs"]]}
        for chosen in chat_logprobs(entries, count)["content"]
    ]


def parts_of(text: str, tokens: Sequence[ChosenToken]) -> list[tuple[str, Sequence[ChosenToken]]]:
    """Divide the text that came with tokens, such as those of a draft, into that of each token.

    What a token does not begin, such as the end of a character, belongs to the last one.
    """
    parts: list[tuple[str, Sequence[ChosenToken]]] = []
    for token in tokens[:-1]:
        part = token["token"] if text.startswith(token["token"]) else ""
        parts.append((part, [token]))
        text = text.removeprefix(part)
    return [*parts, (text, tokens[-1:])]


def _listed(token: LikelyToken) -> LikelyToken:
    return {"token": token["token"], "logprob": token["logprob"], "bytes": token["bytes"] or []}


def _chosen(entry: TokenLogprobs, count: int, by_ids: bool) -> ChosenToken:
    # Cut the list: if the chosen token is not among the `count` likeliest, it follows them.
    likeliest = [_likely(token, by_ids) for token in entry.likeliest[:count]]
    return {**_likely(entry.chosen, by_ids), "top_logprobs": likeliest}


def _likely(token: Token, by_ids: bool) -> LikelyToken:
    encoded = None if _NO_CHARACTER in token.text else list(token.text.encode())
    return {"token": _name(token, by_ids), "logprob": _logprob(token), "bytes": encoded}


def _ranked(token: Token) -> PromptLogprob:
    return {"logprob": _logprob(token), "rank": token.rank, "decoded_token": token.text}


def _name(token: Token, by_ids: bool) -> str:
    return _by_id(token.id) if by_ids else token.text


def _by_id(token_id: int) -> str:
    return f"token_id:{token_id}"


def _logprob(token: Token) -> float:
    return max(token.logprob, _LOWEST)
