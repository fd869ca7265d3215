"""The requests of the benchmarks: random, but the same in every run."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from load_tests.loads import GREEDY
from load_tests.prompts import PlannedRequest
from load_tests.records import Run
from load_tests.workload import WORKLOADS, Workload, read_workload

# A seed of its own, so that the warm-up does not put the measured prompts into the prefix cache.
WARM_UP_SEED = 1_000_000
WARM_UP_TOKENS = 8


def bench_requests(count: int, seed: int = 0, workload: Workload | None = None) -> list[PlannedRequest]:
    """Return `count` requests of a workload, or of the greedy one.

    The same seed gives the same requests, another seed gives other prompts.
    """
    chosen = read_workload(WORKLOADS / f"{GREEDY}.yaml") if workload is None else workload
    return list(islice(chosen.requests(seed), count))


def warm_up_requests(count: int, workload: Workload | None = None) -> list[PlannedRequest]:
    """Return `count` requests with short answers. No measurement uses their prompts, except for shared prefixes."""
    requests = bench_requests(count, WARM_UP_SEED, workload)
    return [replace(request, output_tokens=WARM_UP_TOKENS, max_tokens=WARM_UP_TOKENS) for request in requests]


def useful_tokens(requests: Sequence[PlannedRequest]) -> int:
    """Return how many tokens the requests ask for."""
    return sum(request.output_tokens for request in requests)


def turns(requests: Sequence[PlannedRequest]) -> list[list[PlannedRequest]]:
    """Group the requests by what can be sent at once: the first turns of all chats, then their second turns, and so on.

    A request that is no turn of a chat counts as a first one.
    """
    groups: list[list[PlannedRequest]] = []
    seen: Counter[tuple[str, int]] = Counter()
    for request in requests:
        turn = 0
        if request.chat is not None:
            turn = seen[request.chat]
            seen[request.chat] += 1
        if turn == len(groups):
            groups.append([])
        groups[turn].append(request)
    return groups


def static_batches(requests: Sequence[PlannedRequest], size: int) -> list[Sequence[PlannedRequest]]:
    """Cut the requests into batches, in their order."""
    return [requests[start : start + size] for start in range(0, len(requests), size)]


def batch_steps(batch: Sequence[PlannedRequest]) -> int:
    """Return the number of steps of a static batch, which is the length of its longest output."""
    return max(request.output_tokens for request in batch)


class Incomplete(RuntimeError):
    """An answer is missing, or not as long as it was requested, so that its speed could not be compared."""


def check_length(wanted: int, given: int) -> None:
    """Raise Incomplete if an answer does not have the requested length."""
    if given != wanted:
        raise Incomplete(f"an answer has {given} tokens instead of {wanted}")


def check_complete(run: Run) -> Run:
    """Return the run. Raise Incomplete if a request was not answered completely."""
    if errors := run.errors():
        raise Incomplete(f"requests failed: {', '.join(f'{kind}: {count}' for kind, count in errors.items())}")
    return run
