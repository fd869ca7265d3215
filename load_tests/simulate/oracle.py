"""Oracles: an engine's settings, chosen with knowledge of all requests to come, to see what knowing them is worth."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from inflight.config import EngineConfig
from inflight.scheduler.admission import MaxUtilization
from inflight.scheduler.auto_tune.auto_tuner import AutoTuner
from inflight.scheduler.auto_tune.change import Change
from inflight.scheduler.auto_tune.load import Load
from inflight.scheduler.prefill_budget import MIN_CHUNK
from inflight.scheduler.step_time import StepTimeModel
from load_tests.simulate.result import Result
from load_tests.simulate.simulator import Simulation
from load_tests.simulate.step_cost import StepCost
from load_tests.traffic import Arrival

_LIMIT = 2.7
"""The limit for gaps of the adaptive token budget, in steps in which all present requests decode."""


class Oracle(AutoTuner):
    """Takes the place of the tuner. This one uses no knowledge: it is an engine with the adaptive token budget."""

    def __init__(self, config: EngineConfig, times: StepTimeModel, arrivals: Sequence[Arrival]) -> None:
        """`arrivals` are all requests of the run, in the order of arrival."""
        self.limit = math.inf
        """Seconds that the next step may take if it has decodes."""
        super().__init__(config, times)
        self._arrivals = arrivals
        self._at = [arrival.at for arrival in arrivals]

    @property
    def step_seconds(self) -> float:
        """See `AutoTuner`."""
        return self.limit

    def max_chunk(self, tokens: int, num_prompts: int) -> int:
        """Return all of the tokens: prompts come one after the other."""
        return tokens

    def tune(self, now: float, load: Load, num_preemptions: int) -> tuple[Change, ...]:
        """Choose the settings of the next step."""
        self.limit = self._usual_limit(load)
        if self._times.known:
            self.look_ahead(now, load)
        return ()

    def look_ahead(self, now: float, load: Load) -> None:
        """Change settings with knowledge of what will come."""

    def waits_until(self, now: float, load: Load) -> float | None:
        """Return None: no step waits."""
        return None

    def _usual_limit(self, load: Load) -> float:
        known = load.prompt_tokens - sum(load.prompts) + sum([len(r.token_ids) for r in load.running.values()])
        present = len(load.waiting) + len(load.running)
        if present > self.max_num_seqs:
            known, present = known * self.max_num_seqs // present, self.max_num_seqs
        return _LIMIT * self._times.decode_seconds(present, known)

    def next_step(self, load: Load) -> tuple[float, float]:
        """Return the seconds of the next step with its decodes alone, and with all prompts that the budget allows."""
        decodes = [request for request in load.running.values() if request.decodes]
        alone = self._times.decode_seconds(len(decodes), sum([request.num_computed for request in decodes]))
        prompts = self._times.chunk_seconds(0, min(load.prompt_tokens, self.token_budget - len(decodes)))
        return alone, alone + prompts

    def capped(self, load: Load, seconds: float) -> float:
        """Return how long a step of `seconds` takes under the limit, which counts only if there are decodes."""
        return min(seconds, self.limit) if any(request.decodes for request in load.running.values()) else seconds

    def coming(self, now: float, until: float) -> Sequence[Arrival]:
        """Return the requests that arrive after `now` and before `until`."""
        return self._arrivals[bisect_right(self._at, now) : bisect_left(self._at, until)]


class WaitsForArrivals(Oracle):
    """Waits with a step for requests that would come during it, if they gain more by that than the others lose.

    Both are in seconds of a request: those present get their tokens later by the wait, and those that come need not
    wait for the end of the step.
    """

    def waits_until(self, now: float, load: Load) -> float | None:
        """Return the arrival to wait for, if one pays."""
        present = len(load.running) + len(load.waiting)
        if not self._times.known or not present or present >= self.max_num_seqs:
            return None
        end = now + self.capped(load, self.next_step(load)[1])
        best, until = 0.0, None
        for count, arrival in enumerate(self.coming(now, end), start=1):
            gain = count * (end - arrival.at) - present * (arrival.at - now)
            if gain > best:
                best, until = gain, arrival.at
        return until


class KeepsBlocks(Oracle):
    """Admits no request into the blocks that prompts of higher priority will need within `horizon` seconds."""

    horizon = 1.0

    def look_ahead(self, now: float, load: Load) -> None:
        """Set the watermark."""
        self.watermark = MaxUtilization.next_tokens
        first = load.waiting.first()
        if first is not None and load.running:
            level = first.priority
            coming = self.coming(now, now + self.horizon)
            kept = sum([arrival.prompt_tokens for arrival in coming if arrival.priority < level])
            self.watermark += math.ceil(kept / len(load.running))


class KeepsMore(Oracle):
    """Admits no request into the blocks for `tokens` more tokens of each running one: no oracle, but what `KeepsBlocks`
    must be compared with. `tokens` is the best number for the experiment `arrival_forecast`."""

    tokens = 32

    def look_ahead(self, now: float, load: Load) -> None:
        """Set the watermark."""
        self.watermark = self.tokens


class YieldsToArrivals(Oracle):
    """Ends a step with prompts when a request arrives, if it gains more by that than one more step costs the others."""

    def look_ahead(self, now: float, load: Load) -> None:
        """Shorten the next step."""
        alone, full = self.next_step(load)
        end = now + self.capped(load, full)
        earliest = now + alone + self._times.chunk_seconds(0, MIN_CHUNK)
        overhead = (len(load.prompts) + len(load.waiting)) * self._times.decode_seconds(0, 0)
        best = 0.0
        for count, arrival in enumerate(self.coming(now, end), start=1):
            gain = count * (end - max(arrival.at, earliest)) - overhead
            if gain > best:
                best, self.limit = gain, max(arrival.at, earliest) - now


class StretchesInQuiet(Oracle):
    """Lets prompts make a step `stretch` times as long as usual while no request arrives."""

    stretch = 2.0

    def look_ahead(self, now: float, load: Load) -> None:
        """Lengthen the next step."""
        longer = min(self.next_step(load)[1], self.stretch * self.limit)
        if not self.coming(now, now + longer):
            self.limit = max(self.limit, longer)


class Stretches(Oracle):
    """Lets prompts make every step so long: no oracle, but what `StretchesInQuiet` must be compared with."""

    def look_ahead(self, now: float, load: Load) -> None:
        """Lengthen the next step."""
        self.limit *= StretchesInQuiet.stretch


def simulate_with(oracle: type[Oracle], arrivals: Sequence[Arrival], config: EngineConfig, cost: StepCost) -> Result:
    """Serve `arrivals` as `simulate` does, with the settings that an oracle chooses.

    Raises:
        ValueError: `auto_tune` is not `throughput`, the objective that has no targets.
    """
    if config.auto_tune != "throughput":
        raise ValueError(f"auto_tune is {config.auto_tune!r}; with an oracle it must be 'throughput'")
    simulation = Simulation(arrivals, config, cost)
    simulation.scheduler.tuner = oracle(config, simulation.scheduler.times, arrivals)
    while simulation.step():
        pass
    return simulation.result()
