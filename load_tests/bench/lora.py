"""`make bench-lora`: what LoRA adapters cost.

Two engines take turns in process, one without adapters and one with eight of rank 16 on all linear layers, with random
weights. Users send a prompt each at the same time, and get as many tokens. With adapters loaded, none of the requests,
or each, asks for one: all for the same, or for eight in turn.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from tqdm import tqdm
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from inflight import Engine, EngineConfig, RequestOptions, SamplingParams
from load_tests.model_options import add_model_options, model_folder, model_name
from load_tests.option_types import count
from scripts.launch.errors import LauncherError
from scripts.reference.random_adapter import RandomAdapter

ADAPTERS, RANK = 8, 16
USERS = (1, 8, 32)
ROUNDS = 7
TOKENS = 48
PROMPT = 64
WITHOUT, NONE, ONE, EACH = "no adapters", "loaded, none used", "one adapter", "eight adapters"
_USED = {WITHOUT: 0, NONE: 0, ONE: 1, EACH: ADAPTERS}
"""How many different adapters the requests of each arm use."""


def adapters(folder: Path, model: Path) -> dict[str, str]:
    """Write the adapters for a model, and return the setting `lora_modules`."""
    module = AutoModelForCausalLM.from_pretrained(model, dtype="bfloat16")
    saved = {}
    for seed in range(ADAPTERS):
        adapter = RandomAdapter(rank=RANK, alpha=RANK, seed=seed, size=0.01)
        saved[f"adapter-{seed}"] = adapter.save(folder / str(seed), module)
    return saved


def rate(engine: Engine, users: int, used: int, seed: int) -> float:
    """Output tokens per second of requests that begin together. Their prompts are new for each seed."""
    prompts = np.random.default_rng(seed).integers(3, engine.model.vocab_size, (users, PROMPT)).tolist()
    params = SamplingParams(max_tokens=TOKENS, temperature=0, ignore_eos=True)
    begun = time.perf_counter()
    for user, prompt in enumerate(prompts):
        name = f"adapter-{user % used}" if used else ""
        engine.submit(prompt, params, RequestOptions(lora_name=name))
    while engine.has_work:
        engine.step()
    return users * TOKENS / (time.perf_counter() - begun)


def measure(model: Path, rounds: int) -> list[str]:
    """A line for each number of users: tokens per second without adapters, and ratios to it."""
    common: dict[str, Any] = {
        "model": str(model),
        "dtype": "bfloat16",
        "kv_cache_tokens": 16_384,
        "enable_prefix_caching": False,
    }
    with tempfile.TemporaryDirectory() as folder:
        plain = Engine(EngineConfig(**common))
        adapted = Engine(EngineConfig(**common, lora_modules=adapters(Path(folder), model)))
    rates: dict[tuple[int, str], list[float]] = {(users, arm): [] for users in USERS for arm in _USED}
    turns = [(users, seed, arm) for users in USERS for seed in range(rounds + 1) for arm in _USED]
    for users, seed, arm in tqdm(turns, desc="turns"):
        found = rate(plain if arm == WITHOUT else adapted, users, _USED[arm], seed)
        if seed:  # The first turn warms up.
            rates[users, arm].append(found)
    lines = []
    for users in USERS:
        base, *others = (np.array(rates[users, arm]) for arm in _USED)
        ratios = (f"{median((other / base).tolist()):.2f}" for other in others)
        lines.append(f"| {users} | {median(base.tolist()):.0f} | {' | '.join(ratios)} |")
    return lines


def main() -> int:
    """Measure, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_options(parser)
    parser.add_argument("--rounds", type=count, default=ROUNDS, help="turns of each engine (%(default)s)")
    options = parser.parse_args()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        lines = measure(model_folder(options), options.rounds)
    except (LauncherError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{model_name(options)}: tokens/s, and ratios to {WITHOUT}\n")
    print(f"| Users | {' | '.join(_USED)} |\n|{'---:|' * (len(_USED) + 1)}")
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
