"""A seeded sample depends only on its request, not on other requests, chunks, preemption or the prefix cache."""

from typing import Any

import pytest

from inflight import SamplingParams
from tests.engine.models import Tiny, alone, drain, greedy, make_prompt, tokens

PROMPT = make_prompt(45)
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"temperature": 1.0},
    "top_k": {"temperature": 0.9, "top_k": 20},
    "top_p": {"temperature": 1.2, "top_p": 0.8},
    "min_p": {"temperature": 1.5, "min_p": 0.05},
    "everything": {
        "temperature": 0.8,
        "top_k": 30,
        "top_p": 0.9,
        "min_p": 0.01,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.2,
    },
}


def sampling(kind: str, seed: int = 7, max_tokens: int = 24) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, seed=seed, ignore_eos=True, **KINDS[kind])


@pytest.fixture(scope="module")
def expected(tiny: Tiny) -> dict[str, list[int]]:
    """The tokens of each kind of request, alone in a new engine."""
    return {kind: alone(tiny.engine(), PROMPT, sampling(kind)) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_tokens(tiny: Tiny, expected: dict[str, list[int]], kind: str) -> None:
    assert alone(tiny.engine(), PROMPT, sampling(kind)) == expected[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_different_seeds_give_different_tokens(tiny: Tiny, kind: str) -> None:
    engine = tiny.engine()
    samples = [tuple(alone(engine, PROMPT, sampling(kind, seed))) for seed in (0, 1, 7, 2**32, 2**64 - 1)]
    assert len(set(samples)) == len(samples)


def test_without_a_seed_two_samples_differ(tiny: Tiny) -> None:
    params = SamplingParams(max_tokens=24, temperature=1.0)
    first, second = tokens(tiny.engine().generate([PROMPT] * 2, params))
    assert first != second


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("others", [*KINDS, "greedy"])
def test_a_sample_does_not_depend_on_the_other_requests(
    tiny: Tiny, expected: dict[str, list[int]], kind: str, others: str
) -> None:
    engine = tiny.engine()
    beside = [greedy(30) if others == "greedy" else sampling(others, seed, max_tokens=30) for seed in range(3)]
    prompts = [make_prompt(length, seed=length) for length in (5, 30, 12)]
    outputs = engine.generate([*prompts, PROMPT], [*beside, sampling(kind)])
    assert outputs[-1].token_ids == expected[kind]


def test_all_kinds_of_sampling_in_one_batch_give_the_tokens_of_each_alone(
    tiny: Tiny, expected: dict[str, list[int]]
) -> None:
    outputs = tiny.engine().generate([PROMPT] * len(KINDS), [sampling(kind) for kind in KINDS])
    assert dict(zip(KINDS, tokens(outputs), strict=True)) == expected


@pytest.mark.parametrize("budget", [1, 7, 64, 2048])
def test_a_sample_does_not_depend_on_the_chunks_of_its_prompt(
    tiny: Tiny, expected: dict[str, list[int]], budget: int
) -> None:
    engine = tiny.engine(max_num_batched_tokens=budget)
    assert alone(engine, PROMPT, sampling("plain")) == expected["plain"]
    assert engine.stats().steps == -(-45 // budget) + 23


@pytest.mark.parametrize("caching", [True, False])
def test_a_sample_does_not_depend_on_the_prefix_cache(
    tiny: Tiny, expected: dict[str, list[int]], caching: bool
) -> None:
    engine = tiny.engine(enable_prefix_caching=caching)
    for _ in range(2):
        assert alone(engine, PROMPT, sampling("plain")) == expected["plain"]
    assert (engine.stats().cached_tokens > 0) == caching


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_does_not_depend_on_preemption(tiny: Tiny, expected: dict[str, list[int]], kind: str) -> None:
    engine = tiny.engine(kv_cache_tokens=120)
    prompts = {str(seed): make_prompt(45, seed=seed) for seed in range(3)} | {"ours": PROMPT}
    for name, prompt in prompts.items():
        engine.submit(prompt, sampling(kind), request_id=name)
    assert drain(engine)["ours"].token_ids == expected[kind]
    assert engine.stats().preemptions > 0


def test_the_same_prompt_and_seed_twice_in_a_batch_give_the_same_tokens(
    tiny: Tiny, expected: dict[str, list[int]]
) -> None:
    assert tokens(tiny.engine().generate([PROMPT] * 3, sampling("top_p"))) == [expected["top_p"]] * 3
