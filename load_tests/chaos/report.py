"""The table of the outcomes."""

from collections.abc import Mapping, Sequence

from load_tests.chaos.experiment import Outcome

LAST_ERROR_SECONDS = 5.0
"""A request that runs when a fault begins has its answer or an error within this time."""

_HEADER = (
    *("Fault", "Times", "Failed, of those running", "Last error after (s)", "Wrong answers", "Without an end"),
    *("Health was false", "Right again after (s)", "Left behind"),
)


def table(outcomes: Mapping[str, Sequence[Outcome]]) -> str:
    """A Markdown table with a row for each fault: sums of requests, and the longest times."""
    rows = [_HEADER, ("---", *["---:"] * 5, "---", "---:", "---"), *map(_row, outcomes, outcomes.values())]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _row(name: str, outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    failed, running = sum(o.failed for o in outcomes), sum(o.running for o in outcomes)
    back = [outcome.back for outcome in outcomes]
    times = [seconds for seconds in back if seconds is not None]
    return (
        name,
        str(len(outcomes)),
        f"{failed} of {running}",
        f"{max(o.last_error for o in outcomes):.1f}",
        str(sum(o.wrong for o in outcomes)),
        str(sum(o.hung for o in outcomes)),
        f"{sum(o.unhealthy for o in outcomes)} times",
        "never" if None in back else f"{max(times):.1f}",
        ", ".join(sorted({what for o in outcomes for what in o.left})) or "nothing",
    )


def broken_promises(outcomes: Mapping[str, Sequence[Outcome]]) -> list[str]:
    """A line for each fault that broke what docs/operations.md promises."""
    lines = []
    for name, seen in outcomes.items():
        for kept, what in (
            (all(o.wrong == 0 for o in seen), "an answer was wrong"),
            (all(o.hung == 0 for o in seen), "a request never ended"),
            (all(o.last_error <= LAST_ERROR_SECONDS for o in seen), f"an error took over {LAST_ERROR_SECONDS:g} s"),
            (all(o.back is not None for o in seen), "the service did not come back"),
            (all(not o.left for o in seen), "something was left behind"),
        ):
            if not kept:
                lines.append(f"{name}: {what}")
    return lines
