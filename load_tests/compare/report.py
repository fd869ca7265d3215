"""The tables of a comparison."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from load_tests.arrivals import Floats
from load_tests.capacity.level import percentile
from load_tests.compare.turns import Compared
from load_tests.slo import Slo
from load_tests.workload import Workload

HEADER = (
    *("Load", "Users", "", "Tokens/s", "Each round", "To the first (min to max)"),
    *("TTFT p50, p99 (s)", "ITL p50, p99 (ms)", "In SLO", "Goodput (req/s)", "Requests", "Errors"),
)


def table(workloads: Sequence[Workload], levels: Mapping[int, Mapping[str, Mapping[str, Compared]]]) -> str:
    """Return a Markdown table by workload and number of users.

    It has the medians of the rounds, and the range of the ratio over the rounds. For TTFT, a request that was not
    answered counts as infinite; ITL is that of the answered ones. Both are percentiles over all rounds, whose
    number of requests has a column. Infinite and undefined values are `-`. `levels` are the results by number of users,
    names of workload and server.
    """
    rows = [HEADER, ("---", "---:", "---", *["---:"] * (len(HEADER) - 4), "---")]
    for workload in workloads:
        for users, results in levels.items():
            rows += [(workload.name, str(users), *row) for row in _rows(results[workload.name], workload.slo)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _rows(results: Mapping[str, Compared], slo: Slo) -> list[tuple[str, ...]]:
    first = next(iter(results.values())).of(lambda run: run.throughput)
    rows: list[tuple[str, ...]] = []
    for name, compared in results.items():
        rates = compared.of(lambda run: run.throughput)
        errors = Counter(record.error for run in compared.runs for record in run.records if record.error is not None)
        rows.append(
            (
                name,
                f"{np.median(rates):.0f}",
                ", ".join(f"{rate:.0f}" for rate in rates),
                _ratios(rates, first),
                _percentiles(np.concatenate([run.with_failed(run.ttft) for run in compared.runs]), 1, 2),
                _percentiles(np.concatenate([run.gaps for run in compared.runs]), 1000, 0),
                f"{np.median(compared.of(lambda run: run.attainment(slo))):.0%}",
                f"{np.median(compared.of(lambda run: run.goodput(slo))):.2f}",
                str(sum(len(run.records) for run in compared.runs)),
                ", ".join(f"{kind}: {count}" for kind, count in errors.items()) or "none",
            )
        )
    return rows


def _ratios(rates: Sequence[float], first: Sequence[float]) -> str:
    if not all(first):
        return "-"
    ratios = [rate / other for rate, other in zip(rates, first, strict=True)]
    return f"{np.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def _percentiles(values: Floats, unit: float, digits: int) -> str:
    found = [percentile(values, percent) for percent in (50, 99)]
    if not np.isfinite(found[0]):
        return "-"
    return ", ".join(f"{unit * value:.{digits}f}" if np.isfinite(value) else "-" for value in found)


def notes(results: Mapping[str, Compared]) -> str:
    """The start-up time of each server, and its memory."""
    return "\n".join(
        f"{name}: ready after {compared.ready_seconds:.0f} s, {compared.resident_bytes / 2**30:.1f} GiB of memory"
        for name, compared in results.items()
    )
