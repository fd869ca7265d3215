"""Scores and embeddings of a real model in bfloat16, by the CPU kernels, beside those in float32."""

import dataclasses

import numpy as np
import pytest
import torch

from inflight import Engine
from inflight.model.cpu.traced_forward import TracedForward
from tests.engine.models import greedy

PROMPTS = [
    "The quick brown fox jumps over the lazy dog, and the dog sleeps on. " * 12,
    "One, two, three",
    "Who was the first person on the moon? The first one was Neil Armstrong, in July of the year 1969.",
    "x",
]


def in_small_steps(engine: Engine) -> Engine:
    return Engine(dataclasses.replace(engine.config, max_num_batched_tokens=48), engine.model)


def scores(engine: Engine) -> torch.Tensor:
    outputs = engine.generate(PROMPTS, greedy(1, prompt_logprobs=1))
    return torch.tensor([entry.chosen for o in outputs for entry in o.prompt_logprobs or () if entry is not None])


def test_scores_are_near_and_do_not_depend_on_chunks(fast: Engine, texts: Engine) -> None:
    assert isinstance(fast.model.forward, TracedForward)
    found = scores(fast)
    assert scores(in_small_steps(fast)).equal(found)
    assert (found - scores(texts)).abs().mean() < 0.05


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_embeddings_are_near_and_do_not_depend_on_chunks(fast: Engine, texts: Engine, pooling: str) -> None:
    found = fast.embed(PROMPTS, pooling=pooling)
    assert np.abs(in_small_steps(fast).embed(PROMPTS, pooling=pooling) - found).max() < 1e-6
    cosines = (found * texts.embed(PROMPTS, pooling=pooling)).sum(axis=1)
    assert cosines.min() > 0.9999
