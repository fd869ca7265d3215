"""Sweeps of a system given by a formula: it has a fixed number of slots, and its steps take longer the more are in
use."""

import numpy as np

from load_tests.capacity.level import Level, Repeat
from load_tests.capacity.result import USERS, LoadKind, Sweep
from load_tests.capacity.search import Found, boundary
from load_tests.capacity.server_metrics import ServerSample
from load_tests.capacity.timeline import Span, Timeline
from load_tests.records import Record, Run
from load_tests.slo import Slo

SLOTS = 32
OUTPUT_TOKENS = 20
SECONDS = 10.0
SLO = Slo(ttft=0.5, itl=0.1)
SETTINGS = {"model": "SmolLM2-135M-Instruct", "max_num_seqs": "64", "max_num_batched_tokens": "512"}


def record(index: int, sent: float, ttft: float, gap: float) -> Record:
    """An answer of `OUTPUT_TOKENS` that arrive one by one."""
    return Record(
        index=index,
        kind="chat",
        tenant="",
        priority=0,
        prompt_tokens=50,
        max_tokens=OUTPUT_TOKENS,
        target_ttft=None,
        scheduled=sent,
        sent=sent,
        first_token=sent + ttft,
        last_token=sent + ttft + gap * (OUTPUT_TOKENS - 1),
        output_tokens=OUTPUT_TOKENS,
        gaps=(gap,) * (OUTPUT_TOKENS - 1),
        error=None,
    )


def repeat(users: float, started: float, seed: int, *, ours: bool = True) -> Repeat:
    """A run of closed loops."""
    chance = np.random.default_rng(seed)
    gap = 0.02 + 0.001 * min(users, SLOTS)
    service = gap * OUTPUT_TOKENS
    wait = max(0.0, users / SLOTS - 1) * service
    records = []
    for _ in range(round(users)):
        now = float(chance.uniform(0, service + wait))
        while now < SECONDS:
            factor = chance.uniform(0.95, 1.05)
            records.append(record(len(records), now, (gap + wait) * factor, gap * factor))
            now += (service + wait) * factor
    samples = [sample(at, users, 1 / gap) for at in np.arange(0.0, SECONDS, 0.5).tolist()] if ours else []
    return Repeat(Run(records, 0.1), started, 0.3 * SECONDS, SECONDS, samples)


def sample(at: float, users: float, steps_per_second: float) -> ServerSample:
    """The metrics of a server that has been under load for a while."""
    running, steps = min(users, SLOTS), at * steps_per_second
    return ServerSample(
        at=at,
        running=running,
        waiting=users - running,
        cache_usage=0.5 * running / SLOTS,
        prefill_tokens=steps * running * 2,
        decode_tokens=steps * running,
        generated_tokens=steps * running,
        budget_tokens=steps * 512,
        padding_tokens=0,
        steps=steps,
        step_requests=steps * running,
        preemptions=0,
        step_tokens={64.0: steps * 0.5, 128.0: steps, 256.0: steps, float("inf"): steps},
    )


def timeline(requests: int, load: float) -> Timeline:
    """Requests that arrive one after another, wait, and go through prefill and decode."""
    rows = [
        [Span("waiting", at, at + 0.1), Span("prefill", at + 0.1, at + 0.2), Span("decode", at + 0.2, at + 1.5)]
        for at in np.linspace(0, 1.5, requests).tolist()
    ]
    return Timeline(load, 3.0, rows)


def sweep(loads: list[float], *, slo: Slo = SLO, ours: bool = True, kind: LoadKind = USERS) -> Sweep:
    """A sweep of two repeats at each load."""
    levels = []
    for number, load in enumerate(loads):
        repeats = [repeat(load, (2 * number + i) * SECONDS * 1.2, seed=2 * number + i, ours=ours) for i in range(2)]
        levels.append(Level(load, repeats))
    capacity, broken = boundary(levels, lambda level: level.keeps(slo))
    return Sweep(
        kind=kind,
        slo=slo,
        found=Found(levels, capacity, broken, "the objective was broken at 2 levels in a row"),
        about={"workload": "synthetic: requests of 50 tokens for 20", "machine": "2 cores of a formula"},
        settings=SETTINGS if ours else {},
        timeline=timeline(60, loads[-1]) if ours else None,
    )
