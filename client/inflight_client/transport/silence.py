"""For how long a server says nothing, and what to do about it. Does no I/O."""

from enum import Enum, auto

_TICKS = 16
_PROBES_AT = (4, 10)


class Step(Enum):
    """What to do after a tick."""

    WAIT = auto()
    PROBE = auto()
    """Ask the server whether it lives, and drop the last probe."""
    GIVE_UP = auto()
    """Nothing came, not even an answer to one of two probes."""


class Silence:
    """Counts the ticks since something came from a server: it is probed after a quarter of the time, and once more.

    A tick is a sleep of a sixteenth of the time. A client that stands still, because it is suspended or gets no
    processor, does not count meanwhile. So it has time to read an answer before it takes a server for dead.
    """

    def __init__(self, seconds: float) -> None:
        """`seconds` is the time after which the server is given up."""
        self.tick_seconds = seconds / _TICKS
        self._ticks = 0
        self._heard = False

    def heard(self) -> None:
        """Something came from the server. Any thread may call this, for each token."""
        self._heard = True

    @property
    def is_probed(self) -> bool:
        """Whether a probe has no answer yet."""
        return self._ticks >= _PROBES_AT[0]

    def tick(self) -> Step:
        """Count a tick. One thread does this."""
        if self._heard:
            self._heard, self._ticks = False, 0
            return Step.WAIT
        self._ticks += 1
        if self._ticks == _TICKS:
            self._ticks = 0
            return Step.GIVE_UP
        return Step.PROBE if self._ticks in _PROBES_AT else Step.WAIT
