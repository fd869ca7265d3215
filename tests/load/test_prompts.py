"""Prompts have the lengths and the shared prefixes that the traffic specifies."""

import itertools
from dataclasses import replace

import pytest

from load_tests.prompts import PlannedRequest


def planned(prompt: int, seed: int, *, kind: str = "kind", prefix: int = 0, prefix_tokens: int = 0) -> PlannedRequest:
    return PlannedRequest(0.0, prompt, 1, 1, prefix=prefix, prefix_tokens=prefix_tokens, kind=kind, seed=seed)


@pytest.mark.parametrize(("tokens", "shared"), [(1, 0), (1, 1), (700, 0), (700, 300), (700, 700)])
def test_a_prompt_has_its_length_and_is_the_same_each_time(tokens: int, shared: int) -> None:
    request = planned(tokens, 7, prefix_tokens=shared)
    assert len(request.prompt()) == tokens
    assert request.prompt() == request.prompt()


def test_all_ids_are_in_every_vocabulary_and_none_is_special() -> None:
    ids = planned(50_000, 1).prompt()
    assert min(ids) >= 1_000
    assert max(ids) < 20_000


def test_prompts_are_cut_from_a_text_if_there_is_one() -> None:
    text = range(100, 400)
    for request in (planned(120, 1), planned(120, 2), planned(120, 3, prefix_tokens=120), planned(500, 4)):
        prompt = replace(request, text=text).prompt()
        assert len(prompt) == request.prompt_tokens
        assert set(prompt) <= set(text)
        assert all((after - before) % len(text) == 1 for before, after in itertools.pairwise(prompt))
    shared = [replace(planned(80, seed, prefix_tokens=32), text=text).prompt() for seed in (1, 2)]
    assert shared[0][:32] == shared[1][:32]
    assert shared[0][32:] != shared[1][32:]


def test_only_a_prompt_that_is_all_prefix_is_a_turn_of_a_chat() -> None:
    assert planned(64, 1).chat is None
    assert planned(64, 1, prefix=5, prefix_tokens=32).chat is None
    turns = [planned(tokens, tokens, prefix=5, prefix_tokens=tokens).chat for tokens in (8, 40)]
    assert turns == [("kind", 5)] * 2


def test_nothing_of_the_sampling_is_left_to_the_server() -> None:
    assert planned(8, 1).sampling.items() >= {("temperature", 0.0), ("top_k", 1)}
    sampled = replace(planned(8, 1), temperature=1.0, top_p=0.95).sampling
    filters_off = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
    assert sampled == {"temperature": 1.0, "top_p": 0.95, **filters_off}


def test_prompts_of_other_seeds_differ_from_the_start() -> None:
    first, second = planned(64, 1).prompt(), planned(64, 2).prompt()
    assert sum(a == b for a, b in zip(first, second, strict=True)) < 4


def test_a_prefix_is_shared_by_its_number_within_a_kind() -> None:
    cases = itertools.product(("chat", "code"), (0, 1))
    prompts = [
        planned(64, seed, kind=kind, prefix=prefix, prefix_tokens=32).prompt()[:32]
        for seed, (kind, prefix) in enumerate(cases)
    ]
    assert planned(80, 9, kind="chat", prefix=1, prefix_tokens=32).prompt()[:32] == prompts[1]
    assert len(set(map(tuple, prompts))) == 4


def test_a_turn_begins_with_the_one_before() -> None:
    turns = [planned(tokens, tokens, prefix=2**61, prefix_tokens=tokens).prompt() for tokens in (5, 120, 1333)]
    for earlier, later in itertools.pairwise(turns):
        assert later[: len(earlier)] == earlier
