"""Where one output stands in its grammar."""

from collections import deque
from collections.abc import Callable

from llguidance import LLMatcher


class GrammarState:
    """Follows the tokens of one output.

    Often the grammar leaves no choice: after `{"name` comes `": "`. Such forced tokens need no sampling.
    """

    def __init__(self, matcher: LLMatcher, fresh_matcher: Callable[[], LLMatcher], compile_seconds: float) -> None:
        """`matcher` may share parts with others. `fresh_matcher` returns one that does not."""
        self.matcher = matcher
        """Gives the mask of the token after those of `forced`."""
        self.compile_seconds = compile_seconds
        """How long the grammar took to compile, for this output or an earlier one."""
        self.mask_seconds = 0.0
        """Time spent on the masks of this output. Of masks that are made together, each has the same share."""
        self._fresh_matcher: Callable[[], LLMatcher] | None = fresh_matcher
        self._seen: list[int] = []
        """The tokens that the matcher has consumed: those of the output, and then those of `forced`."""
        self.forced: deque[int] = deque()
        """The next tokens of the output, where there is no choice."""
        self._follow()

    @property
    def ended(self) -> bool:
        """Whether the output is complete, and nothing can follow."""
        return not self.forced and self.matcher.is_stopped() and not self.matcher.is_error()

    @property
    def error(self) -> str | None:
        """Why no token can follow although the output is not complete."""
        return str(self.matcher.get_error()) if self.matcher.is_error() else None

    def accept(self, token_id: int) -> None:
        """Record the next token of the output."""
        if self.forced:
            self.forced.popleft()
            return
        self.matcher.consume_token(token_id)
        self._seen.append(token_id)
        self._follow()

    def num_legal(self, draft: list[int]) -> int:
        """Return how many of the drafted tokens, from the first one on, the grammar allows."""
        return int(self.matcher.validate_tokens(draft))

    def recover(self) -> bool:
        """After an error, try once more with a matcher that shares nothing. Return whether that works.

        The matchers of a grammar share its lexer, so one output may use up the states of all.
        """
        if self._fresh_matcher is None:
            return False
        self.matcher, self._fresh_matcher = self._fresh_matcher(), None
        return bool(self.matcher.consume_tokens(self._seen))

    def _follow(self) -> None:
        while not self.matcher.is_stopped() and (tokens := self.matcher.compute_ff_tokens()):
            if not self.matcher.consume_tokens(tokens):
                break
            self._seen += tokens
            self.forced += tokens
        if self.matcher.is_error():
            self.recover()
