"""Models that keep a cache of their own for each sequence: reuse, failures, settings, and memory."""

from pathlib import Path
from typing import Any

import pytest
import torch

from inflight import Engine, EngineConfig, UnsupportedModel
from inflight.model.loading.loader import LoadedModel, load_model
from inflight.model.own_cache.cache_size import measure_cache
from inflight.model.own_cache.own_cache_forward import OwnCacheForward
from scripts.reference.tiny_models import OWN_CACHE, SERVED, save_model
from tests.engine.models import cached_in_turns, drain, engine_of, greedy, make_engine, make_prompt, tokens

PROMPTS = [make_prompt(length) for length in (40, 3, 25, 31)]
CHAT = make_prompt(30)


@pytest.fixture(scope="module", params=["minimax", "rwkv"])
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LoadedModel]:
    folder = tmp_path_factory.mktemp(request.param)
    save_model(OWN_CACHE[request.param].config, folder)
    return folder, load_model(EngineConfig(model=str(folder), dtype="float32", max_model_len=256))


def caches_of(engine: Engine) -> dict[int, Any]:
    forward = engine._runner._model.forward
    assert isinstance(forward, OwnCacheForward)
    return forward._caches


def grows(loaded: tuple[Path, LoadedModel]) -> bool:
    (cache,) = loaded[1].states
    return cache.bytes_per_token > 0


def test_turns_of_a_chat_reuse_caches_of_one_size_and_stay_the_same(loaded: tuple[Path, LoadedModel]) -> None:
    cached = cached_in_turns(engine_of(loaded), engine_of(loaded, enable_prefix_caching=False), CHAT)
    assert (cached == [0, 0, 0]) == grows(loaded)


def test_caches_of_requests_that_ended_are_freed(loaded: tuple[Path, LoadedModel]) -> None:
    engine = engine_of(loaded, enable_prefix_caching=False)
    engine.generate(PROMPTS, greedy(4))
    engine.generate([CHAT], greedy(4))
    assert len(caches_of(engine)) == 1


def test_a_step_without_memory_begins_the_caches_anew(loaded: tuple[Path, LoadedModel]) -> None:
    wanted = tokens(engine_of(loaded).generate(PROMPTS, greedy(12)))
    engine, failed = engine_of(loaded), []

    def check(module: torch.nn.Module, arguments: tuple[torch.Tensor, ...]) -> None:
        if len(failed) < 2 and arguments[0].shape[1] > 20:
            failed.append(arguments[0].shape[1])
            raise torch.OutOfMemoryError("no memory")

    # The sequences before it, and the layers before it, have been computed.
    hook = list(loaded[1].module.base_model.children())[1][-1].register_forward_pre_hook(check)
    try:
        assert tokens(engine.generate(PROMPTS, greedy(12))) == wanted
    finally:
        hook.remove()
    assert len(failed) == 2
    assert engine.stats().blocks_used == 0


def test_engines_of_one_model_do_not_share_caches(loaded: tuple[Path, LoadedModel]) -> None:
    engine, other = engine_of(loaded), engine_of(loaded)
    wanted = tokens(engine.generate([CHAT], greedy(12)))
    engine.submit(CHAT, greedy(12), request_id="again")
    other.submit(PROMPTS[0], greedy(30))
    found = {}
    while engine.has_work:
        found |= {output.request_id: output.token_ids for output in engine.step()}
        other.step()
    assert [found["again"]] == wanted


def test_beams_have_caches_of_their_own(loaded: tuple[Path, LoadedModel]) -> None:
    params = greedy(12, beam_width=3, ignore_eos=True)
    wanted = engine_of(loaded).generate([CHAT], params)[0].token_ids
    engine = engine_of(loaded, kv_cache_tokens=152)
    beams = engine.submit(CHAT, params)
    others = [engine.submit(prompt, greedy(12)) for prompt in PROMPTS]
    found = drain(engine)
    assert found[beams].token_ids == wanted
    assert [found[other].token_ids for other in others] == tokens(engine_of(loaded).generate(PROMPTS, greedy(12)))


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("speculative_config", {"method": "ngram"}),
        ("swap_space_tokens", 64),
        ("kv_transfer_config", {"kv_role": "kv_producer"}),
        ("lora_modules", {"a": "nowhere"}),
    ],
)
def test_settings_for_keys_and_values_are_refused(
    loaded: tuple[Path, LoadedModel], setting: str, value: object
) -> None:
    with pytest.raises(
        UnsupportedModel, match=f"has (recurrent states|caches of its own), which do not work with {setting}"
    ):
        make_engine(loaded[0], max_model_len=256, **{setting: value})


def test_memory_for_tokens_bounds_the_kv_cache(loaded: tuple[Path, LoadedModel]) -> None:
    if grows(loaded):
        with pytest.raises(ValueError, match=r"kv_cache_tokens is 10\d*; with \d+ bytes each they take"):
            engine_of(loaded, kv_cache_tokens=10**13)
    else:
        with pytest.raises(ValueError, match=r"max_num_seqs is 10\d*; the recurrent states then take \d+ bytes"):
            engine_of(loaded, max_num_seqs=10**9)


def test_the_size_of_a_cache_is_measured(tmp_path: Path) -> None:
    model = save_model(SERVED["llama"].config, tmp_path)
    # 3 layers with keys and values of 2 heads, each with 16 numbers of 4 bytes.
    assert measure_cache(model, 256) == (0, 3 * 2 * 2 * 16 * 4)
    # One token alone does not show what another one adds.
    assert measure_cache(model, 1) == (3 * 2 * 2 * 16 * 4, 0)


@pytest.mark.parametrize("name", OWN_CACHE)
def test_bfloat16_serves(name: str, tmp_path: Path) -> None:
    save_model(OWN_CACHE[name].config, tmp_path)
    engine = make_engine(tmp_path, dtype="bfloat16", max_model_len=256, max_num_batched_tokens=16)
    assert isinstance(engine.model.forward, OwnCacheForward)
    assert len(engine.generate([CHAT], greedy(8, ignore_eos=True))[0].token_ids) == 8
