"""How many tokens and sequences a step may have: as configured or tuned, and as the device's memory allows."""

# Steps. They take seconds, and minutes.
_FIRST_WAIT = 100
_LONGEST_WAIT = 10_000


class StepLimit:
    """The maximum numbers of tokens and sequences in a step.

    After a step for which the device had too little memory, the limit is half of that step's tokens. It doubles after
    some steps that ran, up to its first value, as the memory may have been short only for a moment. If the limit grew
    in vain, the number of steps before the next growth doubles (exponential backoff), so that a lasting lack costs few
    steps.
    """

    def __init__(self, max_tokens: int, max_sequences: int) -> None:
        self.max_tokens = max_tokens
        """What the settings allow. The tuner lowers it and `max_sequences`, and raises them again."""
        self.max_sequences = max_sequences
        self._fits = self._most = max_tokens
        """Tokens that the memory allows."""
        self._wait = _FIRST_WAIT
        self._good_steps = 0
        self._has_grown = False

    @property
    def tokens(self) -> int:
        """Maximum number of tokens in the next step."""
        return min(self.max_tokens, self._fits)

    @property
    def most_tokens(self) -> int:
        """Maximum number of tokens in a step with an image that cannot be cut, whatever the tuner has set.

        An image that is alone in its step may have more: there is no smaller step for it.
        """
        return self._fits

    @property
    def sequences(self) -> int:
        """Maximum number of sequences that run. If more ran than the step may have tokens, it could not advance all."""
        return min(self.max_sequences, self.tokens)

    def step_ran(self) -> None:
        """Count a step that had enough memory."""
        if self._fits < self._most:
            self._good_steps += 1
            if self._good_steps == self._wait:
                self._good_steps = 0
                self._has_grown = True
                self._fits = min(2 * self._fits, self._most)

    def shrink(self, tokens: int) -> None:
        """Halve the limit after a step of `tokens` tokens that lacked memory."""
        if self._has_grown:
            self._wait = min(2 * self._wait, _LONGEST_WAIT)
            self._has_grown = False
        self._fits = tokens // 2
        self._good_steps = 0
