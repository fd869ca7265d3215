"""Inter-token latency of running requests while long prompts arrive, with and without chunked prefill."""

from typing import TYPE_CHECKING

from load_tests.arrivals import Gamma
from load_tests.experiments.estimate import difference, ratio
from load_tests.experiments.experiment import Arm, Experiment, Results
from load_tests.experiments.stage import Stage
from load_tests.experiments.verdict import Verdict
from load_tests.lengths import Uniform, fixed
from load_tests.simulate.plots import gap_ecdf
from load_tests.simulate.report import E2E_MEAN, ITL_P50, ITL_P99, THROUGHPUT, TTFT_P50, TTFT_P99, Column
from load_tests.traffic import Arrival, Stream, merge

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CHAT = Uniform(64, 192), Uniform(128, 384)
LONG = Uniform(4096, 8192), fixed(32)
WHOLE = 8192
BUDGETS = (256, 512, 2048)


def chat_and_documents(stage: Stage, requests: int, seed: int) -> list[Arrival]:
    """Short prompts with long answers at 25 % of the machine's capacity, and long prompts with short answers at 45
    %."""
    streams = []
    rates = [stage.rate(0.25, CHAT), stage.rate(0.45, LONG)]
    for kind, (lengths, rate) in enumerate(zip((CHAT, LONG), rates, strict=True)):
        count = round(stage.requests(requests) * rate / sum(rates))
        streams.append(Stream(Gamma(rate), *stage.both(lengths)).make(count, (seed, kind)))
    return merge(*streams)


class ChunkedPrefill(Experiment):
    """Chat requests share the machine with documents of several thousand tokens."""

    name = "chunked_prefill"
    title = "Inter-token latency while long prompts arrive, by size of the prompt chunks"
    claim = (
        "Chunked prefill with decodes first keeps long prompts from stalling running requests: the tail of the time "
        "between tokens falls severalfold, at little cost in throughput; prompts wait longer for their own first token"
    )
    source = "Sarathi-Serve (OSDI'24)"

    def arms(self, stage: Stage, seed: int) -> list[Arm]:
        arrivals = chat_and_documents(stage, self.requests, seed)
        whole = {"enable_chunked_prefill": False, "max_num_batched_tokens": stage.tokens(WHOLE)}
        chunked = [
            Arm(f"chunks in {budget}", arrivals, {"max_num_batched_tokens": stage.tokens(budget)}) for budget in BUDGETS
        ]
        return [Arm("whole prompts", arrivals, whole), *chunked]

    def columns(self, stage: Stage) -> list[Column]:
        return [THROUGHPUT, TTFT_P50, TTFT_P99, ITL_P50, ITL_P99, E2E_MEAN]

    def verdicts(self, results: Results, stage: Stage) -> list[Verdict]:
        whole, chunked = results["whole prompts"], results["chunks in 512"]
        fall, kept = ratio(ITL_P99, whole, chunked), ratio(THROUGHPUT, chunked, whole)
        longer = difference(TTFT_P50, chunked, whole)
        return [
            Verdict.above(f"ITL p99 falls by a factor of {fall:.1f} with a budget of 512 (at least 2)", fall, 2),
            Verdict.above(f"throughput is {kept:.1%} of that with whole prompts (at least 95 %)", kept, 0.95),
            Verdict.above(f"the price is paid: TTFT p50 is longer by {longer:.3f} s", longer, 0),
        ]

    def plot(self, axes: "Axes", results: Results, stage: Stage) -> None:
        gap_ecdf(axes, results)
        axes.legend()
