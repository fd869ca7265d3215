"""Turns the result of a sweep into a recommendation: settings, load, and the latencies to expect."""

from load_tests.capacity.level import Level, itl_p99, ttft_p95
from load_tests.capacity.result import Sweep, recommended
from load_tests.capacity.server_metrics import ServerUse

# Recommended numbers of sequences are multiples of this.
_GROUP = 8
BUSY_GENERATOR = 0.7
"""If the generator is busy for more than this fraction of the time, it may have measured itself."""
BUSY_MACHINE = 0.1
"""If other processes use more than this fraction of the processors, they affect the measurement."""


def recommendation(sweep: Sweep) -> str:
    """Recommend settings and a load, and state the latencies at it."""
    level = recommended(sweep.found)
    load = sweep.kind.text(level.load)
    seen = f"a p95 TTFT of {_seconds(level.middle(ttft_p95))} and a p99 ITL of {_seconds(level.middle(itl_p99))}"
    own = ", or the request's own target," if sweep.has_own_targets else ""
    objective = f"{_seconds(sweep.slo.ttft)}{own} and {_seconds(sweep.slo.itl)}"
    if sweep.capacity is None:
        return (
            f"Already {load}, the lowest load tried, broke the objective of {objective}: expect {seen}, and use a "
            "faster machine, a smaller model, shorter prompts or a wider objective."
        )
    at_least = "" if sweep.found.broken else "at least "
    expect = f"expect {at_least}{load} at {level.throughput:.0f} output tokens/s with {seen} (objective: {objective})"
    settings = _settings(sweep, level)
    return f"{settings}; {expect}." if settings else f"{expect[0].upper()}{expect[1:]}."


def _settings(sweep: Sweep, level: Level) -> str:
    """The tightest settings that would have changed nothing at this load. Empty without Inflight's metrics.

    With these settings, additional requests wait in the queue instead of slowing down the running ones.
    """
    uses = [repeat.use for repeat in level.repeats]
    known = [use for use in uses if use is not None]
    configured = {name: sweep.settings.get(name) for name in ("max_num_seqs", "max_num_batched_tokens")}
    if not known or None in configured.values():
        return ""
    max_num_seqs, budget = (int(value) for value in configured.values() if value is not None)
    sequences = min(max_num_seqs, needed_sequences(known))
    tokens = min(budget, max(sequences, int(min(budget, max(use.largest_step_tokens for use in known)))))
    return f"Set max_num_seqs to {sequences} (now {max_num_seqs}) and max_num_batched_tokens to {tokens} (now {budget})"


def needed_sequences(uses: list[ServerUse]) -> int:
    """The highest number of requests that ran at once, rounded up to a group."""
    max_running = max(use.max_running for use in uses)
    return max(_GROUP, -(-int(max_running) // _GROUP) * _GROUP)


def warnings(sweep: Sweep) -> list[str]:
    """Reasons to doubt the results."""
    found = []
    if sweep.busiest_generator > BUSY_GENERATOR:
        found.append(
            f"The load generator was busy {sweep.busiest_generator:.0%} of the time at the busiest level. Near 100% it "
            "measures itself. Run it on another machine."
        )
    if sweep.others is not None and sweep.others > BUSY_MACHINE:
        found.append(
            f"During the sweep other processes used {sweep.others:.0%} of the processors, so the figures are too low "
            "and vary. Run the sweep on an idle machine."
        )
    if below := _bad_below_capacity(sweep):
        found.append(
            f"{', '.join(map(sweep.kind.text, below))} broke the objective although a higher load kept it: noise, or "
            "runs too short for a percentile."
        )
    if sweep.capacity is not None and sweep.found.broken is None:
        found.append("No load broke the objective, so the highest one tried is a lower bound.")
    if sweep.knee is None:
        found.append("Throughput had no knee among the loads tried.")
    # Of every repeat: the median would hide the one whose requests failed.
    failed = max(repeat.failed for level in sweep.levels for repeat in level.repeats)
    if failed > 0:
        found.append(f"Up to {failed:.1%} of a repeat's requests failed; raw/ has their errors.")
    return found


def _bad_below_capacity(sweep: Sweep) -> list[float]:
    if sweep.capacity is None:
        return []
    return [level.load for level in sweep.levels if level.load < sweep.capacity.load and not level.keeps(sweep.slo)]


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{1e3 * value:.0f} ms"
