"""Random requests, some of which are cancelled, on an engine whose steps fail from time to time.

    python -m tests.engine.tensor_parallel.random_requests FOLDER RANKS REQUESTS [SEED]

FOLDER has a model that divides over so many ranks.
"""

import random
import sys
import time
from collections import Counter
from typing import Any

import torch

from inflight import Engine, EngineConfig, SamplingParams
from scripts.reference.tiny_models import VOCABULARY

SETTINGS: dict[str, Any] = {"block_size": 8, "kv_cache_tokens": 512, "max_num_seqs": 64}
"""A cache that is too small for so many requests, so that some are preempted."""
_AT_ONCE = 128


def serve(engine: Engine, count: int, seed: int = 0) -> Counter[str]:
    """Serve `count` requests. Return how many ended with which error or finish reason; each must end once."""
    rng = random.Random(seed)
    unfinished: set[str] = set()
    reasons: Counter[str] = Counter()
    submitted = 0
    while submitted < count or unfinished:
        while submitted < count and len(unfinished) < _AT_ONCE and rng.random() < 0.8:
            prompt = [rng.randrange(3, VOCABULARY) for _ in range(rng.randint(1, 24))]
            params = SamplingParams(
                max_tokens=rng.randint(1, 4),
                temperature=rng.choice((0, 1)),
                seed=submitted,
                prompt_logprobs=rng.choice((None, None, None, 0)),
            )
            unfinished.add(engine.submit(prompt, params))
            submitted += 1
        if unfinished and rng.random() < 0.3:
            engine.cancel(rng.choice(sorted(unfinished)))
        for output in engine.step():
            if output.finished:
                unfinished.remove(output.request_id)
                reasons[output.error or output.finish_reason or ""] += 1
    assert engine.stats().blocks_used == 0
    return reasons


def fail_now_and_then(module: torch.nn.Module, error: Exception, probability: float, seed: int = 0) -> list[int]:
    """Make rank 0 fail in the middle of some steps, in `module`. The returned list grows with each."""
    rng, failures = random.Random(seed), []

    def fail(*_: object) -> None:
        if rng.random() < probability:
            failures.append(1)
            raise error

    module.register_forward_pre_hook(fail)
    return failures


def main() -> None:
    """Print how the requests ended and how long it took."""
    folder, ranks, count, seed = sys.argv[1], *map(int, [*sys.argv[2:], "0"][:3])
    engine = Engine(EngineConfig(model=folder, dtype="float32", tensor_parallel_size=ranks, **SETTINGS))
    # Lacking memory would make the steps shorter and shorter.
    failures = fail_now_and_then(engine.model.module.model.layers[1], RuntimeError("broken"), 0.01, seed)
    begun = time.perf_counter()
    reasons = serve(engine, count, seed)
    steps = engine.stats().steps
    print(f"{count} requests, {steps} steps, {len(failures)} of which failed, in {time.perf_counter() - begun:.0f} s")
    print(dict(reasons))
    engine.close()


if __name__ == "__main__":
    main()
