"""Tables of results, in Markdown."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from inflight.tenant_costs import TenantUse
from load_tests.simulate.result import Result, percentile
from load_tests.slo import Slo


@dataclass(frozen=True)
class Column:
    """A measure of a result, with its unit."""

    name: str
    value: Callable[[Result], float]
    form: str = ".1f"
    of_answered: bool = True
    """Whether it says nothing if no request was answered."""

    def cell(self, result: Result) -> str:
        """The measure of a result as text, `-` if it says nothing."""
        if self.of_answered and not result.done.any():
            return "-"
        return format(self.value(result), self.form)


THROUGHPUT = Column("output tok/s", lambda r: r.throughput, ".0f", of_answered=False)
TTFT_P50 = Column("TTFT p50, s", lambda r: percentile(r.ttft, 50), ".3f")
TTFT_P99 = Column("TTFT p99, s", lambda r: percentile(r.ttft, 99), ".3f")
TTFT_MEAN = Column("TTFT mean, s", lambda r: float(r.ttft.mean()), ".3f")
ITL_MEAN = Column("ITL mean, ms", lambda r: 1e3 * float((r.gaps * r.gap_counts).sum() / max(1, r.gap_counts.sum())))
ITL_P50 = Column("ITL p50, ms", lambda r: 1e3 * r.itl(50))
ITL_P99 = Column("ITL p99, ms", lambda r: 1e3 * r.itl(99))
E2E_MEAN = Column("E2E mean, s", lambda r: float(r.e2e.mean()), ".2f")
E2E_P99 = Column("E2E p99, s", lambda r: percentile(r.e2e, 99), ".2f")
FAIRNESS = Column("Jain's index", lambda r: r.fairness, ".3f")
REQUESTS = Column("requests", lambda r: float(len(r.arrival)), ".0f", of_answered=False)
ANSWERED = Column("answered", lambda r: float(r.done.mean()), ".1%", of_answered=False)
"""Latencies are those of these requests."""
PREEMPTIONS = Column("preemptions", lambda r: float(r.preemptions.sum()), ".0f")
PADDING = Column("padding tokens", lambda r: float(r.padding_tokens), ".0f")
EFFICIENCY = Column("padding efficiency", lambda r: r.padding_efficiency, ".2f")


def goodput(slo: Slo) -> Column:
    """Requests per second that met an objective."""
    return Column("goodput, req/s", lambda r: r.goodput(slo), ".2f", of_answered=False)


def attainment(slo: Slo) -> Column:
    """Fraction of requests that met an objective."""
    return Column("in SLO", lambda r: r.attainment(slo), ".1%", of_answered=False)


def cost(price_per_hour: float | None) -> Column:
    """Cost of 1,000 output tokens: machine time, or money if an hour of the machine has a price."""
    if price_per_hour is None:
        return Column("machine s per 1k tokens", lambda r: r.seconds_per_thousand(), ".3f")
    return Column("cost per 1k tokens", lambda r: r.seconds_per_thousand() * price_per_hour / 3600, ".6f")


def columns(slo: Slo, price_per_hour: float | None = None) -> list[Column]:
    """The usual measures of a server."""
    times = [TTFT_P50, TTFT_P99, ITL_P50, ITL_P99, E2E_MEAN, E2E_P99]
    return [
        *(REQUESTS, ANSWERED, THROUGHPUT, *times, goodput(slo), attainment(slo)),
        *(FAIRNESS, PREEMPTIONS, PADDING, cost(price_per_hour)),
    ]


def tenant_table(tenants: Mapping[str, TenantUse], price_per_hour: float) -> str:
    """Return a table with a row for each tenant: its tokens, the machine seconds that it used, and what they cost."""
    price = price_per_hour / 3600
    head = ["tenant", "prompt tokens", "output tokens", "machine s", "cost", "cost per 1k output tokens"]
    rows = [
        [
            *(tenant or "(none)", f"{use.prompt_tokens}", f"{use.output_tokens}", f"{use.seconds:.1f}"),
            *(f"{use.seconds * price:.4f}", f"{1e3 * use.seconds * price / max(1, use.output_tokens):.6f}"),
        ]
        for tenant, use in sorted(tenants.items())
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---", *["---:"] * (len(head) - 1)], *rows])


def table(results: Mapping[str, Result], shown: Sequence[Column]) -> str:
    """Return a table with a row for each result."""
    return markdown(shown, {label: [column.cell(result) for column in shown] for label, result in results.items()})


def markdown(shown: Sequence[Column], rows: Mapping[str, Sequence[str]]) -> str:
    """Return a table with the cells of each row by its label."""
    head = ["", *(column.name for column in shown)]
    lines = [head, ["---", *["---:"] * len(shown)], *([label, *cells] for label, cells in rows.items())]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
