"""Drafts in the simulator: how often there is one, and how often its tokens are right."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from inflight.request import Request
from inflight.scheduler.plan import ScheduledRequest
from inflight.step_result import StepResult
from load_tests.simulate.trace import read_trace

_RIGHT, _WRONG = 0, 1
"""Tokens of drafts. The simulated model says nothing but `_RIGHT`."""
_TOKEN = StepResult((_RIGHT,))


@dataclass(frozen=True)
class AcceptanceProfile:
    """What drafts are worth under some load."""

    found: float
    """The part of the decodes for which there is a draft."""
    right: tuple[float, ...]
    """The probability that each token of a draft is right if all before it are. The last one holds for all others."""

    @classmethod
    def read(cls, text: str) -> "AcceptanceProfile":
        """Parse a probability, that each token of each draft is right, or the path of an engine's trace.

        Raises:
            ValueError: the probability is not between 0 and 1, or the trace has no drafts.
        """
        try:
            probability = float(text)
        except ValueError:
            return cls.of_trace(Path(text))
        if not 0 < probability <= 1:
            raise ValueError(f"the acceptance is {text}; it must be over 0 and at most 1")
        return cls(1.0, (probability,))

    @classmethod
    def of_trace(cls, path: Path) -> "AcceptanceProfile":
        """The profile of a run, from its `trace_file`. Run with `adaptive` false, so that every draft was tried.

        Failed steps do not count: they say nothing about their drafts.

        Raises:
            ValueError: the file is no trace, or has no drafts.
        """
        decodes: list[dict[str, Any]] = []
        before_step = 0
        for event in read_trace(path):
            name, args = event.get("name", ""), event.get("args", {})
            if event.get("ph") == "B" and "tokens" in args and name.startswith("token"):
                decodes.append(args)
            elif name == "failed step":
                del decodes[before_step:]
            elif name == "step":
                before_step = len(decodes)
        drafts = [(args["drafted_tokens"], args["accepted_tokens"]) for args in decodes if "drafted_tokens" in args]
        if not drafts:
            raise ValueError(f"{path} has no drafts; record it with speculative_config, and with adaptive false")
        right = []
        for place in range(max(drafted for drafted, _ in drafts)):
            tried = [accepted for drafted, accepted in drafts if drafted > place and accepted >= place]
            if not tried:
                break
            right.append(sum(accepted > place for accepted in tried) / len(tried))
        return cls(len(drafts) / len(decodes), tuple(right))

    def draw(self, count: int, chance: Random) -> int:
        """Return how many of the first `count` tokens of a draft are right."""
        for place in range(count):
            if chance.random() >= self.right[min(place, len(self.right) - 1)]:
                return place
        return count


class ProfileDrafter:
    """Makes drafts with the acceptance of a profile. See `Drafter`."""

    def __init__(self, profile: AcceptanceProfile, seed: int = 0) -> None:
        self._profile, self._chance = profile, Random(seed)

    def outlook(self, request: Request) -> float:
        """See `Drafter`."""
        return self._profile.right[0] if self._chance.random() < self._profile.found else 0.0

    def seconds_per_token(self, num_requests: int) -> float:
        """Return 0: as with `ngram` and `suffix`, drafts cost next to nothing."""
        return 0.0

    def propose(self, wanted: Sequence[tuple[Request, int]]) -> list[list[int]]:
        """See `Drafter`."""
        return [self._draft(count) for _, count in wanted]

    def _draft(self, count: int) -> list[int]:
        right = self._profile.draw(count, self._chance)
        return [_RIGHT] * right + [_WRONG] * (count - right)

    def observe(self, request: Request) -> None:
        """Do nothing: the profile is fixed."""

    def completed(self, request: Request) -> None:
        """Do nothing."""

    def forget(self, request: Request) -> None:
        """Do nothing."""


def new_tokens(each: ScheduledRequest) -> StepResult:
    """Return what a simulated step gives a request: the right tokens of its draft, and one more."""
    draft = each.draft if each.num_draft else ()
    right = next((place for place, token in enumerate(draft) if token != _RIGHT), len(draft))
    return _TOKEN if right == 0 else StepResult((_RIGHT,) * (right + 1))
