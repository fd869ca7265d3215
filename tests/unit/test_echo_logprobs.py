"""Each token of an echoed prompt is found in the text at its offset."""

import pytest

from inflight_client import PromptTokens, Token, TokenLogprobs
from inflight_gateway.logprobs import echo_logprobs


def scored(text: str) -> TokenLogprobs:
    token = Token(7, text, -0.5, 1)
    return TokenLogprobs(token, (token,))


@pytest.mark.parametrize(
    ("echoed", "tokens", "offsets"),
    [
        ("one two", ["one", " two"], [0, 3, 7]),
        # The tokenizer adds a token. Where the prompt was given as tokens, the text shows it.
        ("one two", ["<s>", "one", " two"], [0, 0, 3, 7]),
        ("<s>one two", ["<s>", "one", " two"], [0, 3, 6, 10]),
        # It also adds a space to the first word, as that of Llama 2 does.
        ("one two", ["<s>", " one", " two"], [0, 0, 3, 7]),
    ],
)
def test_offsets(echoed: str, tokens: list[str], offsets: list[int]) -> None:
    prompt = PromptTokens("".join(tokens), tuple(range(len(tokens))), tuple(tokens))
    logprobs = echo_logprobs(echoed, prompt, [None, *map(scored, tokens[1:])], [scored(" three")])
    assert logprobs["tokens"] == [*tokens, " three"]
    assert logprobs["text_offset"] == offsets
    assert logprobs["token_logprobs"] == [None, *[-0.5] * len(tokens)]
