"""Finds constraints that compile at once, but cost more and more with each token.

The states of such a constraint are built when the output gets there. For `(.*a.{500}b)+`, for example, their number
grows exponentially. Sooner or later the limits end the request. It is better to refuse it at the door.
"""

from random import Random

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
from numpy.typing import NDArray

# An ordinary constraint has an output followed in two milliseconds, and the worst in a tenth of a second.
_OUTPUTS, _TOKENS = 4, 32


def error_soon(start: LLMatcher, strict: LLMatcher | None, tokenizer: LLTokenizer) -> str | None:
    """Follow a few random outputs from their start on. Return the error that one of them meets, or None.

    Most constraints are far from every limit, and then a single output is enough: that of `strict`, a matcher with
    lower limits, if it is given. The outputs are the same for equal constraints.
    """
    if strict is not None:
        _follow(strict, tokenizer, Random(0))
        if not strict.is_error():
            return None
    for seed in range(_OUTPUTS):
        # Copies share the states of the lexer, so that these add up.
        matcher = start.deep_copy()
        _follow(matcher, tokenizer, Random(seed))
        if matcher.is_error():
            return str(matcher.get_error()).partition("\n")[0]
    return None


def _follow(matcher: LLMatcher, tokenizer: LLTokenizer, draws: Random) -> None:
    """Consume random tokens, but no end of the output while there is another choice.

    Forced text is consumed at once, as in an output: a mask where much text is forced takes long.
    """
    bits = allocate_token_bitmask(1, tokenizer.vocab_size)
    words, no_end = bits[0].view(np.uint32), _all_but(tokenizer.eos_tokens, bits.shape[1])
    for _ in range(_TOKENS):
        if (forced := matcher.compute_ff_tokens()) and not matcher.consume_tokens(forced):
            return
        if matcher.is_stopped():
            return
        fill_next_token_bitmask(matcher, bits)
        words &= no_end
        found = words.nonzero()[0]
        if not len(found):
            return
        index = int(draws.choice(found))
        allowed = int(words[index])
        matcher.consume_token(32 * index + draws.choice([bit for bit in range(32) if allowed >> bit & 1]))


def _all_but(token_ids: list[int], num_words: int) -> NDArray[np.uint32]:
    words = np.full(num_words, 0xFFFFFFFF, np.uint32)
    for token in token_ids:
        words[token // 32] &= ~np.uint32(1 << token % 32)
    return words
