"""Finds constraints that compile at once, but cost more and more with each token.

The states of such a constraint are built when the output gets there. For `(.*a.{500}b)+`, for example, their number
grows exponentially. Sooner or later the limits end the request. It is better to refuse it at the door.
"""

from random import Random

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

# For an ordinary constraint all of them take a millisecond, and half a second at worst.
_OUTPUTS, _TOKENS = 2, 32


def error_soon(start: LLMatcher, tokenizer: LLTokenizer) -> str | None:
    """Follow a few random outputs from their start on. Return the error that one of them meets, or None.

    The outputs are the same for equal constraints.
    """
    for seed in range(_OUTPUTS):
        matcher = start.deep_copy()
        _follow(matcher, tokenizer, Random(seed))
        if matcher.is_error():
            return str(matcher.get_error()).partition("\n")[0]
    return None


def _follow(matcher: LLMatcher, tokenizer: LLTokenizer, draws: Random) -> None:
    """Consume random tokens, but no end of the output while there is another choice."""
    bits = allocate_token_bitmask(1, tokenizer.vocab_size)
    words = bits[0].view(np.uint32)
    for _ in range(_TOKENS):
        if matcher.is_stopped():
            return
        fill_next_token_bitmask(matcher, bits)
        for end in tokenizer.eos_tokens:
            words[end // 32] &= ~np.uint32(1 << end % 32)
        found = words.nonzero()[0]
        if not len(found):
            return
        index = int(draws.choice(found))
        allowed = int(words[index])
        matcher.consume_token(32 * index + draws.choice([bit for bit in range(32) if allowed >> bit & 1]))
