"""`make bench-speculation`: what speculative decoding gains where answers copy from prompts, and costs elsewhere.

Engines over the same loaded model, with and without drafts, take turns in process. In a turn, each user sends a few
requests, one after the other. Time and tokens count until the first user is done, so that the number of users is always
the same. All must give the same tokens. Gaps are the times between two pieces of an output; a piece may be
several tokens.

A model with random weights copies nothing. So under the loads `replayed`, requests bring their answers as drafts, with
a tenth of the tokens replaced.
"""

import argparse
import itertools
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from tqdm import tqdm
from transformers.utils import logging

from inflight import Engine, EngineConfig, RequestOptions, SamplingParams
from load_tests.bench.copying import COPYING, PROMPTS
from load_tests.model_options import add_model_options, model_folder, model_name
from load_tests.option_types import count, read_levels
from scripts.launch.errors import LauncherError

USERS = (1, 8, 32, 64)
TOKENS = {1: 128, 8: 96, 32: 64, 64: 48}
REQUESTS = 3  # Of each user in a turn.
SAMPLED = {"temperature 1": {"temperature": 1.0, "top_p": 1.0, "top_k": 0}}
HEADER = (
    "| Load | Users | Tokens/s without | With | Ratio | Tokens a step and user | Drafted tokens that were right "
    "| Gap p99, with to without |\n|---|---:|---:|---:|---:|---:|---:|---:|\n"
)


@dataclass
class Turns:
    """What the turns of one engine under one load showed."""

    rates: list[float] = field(default_factory=list)
    """Tokens per second of each turn."""
    gaps: list[float] = field(default_factory=list)
    """Seconds."""
    outputs: list[list[int]] = field(default_factory=list)
    """The tokens of the last turn."""
    drafted: int = 0
    accepted: int = 0
    tokens: int = 0
    decodes: int = 0
    """Steps, each counted once for each request that got tokens in it."""


@dataclass(frozen=True)
class Load:
    """Requests that begin at once."""

    name: str
    kinds: Sequence[str]
    sampling: dict[str, Any]
    replaced: float | None = None
    """The share of tokens that are wrong in the drafts which requests bring. None: they bring none."""

    def drafts(self, outputs: Sequence[Sequence[int]], turn: int) -> list[RequestOptions]:
        """The options of a turn's requests, whose answers are known. A wrong token is one of another answer's."""
        if self.replaced is None:
            return [RequestOptions()] * len(outputs)
        chance, tokens = np.random.default_rng(turn), np.concatenate(outputs)
        options = []
        for output in outputs:
            wrong = chance.random(len(output)) < self.replaced
            draft = np.where(wrong, chance.choice(tokens, len(output)), output)
            options.append(RequestOptions(draft_input_ids=tuple(draft.tolist())))
        return options

    def prompts(self, numbers: Sequence[int]) -> list[str]:
        """A prompt for each number, of each kind in turn."""
        return [PROMPTS[self.kinds[place % len(self.kinds)]](number) for place, number in enumerate(numbers)]


LOADS = [
    Load("copying, greedy", COPYING, {"temperature": 0}),
    Load("copying, temperature 1", COPYING, SAMPLED["temperature 1"]),
    Load("stories, greedy", ["story"], {"temperature": 0}),
    Load("stories, temperature 1", ["story"], SAMPLED["temperature 1"]),
    Load("long prompts, temperature 1", ["long"], SAMPLED["temperature 1"]),
    Load("replayed, greedy", ["story"], {"temperature": 0}, replaced=0.1),
    Load("replayed, temperature 1", ["story"], SAMPLED["temperature 1"], replaced=0.1),
]


def run_turn(
    engine: Engine,
    prompts: Sequence[str],
    options: Sequence[RequestOptions],
    params: dict[str, Any],
    users: int,
    seen: Turns,
) -> None:
    """Serve the requests of a turn, `users` at a time, and add what it shows."""
    before, begun = engine.stats(), time.perf_counter()
    most = TOKENS.get(users, 64)
    ids: list[str] = []
    last: dict[str, float] = {}
    outputs: dict[str, list[int]] = {}
    is_measured = False
    while len(outputs) < len(prompts):
        for number in range(len(ids), min(len(outputs) + users, len(prompts))):
            # Of several lengths, so that users do not all begin anew at once.
            tokens = most - number % 8 * most // 16
            sampling = SamplingParams(max_tokens=tokens, ignore_eos=True, seed=number, **params)
            ids.append(engine.submit(prompts[number], sampling, options[number]))
        changed = engine.step()
        now = time.perf_counter()
        for output in changed:
            if output.request_id in last:
                seen.gaps.append(now - last[output.request_id])
                seen.decodes += 1
            last[output.request_id] = now
            if output.finished:
                outputs[output.request_id] = list(output.token_ids)
        if not is_measured and len(prompts) - len(outputs) < users:
            is_measured = True
            seen.rates.append((engine.stats().output_tokens - before.output_tokens) / (now - begun))
    after = engine.stats()
    seen.outputs = [outputs[name] for name in ids]
    seen.tokens += sum(map(len, seen.outputs)) - len(ids)
    seen.drafted += after.draft_tokens - before.draft_tokens
    seen.accepted += after.accepted_draft_tokens - before.accepted_draft_tokens


def row(load: Load, users: int, plain: Turns, drafting: Turns) -> str:
    """A row of the table."""
    without, with_drafts = median(plain.rates), median(drafting.rates)
    gaps = np.percentile(drafting.gaps, 99) / np.percentile(plain.gaps, 99)
    right = f"{100 * drafting.accepted / drafting.drafted:.0f} %" if drafting.drafted else ""
    return (
        f"| {load.name} | {users} | {without:.0f} | {with_drafts:.0f} | {with_drafts / without:.2f} | "
        f"{drafting.tokens / drafting.decodes:.2f} | {right} | {gaps:.2f} |"
    )


def engine_config(folder: Path) -> EngineConfig:
    """The settings of the engines without drafts."""
    # Some prompts begin alike, and a cache would have more of them in each load than in the one before.
    return EngineConfig(
        model=str(folder),
        dtype="bfloat16",
        kv_cache_tokens=64 * 1280,
        token_budget="adaptive",
        enable_prefix_caching=False,
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-speculation", description=__doc__)
    add_model_options(parser)
    parser.add_argument("--users", type=read_levels, default=list(USERS))
    parser.add_argument("--turns", type=count, default=4, help="turns of each engine under each load; the default is 4")
    parser.add_argument(
        "--config", type=json.loads, default={"method": "ngram"}, metavar="JSON", help="speculative_config"
    )
    options = parser.parse_args()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    config = engine_config(model_folder(options))
    plain = Engine(config)
    drafting = Engine(replace(config, speculative_config=options.config), plain.model)
    # Turns without drafts come both before and after, so that a machine that gets slower favours nobody.
    plain_too = Engine(config, plain.model)
    print(f"{model_name(options)}, speculative_config {json.dumps(options.config)}\n\n{HEADER}", end="", flush=True)
    work = [(load, users) for load in LOADS for users in options.users]
    # A drafter may know what earlier loads were answered, so each request has a number of its own.
    numbers = itertools.count()
    for load, users in tqdm(work, desc="loads"):
        found = Turns(), Turns()
        for turn in range(options.turns):
            prompts = load.prompts(list(itertools.islice(numbers, REQUESTS * users)))
            none = [RequestOptions()] * len(prompts)
            run_turn(plain, prompts, none, load.sampling, users, found[0])
            run_turn(drafting, prompts, load.drafts(found[0].outputs, turn), load.sampling, users, found[1])
            run_turn(plain_too, prompts, none, load.sampling, users, found[0])
            if found[0].outputs != found[1].outputs:
                sys.exit(f"{load.name}, {users} users: drafts changed an output")
        tqdm.write(row(load, users, *found), file=sys.stdout)


if __name__ == "__main__":
    try:
        main()
    except (LauncherError, ValueError) as error:
        sys.exit(f"error: {error}")
