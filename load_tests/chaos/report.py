"""The table of the outcomes."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from load_tests.chaos.experiment import Outcome
from load_tests.chaos.faults import Fault

ERROR_SECONDS = 5.0
"""An error comes within this time after the fault began, or after the request was sent if that was later."""
BACK_SECONDS = 5.0
"""After a death, answers are right again within the time of a start and this time."""

_HEADER = (
    *("Fault", "Times", "Failed, of those running", "Slowest error (s)", "Slowest answer (s)", "Wrong answers"),
    *("Without an end", "Health was false", "Right again after (s)", "Less the start (s)", "Left behind"),
)


def table(outcomes: Mapping[Fault, Sequence[Outcome]]) -> str:
    """A Markdown table with a row for each fault: sums of requests, and the longest times."""
    rows = [_HEADER, ("---", *["---:"] * 6, "---", "---:", "---:", "---"), *map(_row, outcomes, outcomes.values())]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _row(fault: Fault, outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    failed, running = sum(o.failed for o in outcomes), sum(o.running for o in outcomes)
    back = [outcome.back for outcome in outcomes if outcome.back is not None]
    never = len(back) < len(outcomes)
    return (
        fault.name,
        str(len(outcomes)),
        f"{failed} of {running}",
        f"{max(o.slowest_error for o in outcomes):.1f}",
        f"{max(o.slowest_answer for o in outcomes):.1f}",
        str(sum(o.wrong for o in outcomes)),
        str(sum(o.hung for o in outcomes)),
        f"{sum(o.unhealthy for o in outcomes)} times",
        "never" if never else f"{max(back):.1f}",
        "never" if never else f"{_without_start(outcomes):.1f}",
        ", ".join(sorted({what for o in outcomes for what in o.left})) or "nothing",
    )


def _without_start(outcomes: Sequence[Outcome]) -> float:
    """The longest time until answers were right again, less that of the start in it."""
    return max((outcome.back - outcome.start for outcome in outcomes if outcome.back is not None), default=0.0)


def broken_promises(outcomes: Mapping[Fault, Sequence[Outcome]]) -> list[str]:
    """A line for each promise of docs/operations.md that a fault broke, but for those about time."""
    return _broken(
        outcomes,
        lambda fault, seen: (
            (all(o.wrong == 0 for o in seen), "an answer was wrong"),
            (all(o.hung == 0 for o in seen), "a request never ended"),
            (all(o.back is not None for o in seen), "the service did not come back"),
            (not fault.restarts or all(o.unhealthy for o in seen), "health did not become false"),
            (all(not o.left for o in seen), "something was left behind"),
        ),
    )


def late(outcomes: Mapping[Fault, Sequence[Outcome]]) -> list[str]:
    """A line for each promise about time that a fault broke. On a machine with other work, times say little."""
    return _broken(
        outcomes,
        lambda fault, seen: (
            (all(o.slowest_error <= ERROR_SECONDS for o in seen), f"an error took over {ERROR_SECONDS:g} s"),
            (
                not fault.restarts or _without_start(seen) <= BACK_SECONDS,
                f"the service came back later than {BACK_SECONDS:g} s after the time of a start",
            ),
        ),
    )


def _broken(
    outcomes: Mapping[Fault, Sequence[Outcome]],
    promises: Callable[[Fault, Sequence[Outcome]], Iterable[tuple[bool, str]]],
) -> list[str]:
    return [
        f"{fault.name}: {what}" for fault, seen in outcomes.items() for kept, what in promises(fault, seen) if not kept
    ]
