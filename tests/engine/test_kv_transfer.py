"""Prefill and decode in two engines: the tokens are those of one engine, whatever happens to the transfer."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from inflight import Engine, EngineConfig, InvalidRequest, RequestOptions, SamplingParams
from inflight.kv_transfer.kv_transfer_config import CONNECTORS
from inflight.kv_transfer.kv_transfer_params import KVTransferParams
from inflight.model.loading.loader import LoadedModel, load_model
from tests.engine.models import Tiny, alone, drain, greedy, make_prompt
from tests.eventually import eventually

ASKED = RequestOptions(kv_transfer_params=KVTransferParams(do_remote_decode=True))
PROMPT = make_prompt(43)


class Model:
    """A model that is loaded once."""

    def __init__(self, tiny: Tiny) -> None:
        self._folder = str(tiny.folder)
        self._loaded: LoadedModel = load_model(EngineConfig(model=self._folder, dtype="float32"))

    def engine(self, **settings: Any) -> Engine:
        defaults = {"model": self._folder, "dtype": "float32", "block_size": 8, "kv_cache_tokens": 1024}
        return Engine(EngineConfig(**{**defaults, **settings}), self._loaded)


@pytest.fixture(scope="module")
def model(tiny: Tiny) -> Model:
    return Model(tiny)


@contextmanager
def engines(
    model: Model, connector: str = "tcp", prefill: dict[str, Any] | None = None, **decode: Any
) -> Iterator[Any]:
    """An engine for prompts and one for the rest, with settings of their own."""
    made = [
        model.engine(kv_transfer_config={"kv_role": role, "kv_connector": connector}, **others)
        for role, others in (("kv_producer", prefill or {}), ("kv_consumer", decode))
    ]
    try:
        yield made
    finally:
        for engine in made:
            engine.close()


def offer_of(engine: Engine, prompt: list[int], options: RequestOptions = ASKED) -> KVTransferParams:
    name = engine.submit(prompt, greedy(1), options)
    found = drain(engine)[name].kv_transfer_params
    assert found is not None
    return found


def continued(engine: Engine, prompt: list[int], params: SamplingParams, offer: KVTransferParams) -> list[int]:
    name = engine.submit(prompt, params, RequestOptions(kv_transfer_params=offer))
    return drain(engine)[name].token_ids


def fallbacks(engine: Engine) -> dict[str, int]:
    stats = engine.stats().kv_transfer
    assert stats is not None
    return {reason: count for reason, count in stats.fallbacks.items() if count}


@pytest.mark.parametrize("connector", CONNECTORS)
@pytest.mark.parametrize("length", [1, 7, 8, 9, 43])
def test_only_the_last_token_of_the_prompt_is_computed_again(model: Model, connector: str, length: int) -> None:
    prompt = make_prompt(length)
    params = SamplingParams(max_tokens=12, temperature=1.0, seed=3)
    expected = alone(model.engine(), prompt, params)
    with engines(model, connector) as (prefill, decode):
        assert continued(decode, prompt, params, offer_of(prefill, prompt)) == expected
        assert decode.stats().prefill_tokens == 1
        assert eventually(lambda: prefill.stats().kv_transfer.exported_bytes == 0)
        assert fallbacks(decode) == {}


@pytest.mark.parametrize("connector", CONNECTORS)
def test_only_the_blocks_that_are_not_cached_are_fetched(model: Model, connector: str) -> None:
    longer, params = [*PROMPT, *make_prompt(30, seed=4)], SamplingParams(max_tokens=12, temperature=1.0, seed=3)
    with engines(model, connector) as (prefill, decode):
        continued(decode, PROMPT, greedy(1), offer_of(prefill, PROMPT))
        before = decode.stats().kv_transfer.bytes
        found = continued(decode, longer, params, offer_of(prefill, longer))
        assert found == alone(model.engine(), longer, params)
        after = decode.stats().kv_transfer.bytes
        # Of 10 blocks of 8 tokens, the first 5 were filled by the first request.
        assert after["received"] - before["received"] == 5 * decode._runner.bytes_per_block
        assert after["skipped"] - before["skipped"] == 5 * decode._runner.bytes_per_block
        assert decode.stats().prefill_tokens == 2
        # Now the 9 full blocks are cached, and the last token is computed in any case.
        assert continued(decode, longer, params, offer_of(prefill, longer)) == found
        assert decode.stats().kv_transfer.bytes["received"] == after["received"]
        assert decode.stats().prefill_tokens == 3
        assert eventually(lambda: prefill.stats().kv_transfer.exported_bytes == 0)
        assert fallbacks(decode) == {}


def test_another_tenants_blocks_count_as_missing(model: Model) -> None:
    with engines(model, prefix_caching_per_tenant=True) as (prefill, decode):
        continued(decode, PROMPT, greedy(1), offer_of(prefill, PROMPT))
        asked = replace(ASKED, tenant="other")
        theirs = RequestOptions(tenant="other", kv_transfer_params=offer_of(prefill, PROMPT, asked))
        name = decode.submit(PROMPT, greedy(8), theirs)
        assert drain(decode)[name].token_ids == alone(model.engine(), PROMPT, greedy(8))
        assert decode.stats().kv_transfer.bytes["skipped"] == 0


def test_a_beginning_that_was_evicted_meanwhile_is_computed(model: Model) -> None:
    longer = [*PROMPT, *make_prompt(30, seed=4)]
    with engines(model, kv_cache_tokens=128, max_num_batched_tokens=128) as (prefill, decode):
        continued(decode, PROMPT, greedy(1), offer_of(prefill, PROMPT))
        options = RequestOptions(kv_transfer_params=offer_of(prefill, longer))
        fetched = decode.submitter.fetch(longer, {"a": greedy(8)}, options).result(20)
        assert fetched.imported.first_block == 5
        decode.generate([make_prompt(120, seed=9)], greedy(1))
        decode.submitter.submit_samples(longer, {"a": greedy(8)}, options, fetched=fetched)
        assert drain(decode)["a"].token_ids == alone(model.engine(), longer, greedy(8))
        assert fallbacks(decode) == {"evicted": 1}


def test_requests_with_the_same_prompt_share_what_was_fetched(model: Model) -> None:
    with engines(model, "shared_memory") as (prefill, decode):
        offer = offer_of(prefill, PROMPT)
        each = {name: greedy(6, stop_token_ids=[seed]) for seed, name in enumerate("abc", start=3)}
        decode.submitter.submit_samples(PROMPT, each, RequestOptions(kv_transfer_params=offer))
        outputs = drain(decode)
        for name, params in each.items():
            assert outputs[name].token_ids == alone(model.engine(), PROMPT, params)
        # Each computes its last token, and the others what the first has in a block that is not full.
        assert decode.stats().prefill_tokens <= 3 * (len(PROMPT) % 8)


def test_prompts_are_scored_and_searched_as_in_one_engine(model: Model) -> None:
    each = [
        greedy(4, prompt_logprobs=1),
        SamplingParams(max_tokens=6, beam_width=3),
        greedy(6, repetition_penalty=1.5, frequency_penalty=0.5),
    ]
    with engines(model, "shared_memory") as (prefill, decode):
        for params in each:
            name = decode.submit(PROMPT, params, RequestOptions(kv_transfer_params=offer_of(prefill, PROMPT)))
            found, expected = drain(decode)[name], model.engine().generate([PROMPT], params)[0]
            assert found.token_ids == expected.token_ids
            assert (found.prompt_logprobs is None) == (expected.prompt_logprobs is None)
            assert len(found.prompt_logprobs or ()) == len(expected.prompt_logprobs or ())


def test_nothing_is_fetched_for_a_prompt_whose_tokens_are_scored(model: Model) -> None:
    with engines(model) as (prefill, decode):
        params = greedy(4, prompt_logprobs=1)
        name = decode.submit(PROMPT, params, RequestOptions(kv_transfer_params=offer_of(prefill, PROMPT)))
        assert drain(decode)[name].token_ids == alone(model.engine(), PROMPT, params)
        assert decode.stats().kv_transfer.bytes["received"] == 0
        assert decode.stats().prefill_tokens == len(PROMPT)
        assert eventually(lambda: prefill.stats().kv_transfer.exports["released"] == 1)


SPOILT: dict[str, tuple[str, Callable[[KVTransferParams], KVTransferParams]]] = {
    "unknown": ("unknown", lambda offer: replace(offer, remote_request_id="0" * 32)),
    "layout": ("layout", lambda offer: replace(offer, fingerprint="0" * 32)),
    "forbidden": ("forbidden", lambda offer: replace(offer, remote_host="192.0.2.1")),
    "no one listens": ("unreachable", lambda offer: replace(offer, remote_port=1)),
    "size": ("size", lambda offer: replace(offer, num_tokens=1)),
}


@pytest.mark.parametrize("spoilt", SPOILT)
def test_a_failing_transfer_costs_time_and_nothing_else(model: Model, spoilt: str) -> None:
    reason, spoil = SPOILT[spoilt]
    with engines(model) as (prefill, decode):
        offer = spoil(offer_of(prefill, PROMPT))
        assert continued(decode, PROMPT, greedy(8), offer) == alone(model.engine(), PROMPT, greedy(8))
        assert fallbacks(decode) == {reason: 1}
        assert decode.stats().prefill_tokens == len(PROMPT)


def test_the_wrong_prompt_is_computed(model: Model) -> None:
    other = [*PROMPT[:-1], PROMPT[-1] ^ 1]
    with engines(model) as (prefill, decode):
        assert continued(decode, other, greedy(8), offer_of(prefill, PROMPT)) == alone(model.engine(), other, greedy(8))
        assert fallbacks(decode) == {"prompt": 1}


def test_engines_of_other_block_sizes_compute_for_themselves(model: Model) -> None:
    with engines(model, prefill={"block_size": 16}) as (prefill, decode):
        offer = offer_of(prefill, PROMPT)
        assert continued(decode, PROMPT, greedy(8), offer) == alone(model.engine(), PROMPT, greedy(8))
        assert fallbacks(decode) == {"layout": 1}
        assert eventually(lambda: prefill.stats().kv_transfer.exported_bytes == 0)


def test_the_prefill_engine_may_end_at_any_time(model: Model) -> None:
    with engines(model) as (prefill, decode):
        offer = offer_of(prefill, PROMPT)
        prefill.close()
        assert continued(decode, PROMPT, greedy(8), offer) == alone(model.engine(), PROMPT, greedy(8))
        assert fallbacks(decode) == {"unreachable": 1}


def test_what_was_fetched_survives_the_prefill_engine(model: Model) -> None:
    with engines(model, "shared_memory") as (prefill, decode):
        name = decode.submit(PROMPT, greedy(8), RequestOptions(kv_transfer_params=offer_of(prefill, PROMPT)))
        prefill.close()
        assert drain(decode)[name].token_ids == alone(model.engine(), PROMPT, greedy(8))
        assert decode.stats().prefill_tokens == 1


def test_a_cancelled_request_lets_go_of_what_was_fetched(model: Model) -> None:
    with engines(model) as (prefill, decode):
        name = decode.submit(PROMPT, greedy(8), RequestOptions(kv_transfer_params=offer_of(prefill, PROMPT)))
        assert decode.stats().kv_transfer.imported_bytes > 0
        decode.cancel(name)
        assert drain(decode)[name].finish_reason == "cancelled"
        assert decode.stats().kv_transfer.imported_bytes == 0
        assert decode.stats().blocks_used == 0


def test_requests_need_an_engine_with_the_role(model: Model) -> None:
    with pytest.raises(InvalidRequest, match="kv_transfer_config is not set"):
        model.engine().submit(PROMPT, greedy(1), ASKED)
    with engines(model) as (prefill, decode):
        with pytest.raises(InvalidRequest, match="do_remote_decode, which a kv_producer does"):
            decode.submit(PROMPT, greedy(1), ASKED)
        with pytest.raises(InvalidRequest, match="do_remote_prefill, which a kv_consumer does"):
            prefill.submit(PROMPT, greedy(1), RequestOptions(kv_transfer_params=offer_of(prefill, PROMPT)))
        with pytest.raises(InvalidRequest, match="n is 2; it must be 1 with do_remote_decode"):
            prefill.submitter.submit_samples(PROMPT, {"a": greedy(1), "b": greedy(1)}, ASKED)
        with pytest.raises(InvalidRequest, match="kv_transfer_params is given with a prompt to embed"):
            prefill.submit_embedding(PROMPT, options=ASKED)
