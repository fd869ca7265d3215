"""How many tokens a step may have, on a device that may run out of memory."""

# Steps. They take seconds, and minutes.
_FIRST_WAIT = 100
_LONGEST_WAIT = 10_000


class StepLimit:
    """The maximum number of tokens in a step.

    After a step for which the device had too little memory, the limit is half of that step. It doubles after some steps
    that ran, up to its first value, as the memory may have been short only for a moment. If the limit grew in vain, the
    number of steps before the next growth doubles (exponential backoff), so that a lasting lack costs few steps.
    """

    def __init__(self, tokens: int) -> None:
        self.tokens = self._most = tokens
        self._wait = _FIRST_WAIT
        self._good_steps = 0
        self._has_grown = False

    def step_ran(self) -> None:
        """Count a step that had enough memory."""
        if self.tokens < self._most:
            self._good_steps += 1
            if self._good_steps == self._wait:
                self._good_steps = 0
                self._has_grown = True
                self.tokens = min(2 * self.tokens, self._most)

    def shrink(self, tokens: int) -> None:
        """Halve the limit after a step of `tokens` tokens that lacked memory."""
        if self._has_grown:
            self._wait = min(2 * self._wait, _LONGEST_WAIT)
            self._has_grown = False
        self.tokens = tokens // 2
        self._good_steps = 0
