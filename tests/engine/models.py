"""Helpers that make engines, prompts and parameters, and that run requests."""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inflight import Engine, EngineConfig, RequestOutput, SamplingParams
from inflight.model.loading.loader import LoadedModel
from scripts.reference.tiny_models import VOCABULARY


@dataclass(frozen=True)
class Tiny:
    """A tiny model: its folder, and the model as transformers loads it."""

    folder: Path
    module: Any

    def engine(self, **settings: Any) -> Engine:
        return make_engine(self.folder, **settings)


def make_engine(folder: Path, **settings: Any) -> Engine:
    """An engine on the CPU. By default it runs in float32 with a cache of 1024 tokens in blocks of 8."""
    defaults = {"dtype": "float32", "device": "cpu", "block_size": 8, "kv_cache_tokens": 1024}
    return Engine(EngineConfig(model=str(folder), **{**defaults, **settings}))


def engine_of(loaded: tuple[Path, LoadedModel], **settings: Any) -> Engine:
    """An engine with the same defaults for a model that is loaded already, from this folder."""
    folder, model = loaded
    defaults = {"dtype": "float32", "block_size": 8, "kv_cache_tokens": 1024}
    return Engine(EngineConfig(model=str(folder), **{**defaults, **settings}), model)


def make_prompt(length: int, seed: int = 0) -> list[int]:
    """Random token ids from the vocabulary of the tiny models. Different seeds give different prompts."""
    rng = random.Random(1000 * seed + length)
    return [rng.randrange(3, VOCABULARY) for _ in range(length)]


def greedy(max_tokens: int, **others: Any) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0, **others)


def tokens(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.token_ids for output in outputs]


def alone(engine: Engine, prompt: list[int], params: SamplingParams) -> list[int]:
    """The tokens of a request that runs without neighbours."""
    return engine.generate([prompt], params)[0].token_ids


def cached_in_turns(engine: Engine, other: Engine, prompt: list[int]) -> list[int]:
    """Have a chat of three turns with two engines, which must answer the same. Return how many tokens of each turn the
    first engine had in its cache."""
    cached = []
    for turn in range(3):
        found, wanted = engine.generate([prompt], greedy(12)), other.generate([prompt], greedy(12))
        assert tokens(found) == tokens(wanted)
        cached.append(found[0].num_cached_tokens)
        prompt = [*prompt, *found[0].token_ids, *make_prompt(5, seed=turn)]
    return cached


def drain(engine: Engine) -> dict[str, RequestOutput]:
    """Step until no work is left. Return the finished outputs by request id. No request may finish twice."""
    finished: dict[str, RequestOutput] = {}
    for _ in range(1000):
        if not engine.has_work:
            return finished
        for output in engine.step():
            if output.finished:
                assert output.request_id not in finished
                finished[output.request_id] = output
    raise AssertionError("the engine still has work after 1000 steps")
