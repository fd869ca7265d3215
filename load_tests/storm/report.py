"""The tables of a storm, and the promises that it checks."""

from collections import Counter
from collections.abc import Sequence

from load_tests.storm.kinds import End
from load_tests.storm.storm import ENDLESS, FULL, WRONG, Weather

MOST_GROWTH = 0.02
"""The memory of a process may grow by this fraction after the first part."""

_ENDS = (*(end.value for end in End), FULL, WRONG, ENDLESS)


def tables(weather: Weather) -> str:
    """Two Markdown tables: how the requests of each kind ended, and the memory of each process."""
    every = {**weather.ends, "**all**": sum(weather.ends.values(), Counter())}
    rows = [(name, ends.total(), *(ends[end] for end in _ENDS)) for name, ends in every.items()]
    requests = _table(("Kind of request", "Asked", *(end.capitalize() for end in _ENDS)), rows)
    first, half, last = weather.memory[0], weather.memory[(len(weather.memory) - 1) // 2], weather.memory[-1]
    sizes = [
        (name, *(f"{at.get(name, 0) / 2**20:.1f}" for at in (first, half, last)), f"{_growth(weather, name):+.1%}")
        for name in sorted(first, key=lambda name: -first[name])
    ]
    memory = _table(("Process", "MiB after a tenth", "MiB after half", "MiB at the end", "Growth"), sizes)
    return f"{requests}\n\n{memory}"


def _table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [header, ("---", *["---:"] * (len(header) - 1)), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def _growth(weather: Weather, name: str) -> float:
    first, last = weather.memory[0][name], weather.memory[-1].get(name, 0)
    return last / first - 1 if first else 0.0


def broken_promises(weather: Weather) -> list[str]:
    """A line for each promise of docs/operations.md that was broken."""
    ends = sum(weather.ends.values(), Counter())
    lines = [f"{ends[end]} requests were {end}" for end in (WRONG, ENDLESS) if ends[end]]
    # A server that refuses everything gives no wrong answer.
    if ends[FULL] > ends[End.RIGHT.value]:
        lines.append(f"{ends[FULL]} requests found the queue full, and only {ends[End.RIGHT.value]} were answered")
    lines += [
        f"the memory of {name} grew by {growth:.1%}"
        for name in weather.memory[0]
        if (growth := _growth(weather, name)) > MOST_GROWTH
    ]
    if weather.stays_busy:
        lines.append("the model was busy without a request")
    if weather.regions > 0:
        lines.append(f"{weather.regions} files were left in /dev/shm")
    return lines + [f"this process ended: {command}" for command in weather.replaced]
