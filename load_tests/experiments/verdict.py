"""What the results say about a part of a claim."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from load_tests.experiments.estimate import Estimate


class Outcome(StrEnum):
    """A part of a claim is only decided if a whole confidence interval says so."""

    CONFIRMED = "confirmed"
    REFUTED = "not confirmed"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Verdict:
    """A part of the claim, with the numbers that decide it."""

    text: str
    outcome: Outcome

    @classmethod
    def above(cls, text: str, value: Estimate, bound: float) -> "Verdict":
        """Confirmed if all of the interval is above the bound, refuted if none of it is."""
        return cls(text, _outcome(value.low > bound, value.high < bound))

    @classmethod
    def below(cls, text: str, value: Estimate, bound: float) -> "Verdict":
        """Confirmed if all of the interval is below the bound, refuted if none of it is."""
        return cls(text, _outcome(value.high < bound, value.low > bound))

    @classmethod
    def within(cls, text: str, value: Estimate, low: float, high: float) -> "Verdict":
        """Confirmed if all of the interval is within the bounds, refuted if none of it is."""
        return cls(text, _outcome(low <= value.low and value.high <= high, value.high < low or value.low > high))

    @classmethod
    def always(cls, text: str, holds: Sequence[bool]) -> "Verdict":
        """For what leaves nothing to chance: confirmed if it holds with every seed, and refuted otherwise."""
        return cls(text, _outcome(all(holds), not all(holds)))


def overall(verdicts: Sequence[Verdict]) -> str:
    """The verdict on the whole claim."""
    outcomes = {verdict.outcome for verdict in verdicts}
    if outcomes == {Outcome.CONFIRMED}:
        return Outcome.CONFIRMED.value
    if Outcome.CONFIRMED in outcomes:
        return "partly confirmed"
    return max(outcomes, key=[Outcome.UNDECIDED, Outcome.REFUTED].index).value


def _outcome(confirmed: bool, refuted: bool) -> Outcome:
    return Outcome.CONFIRMED if confirmed else Outcome.REFUTED if refuted else Outcome.UNDECIDED
