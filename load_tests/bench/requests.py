"""The requests that the benchmarks send: random, and the same in every run."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from load_tests.prompts import PlannedRequest
from load_tests.records import Run
from load_tests.workload import WORKLOADS, read_workload

WORKLOAD = WORKLOADS / "uniform.yaml"
# Prompts of their own: a server would find those of the measurement in its prefix cache.
WARM_UP_SEED = 1_000_000
WARM_UP_TOKENS = 8


def bench_requests(count: int, seed: int = 0) -> list[PlannedRequest]:
    """Return that many requests; the same ones for the same seed, and other prompts for another."""
    return list(islice(read_workload(WORKLOAD).requests(seed), count))


def warm_up_requests(count: int) -> list[PlannedRequest]:
    """Return that many requests with short answers, whose prompts no measurement has."""
    requests = bench_requests(count, WARM_UP_SEED)
    return [replace(request, output_tokens=WARM_UP_TOKENS, max_tokens=WARM_UP_TOKENS) for request in requests]


def useful_tokens(requests: Sequence[PlannedRequest]) -> int:
    """Return how many tokens the requests ask for."""
    return sum(request.output_tokens for request in requests)


def static_batches(requests: Sequence[PlannedRequest], size: int) -> list[Sequence[PlannedRequest]]:
    """Cut the requests, in their order, into batches."""
    return [requests[start : start + size] for start in range(0, len(requests), size)]


def batch_steps(batch: Sequence[PlannedRequest]) -> int:
    """Return how many steps a static batch takes: those of its longest output."""
    return max(request.output_tokens for request in batch)


def check_length(wanted: int, given: int) -> None:
    """Raise RuntimeError where an answer is longer or shorter than asked for: its speed would be another's."""
    if given != wanted:
        raise RuntimeError(f"an answer has {given} tokens instead of {wanted}")


def check_complete(run: Run) -> Run:
    """Return a run in which every request was answered in full; raise RuntimeError for another."""
    if errors := run.errors():
        raise RuntimeError(f"requests failed: {', '.join(f'{kind}: {count}' for kind, count in errors.items())}")
    return run
