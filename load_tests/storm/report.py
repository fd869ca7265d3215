"""The tables of a storm, and the promises that it checks."""

from collections import Counter
from collections.abc import Mapping, Sequence

from load_tests.storm.kinds import End
from load_tests.storm.storm import ENDLESS, WRONG, Weather

MOST_GROWTH = 0.02
"""The memory of all processes may grow by this fraction after the first part, and that of each in the second half.

An allocator keeps more until it has met the largest burst. A leak does not end.
"""

_ALL = "**all**"
_ENDS = (*(end.value for end in End), WRONG, ENDLESS)


def tables(weather: Weather) -> str:
    """Two Markdown tables: how the requests of each kind ended, and the memory of each process."""
    every = {**weather.ends, _ALL: sum(weather.ends.values(), Counter())}
    rows = [(name, ends.total(), *(ends[end] for end in _ENDS)) for name, ends in every.items()]
    requests = _table(("Kind of request", "Asked", *(end.capitalize() for end in _ENDS)), rows)
    samples = _samples(weather)
    sizes = [
        (name, *(f"{at.get(name, 0) / 2**20:.1f}" for at in samples), f"{_growth(samples[0], samples[2], name):+.1%}")
        for name in sorted(samples[0], key=lambda name: -samples[0][name])
    ]
    memory = _table(("Process", "MiB after a tenth", "MiB after half", "MiB at the end", "Growth"), sizes)
    return f"{requests}\n\n{memory}"


def _samples(weather: Weather) -> list[dict[str, int]]:
    """The memory of each process, and of all, after a tenth, after half, and at the end."""
    memory = weather.memory
    return [{_ALL: sum(at.values()), **at} for at in (memory[0], memory[(len(memory) - 1) // 2], memory[-1])]


def _table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [header, ("---", *["---:"] * (len(header) - 1)), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def _growth(before: Mapping[str, int], after: Mapping[str, int], name: str) -> float:
    return after.get(name, 0) / before[name] - 1 if before.get(name) else 0.0


def broken_promises(weather: Weather) -> list[str]:
    """A line for each promise of docs/operations.md that was broken."""
    count = {end: sum(ends[end] for ends in weather.ends.values()) for end in (WRONG, ENDLESS)}
    lines = [f"{number} requests were {end}" for end, number in count.items() if number]
    tenth, half, end = _samples(weather)
    if (growth := _growth(tenth, end, _ALL)) > MOST_GROWTH:
        lines.append(f"the memory of all processes grew by {growth:.1%}")
    lines += [
        f"the memory of {name} grew by {growth:.1%} in the second half"
        for name in weather.memory[0]
        if (growth := _growth(half, end, name)) > MOST_GROWTH
    ]
    if weather.stays_busy:
        lines.append("the model was busy without a request")
    if weather.regions > 0:
        lines.append(f"{weather.regions} files were left in /dev/shm")
    return lines + [f"this process ended: {command}" for command in weather.replaced]
