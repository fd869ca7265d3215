"""A token budget that follows the step-time model, compared with fixed budgets, under an objective for inter-token
latency."""

from typing import TYPE_CHECKING

from load_tests.experiments.chunked_prefill import chat_and_documents
from load_tests.experiments.estimate import estimate, ratio
from load_tests.experiments.experiment import Arm, Experiment, Results
from load_tests.experiments.stage import Stage
from load_tests.experiments.verdict import Verdict
from load_tests.simulate.plots import gap_ecdf
from load_tests.simulate.report import ITL_P50, ITL_P99, THROUGHPUT, TTFT_MEAN, TTFT_P99, Column, goodput

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FIXED = (128, 256, 512, 2048)
TARGET_TOKENS = 512
SLACK = 1.1
"""The factor by which p99 may exceed the target."""


class TokenBudgets(Experiment):
    """Chat requests share the machine with long documents, as in the experiment on chunked prefill."""

    name = "token_budget"
    title = "Inter-token latency by token budget; the target is the dashed line"
    claim = (
        "The token budget decides between the time between tokens and the time to first token. One that follows a "
        "step-time model meets the objective without being tuned, and gives prompts as much as the best fixed one that "
        "meets it"
    )
    source = "Sarathi-Serve (OSDI'24), section 4.3, where the budget is profiled once"

    def target(self, stage: Stage) -> float:
        """Target for the seconds between tokens: a step of about 512 tokens, plus the keys that its decodes read."""
        cost = stage.cost
        tokens, cached = stage.tokens(TARGET_TOKENS), stage.max_num_seqs * stage.tokens(512)
        return cost.per_step + cost.per_token * tokens + cost.per_cached_token * cached

    def arms(self, stage: Stage, seed: int) -> list[Arm]:
        arrivals = chat_and_documents(stage, self.requests, seed)
        adaptive = {
            "token_budget": "adaptive",
            "target_itl_ms": 1e3 * self.target(stage),
            "max_num_batched_tokens": stage.tokens(FIXED[-1]),
        }
        fixed = [Arm(f"fixed {b}", arrivals, {"max_num_batched_tokens": stage.tokens(b)}) for b in FIXED]
        return [*fixed, Arm("adaptive", arrivals, adaptive)]

    def columns(self, stage: Stage) -> list[Column]:
        return [THROUGHPUT, TTFT_MEAN, TTFT_P99, ITL_P50, ITL_P99, goodput(stage.slo)]

    def verdicts(self, results: Results, stage: Stage) -> list[Verdict]:
        target = 1e3 * self.target(stage)
        found = {label: estimate(ITL_P99.value, runs) for label, runs in results.items()}
        met = [label for label in results if label != "adaptive" and found[label].mean <= SLACK * target]
        # A smaller budget is better for the time between tokens, so the smallest stands in where none meets the target.
        waits = {label: estimate(TTFT_MEAN.value, results[label]).mean for label in met or ["fixed 128"]}
        best = min(waits, key=lambda label: waits[label])
        wait = ratio(TTFT_MEAN, results["adaptive"], results[best])
        return [
            Verdict.below(
                f"adaptive: ITL p99 {found['adaptive']:.1f} ms, target {target:.1f} ms (at most 10 % over)",
                found["adaptive"],
                SLACK * target,
            ),
            Verdict.below(
                f"adaptive: mean TTFT {wait:.3f} times that of the best fixed budget that meets the target, {best} "
                "(at most 10 % more)",
                wait,
                SLACK,
            ),
        ]

    def plot(self, axes: "Axes", results: Results, stage: Stage) -> None:
        gap_ecdf(axes, results)
        axes.axvline(1e3 * self.target(stage), color="black", ls="--")
        axes.legend()
