"""Requests that start with the same system prompt, with and without a prefix cache."""

from typing import TYPE_CHECKING

from load_tests.arrivals import Gamma
from load_tests.experiments.estimate import estimate, ratio
from load_tests.experiments.experiment import Arm, Experiment, Results
from load_tests.experiments.plots import pooled
from load_tests.experiments.stage import Stage
from load_tests.experiments.verdict import Verdict
from load_tests.lengths import Uniform, fixed
from load_tests.simulate.plots import ecdf
from load_tests.simulate.report import ITL_P99, THROUGHPUT, TTFT_P50, TTFT_P99, Column
from load_tests.traffic import Stream

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SYSTEM_TOKENS = 2048
PREFIXES = 4
LENGTHS = Uniform(64, 192), Uniform(64, 192)
LOAD = 0.7

CACHED = Column("prompt tokens cached", lambda r: float(r.cached.sum() / r.prompt.sum()), ".1%")


class PrefixCache(Experiment):
    """Four applications. Each puts its own system prompt of 2,048 tokens before 128 tokens of the user's."""

    name = "prefix_cache"
    title = "Time to first token where requests share system prompts"
    claim = "Where requests share a long beginning, reusing its blocks makes the time to first token several times less"
    source = "automatic prefix caching of vLLM (SOSP'23) and RadixAttention of SGLang (NeurIPS'24)"

    def arms(self, stage: Stage, seed: int) -> list[Arm]:
        prompts, outputs = LENGTHS
        rate = stage.rate(LOAD, (fixed(SYSTEM_TOKENS + round(prompts.mean)), outputs))
        stream = Stream(
            Gamma(rate),
            stage.lengths(prompts),
            stage.lengths(outputs),
            prefixes=PREFIXES,
            prefix_tokens=stage.tokens(SYSTEM_TOKENS),
        )
        arrivals = stream.make(stage.requests(self.requests), seed)
        return [
            Arm(label, arrivals, {"enable_prefix_caching": on}) for label, on in (("no reuse", False), ("cache", True))
        ]

    def columns(self, stage: Stage) -> list[Column]:
        return [THROUGHPUT, TTFT_P50, TTFT_P99, ITL_P99, CACHED]

    def verdicts(self, results: Results, stage: Stage) -> list[Verdict]:
        fall, share = ratio(TTFT_P50, results["no reuse"], results["cache"]), estimate(CACHED.value, results["cache"])
        return [
            Verdict.above(f"TTFT p50 falls by a factor of {fall:.1f} (at least 2)", fall, 2),
            Verdict.above(f"{share:.1%} of the prompts' tokens come from the cache (at least 80 %)", share, 0.8),
        ]

    def plot(self, axes: "Axes", results: Results, stage: Stage) -> None:
        ecdf(axes, pooled(results, lambda r: r.ttft), "time to first token, s")
        axes.legend()
