"""A compiled constraint. Requests with equal constraints share it."""

import time

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from inflight.errors import InvalidRequest
from inflight.guided_decoding.foresight import error_soon
from inflight.guided_decoding.grammar_state import GrammarState
from inflight.guided_decoding.structural_tag import error_of_part
from inflight.structured_outputs import STRUCTURAL_TAG

# A text of more characters takes so long to compile that this is not done twice.
_LARGE = 8192

# Reasons of llguidance that speak of its options and parts, and what they mean.
_WORDINGS = {
    ". Enable 'coerce_one_of' option to approximate oneOf with anyOf": " where more than one part may match",
    "NoExtensionBias\n<non-verbose/>": "no finite text matches it",
}


class Grammar:
    """A constraint that llguidance has compiled for one model's tokens.

    Raises:
        InvalidRequest: llguidance cannot enforce it, or it is too complex. The message says which part.
    """

    def __init__(self, tokenizer: LLTokenizer, name: str, text: str) -> None:
        """`name` is that of the request's field, and `text` llguidance's serialized form."""
        begun = time.perf_counter()
        self._tokenizer, self._text = tokenizer, text
        self._start = self._fresh_matcher()
        # Much of the lexer is built when it is first used, which takes milliseconds. The copies share it.
        self._start.compute_ff_tokens()
        if not self._start.is_stopped():
            fill_next_token_bitmask(self._start, allocate_token_bitmask(1, tokenizer.vocab_size))
        if self._start.is_error():
            error = str(self._start.get_error())
            for theirs, ours in _WORDINGS.items():
                error = error.replace(theirs, ours)
            reason = error_of_part(error, text) if name == STRUCTURAL_TAG else error
            raise InvalidRequest(f"{name} cannot be enforced: {reason}")
        strict = self._fresh_matcher(strictness=4) if len(text) <= _LARGE else None
        if (later := error_soon(self._start, strict, tokenizer)) is not None:
            raise InvalidRequest(f"{name} is too complex: after a few tokens it exceeds a limit: {later}")
        self._seconds = time.perf_counter() - begun

    def begin(self) -> GrammarState:
        """Return the state of a new output."""
        return GrammarState(self._start.deep_copy(), self._fresh_matcher, self._seconds)

    def _fresh_matcher(self, strictness: int = 1) -> LLMatcher:
        """Return a matcher at the start of the output that shares nothing with others."""
        return LLMatcher(self._tokenizer, self._text, log_level=0, limits=_limits(strictness))


def _limits(strictness: int) -> LLParserLimits:
    """Return bounds on what one grammar may cost, because grammars come from clients.

    With a `strictness` of 4, an output may cost a quarter.

    Compiling takes less than half a second, and a mask less than some milliseconds. By llguidance's documentation, a
    millisecond is 50 thousand steps for building a lexer, 14 thousand of the lexer and 20 thousand of the parser.
    """
    return LLParserLimits(
        initial_lexer_fuel=500_000,
        step_lexer_fuel=50_000 // strictness,
        step_max_items=20_000 // strictness,
        # A state takes one or two kilobytes.
        max_lexer_states=20_000 // strictness,
        max_grammar_size=100_000,
        verbose_errors=False,
    )
