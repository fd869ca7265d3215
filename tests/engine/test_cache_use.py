"""Requests allocate and free KV cache blocks, share those of equal prefixes, and are preempted when none is free."""

import pytest

from inflight import RequestOptions
from tests.engine.models import Tiny, alone, drain, greedy, make_prompt, tokens

PREFIX = make_prompt(40)


def test_a_request_takes_blocks_as_it_grows_and_frees_them_at_its_end(tiny: Tiny) -> None:
    engine = tiny.engine(block_size=8, kv_cache_tokens=64)
    used = []
    engine.submit(make_prompt(15), greedy(11), request_id="a")
    while engine.has_work:
        before = engine.stats()
        engine.step()
        stats = engine.stats()
        assert stats.blocks_used + stats.blocks_free == stats.blocks_total == 8
        assert stats.steps == before.steps + 1
        used.append(stats.blocks_used)
    # The request has 15 tokens after the first step, then 16, then ten more. The last of them is never computed.
    assert used == [2, 2, 3, 3, 3, 3, 3, 3, 3, 3, 0]


def test_only_full_blocks_stay_in_the_prefix_cache(tiny: Tiny) -> None:
    engine = tiny.engine(block_size=8)
    alone(engine, make_prompt(15), greedy(3))
    stats = engine.stats()
    assert (stats.blocks_used, stats.blocks_cached) == (0, 2)


@pytest.mark.parametrize("caching", [True, False])
def test_a_shared_prefix_is_computed_once_if_prefix_caching_is_on(tiny: Tiny, caching: bool) -> None:
    engine = tiny.engine(enable_prefix_caching=caching)
    prompts = [PREFIX + make_prompt(5, seed=i) for i in range(3)]
    outputs = [engine.generate(prompt, greedy(10))[0] for prompt in prompts]
    expected = tokens(tiny.engine(enable_prefix_caching=False).generate(prompts, greedy(10)))
    assert tokens(outputs) == expected
    cached = [0, 40, 40] if caching else [0, 0, 0]
    assert [output.num_cached_tokens for output in outputs] == cached
    stats = engine.stats()
    assert (stats.prompt_tokens, stats.cached_tokens) == (3 * 45, sum(cached))
    assert stats.computed_tokens == 3 * 45 + 3 * 9 - sum(cached)
    assert (stats.blocks_cached > 0) == caching


@pytest.mark.parametrize(
    ("settings", "cached"),
    [({}, [0, 0, 40, 0, 40]), ({"prefix_caching_per_tenant": False}, [0, 40, 40, 40, 40])],
    ids=["by default", "if allowed"],
)
def test_tenants_share_no_prefixes_unless_the_operator_allows_it(
    tiny: Tiny, settings: dict[str, bool], cached: list[int]
) -> None:
    engine = tiny.engine(**settings)
    outputs = []
    for tenant in ("a", "b", "a", "", ""):
        name = engine.submit(PREFIX + make_prompt(5), greedy(3), RequestOptions(tenant=tenant))
        outputs.append(drain(engine)[name])
    assert [output.num_cached_tokens for output in outputs] == cached


def test_a_running_request_shares_its_prefix_with_a_new_request(tiny: Tiny) -> None:
    engine = tiny.engine()
    prompts = {name: PREFIX + make_prompt(3, seed=ord(name)) for name in "ab"}
    expected = {name: alone(tiny.engine(), prompt, greedy(8)) for name, prompt in prompts.items()}
    engine.submit(prompts["a"], greedy(8), request_id="a")
    engine.step()
    engine.submit(prompts["b"], greedy(8), request_id="b")
    engine.step()
    # The requests share five blocks and have one more each.
    assert engine.stats().blocks_used == 7
    finished = drain(engine)
    assert {name: output.token_ids for name, output in finished.items()} == expected
    assert finished["b"].num_cached_tokens == 40
    assert engine.stats().blocks_used == 0


def test_a_fully_cached_prompt_still_computes_its_last_token(tiny: Tiny) -> None:
    engine = tiny.engine()
    first, second = (engine.generate(PREFIX, greedy(6))[0] for _ in range(2))
    assert second.token_ids == first.token_ids
    assert second.num_cached_tokens == 32


def test_the_next_turn_of_a_conversation_reuses_the_cached_answer(tiny: Tiny) -> None:
    engine = tiny.engine()
    answer = alone(engine, PREFIX, greedy(20))
    follow_up = PREFIX + answer + make_prompt(6)
    (output,) = engine.generate(follow_up, greedy(6))
    assert output.num_cached_tokens == 56
    assert output.token_ids == alone(tiny.engine(), follow_up, greedy(6))


def test_preempted_requests_give_the_same_tokens_and_repeat_none(tiny: Tiny) -> None:
    prompts = [make_prompt(10 + i, seed=i) for i in range(6)]
    expected = [alone(tiny.engine(), prompt, greedy(40)) for prompt in prompts]
    engine = tiny.engine(kv_cache_tokens=96, enable_prefix_caching=False)
    seen: dict[str, list[int]] = {}
    for i, prompt in enumerate(prompts):
        engine.submit(prompt, greedy(40), request_id=str(i))
    while engine.has_work:
        for output in engine.step():
            # An output grows by one token at a time and never changes its earlier tokens.
            assert output.token_ids[:-1] == seen.get(output.request_id, [])
            seen[output.request_id] = list(output.token_ids)
    assert [seen[str(i)] for i in range(6)] == expected
    stats = engine.stats()
    assert stats.preemptions > 0
    assert stats.generated_tokens == 6 * 40
    # The tokens of preempted requests were computed again.
    assert stats.computed_tokens > sum(map(len, prompts)) + 6 * 39
    assert stats.prompt_tokens == sum(map(len, prompts))
    assert stats.blocks_used == 0


def test_a_request_that_fills_the_cache_to_the_last_slot_is_served(tiny: Tiny) -> None:
    engine = tiny.engine(kv_cache_tokens=32)
    # 10 + 23 tokens fit into 32 slots, because the last token is never computed.
    assert alone(engine, make_prompt(10), greedy(23)) == alone(tiny.engine(), make_prompt(10), greedy(23))
    assert engine.stats().preemptions == 0


def test_new_requests_evict_the_oldest_cached_prefixes(tiny: Tiny) -> None:
    engine = tiny.engine(kv_cache_tokens=64)
    for seed in range(6):
        prompt = make_prompt(40, seed=seed)
        assert alone(engine, prompt, greedy(8)) == alone(tiny.engine(), prompt, greedy(8))
    stats = engine.stats()
    assert (stats.preemptions, stats.cached_tokens, stats.blocks_used) == (0, 0, 0)
    # The newest prefix is still cached, but the oldest was evicted.
    assert [engine.generate(make_prompt(40, seed=seed), greedy(1))[0].num_cached_tokens for seed in (5, 0)] == [32, 0]
