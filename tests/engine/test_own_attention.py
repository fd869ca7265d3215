"""Models that attend by their own code: how batches are divided, and what settings and failures do to them.

The parity tests compare their tokens with transformers.
"""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BloomConfig,
    DiffLlamaConfig,
    DogeConfig,
    GraniteConfig,
    Llama4TextConfig,
    MptConfig,
    PreTrainedConfig,
)

from inflight import Engine, EngineConfig, UnsupportedModel
from inflight.kv_cache.block_pool import BlockPool
from inflight.kv_cache.block_tables import BlockTables
from inflight.model.batch_arrays import BatchArrays
from inflight.model.cache.kv_tensors import LayerShape, allocate
from inflight.model.cpu.kernels import load_kernels
from inflight.model.loading.loader import LoadedModel, load_model
from inflight.model.own_attention.cache_probe import CachePart
from inflight.model.own_attention.padded_forward import PaddedForward
from inflight.model.own_attention.padded_group import PaddedGroup, divide
from inflight.model.own_attention.paged_cache import PagedCache
from inflight.model.ragged_batch import RaggedBatch
from inflight.request import Request
from inflight.sampling_params import SamplingParams
from inflight.scheduler.plan import ScheduledRequest, StepPlan
from scripts.reference.tiny_models import OWN_ATTENTION, VOCABULARY, save_model
from scripts.reference.tiny_models import greedy as generate
from tests.engine.models import greedy, make_engine, make_prompt, tokens

BLOCK = 4
PROMPTS = [make_prompt(length) for length in (40, 3, 25, 31)]
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}


@pytest.fixture(scope="module", params=["bloom", "bart"])
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, LoadedModel]:
    folder = tmp_path_factory.mktemp(request.param)
    save_model(OWN_ATTENTION[request.param].config, folder)
    return request.param, folder, load_model(EngineConfig(model=str(folder), dtype="float32", max_model_len=256))


def engine_of(loaded: tuple[str, Path, LoadedModel], **settings: Any) -> Engine:
    _, folder, model = loaded
    defaults = {"dtype": "float32", "block_size": 8, "kv_cache_tokens": 1024, "max_model_len": 256}
    return Engine(EngineConfig(model=str(folder), **{**defaults, **settings}), model)


def groups_of(rows: list[tuple[int, int]], *, pads: bool = True) -> list[PaddedGroup]:
    """The groups of rows with so many cached and new tokens."""
    tables = BlockTables(BlockPool(100), BLOCK, prefix_caching=False)
    scheduled = []
    for number, (cached, new) in enumerate(rows):
        request = Request(str(number), make_prompt(cached + new), SamplingParams(), max_tokens=1, seed=0)
        tables.admit(request, tables.prefixes.lookup(request))
        tables.gather([request], [cached + new])
        tables.commit(request, cached)
        scheduled.append(ScheduledRequest.next_of(request, new))
    gathered = tables.gather([s.request for s in scheduled], [s.end for s in scheduled])
    arrays = BatchArrays.of(StepPlan(tuple(scheduled), gathered), BLOCK)
    return list(divide(RaggedBatch.on(torch.device("cpu"), arrays), BLOCK, pads=pads))


def shapes(groups: list[PaddedGroup]) -> list[tuple[int, int, int]]:
    """Rows, new tokens and padded length of each group."""
    return [(*group.tokens.shape, group.mask.shape[1]) for group in groups]


def test_rows_with_equally_many_new_tokens_share_a_group() -> None:
    groups = groups_of([(9, 1), (0, 5), (6, 1), (5, 5), (8, 2)])
    assert shapes(groups) == [(2, 1, 10), (1, 2, 10), (2, 5, 10)]
    assert sorted(token for group in groups for token in group.tokens.flatten().tolist()) == list(range(14))


def test_at_most_half_of_a_group_is_padding() -> None:
    assert shapes(groups_of([(1, 1), (2, 1), (3, 1), (90, 1)])) == [(3, 1, 4), (1, 1, 91)]


def test_without_padding_only_equal_lengths_share_a_group() -> None:
    assert shapes(groups_of([(9, 1), (6, 1), (9, 1), (6, 1)], pads=False)) == [(2, 1, 7), (2, 1, 10)]


def test_padding_reads_slots_of_its_own_row() -> None:
    (group,) = groups_of([(2, 1), (3, 1)])
    assert group.mask.tolist() == [[0, 1, 1, 1], [1, 1, 1, 1]]
    slots = group.context_slots.tolist()
    assert slots[0][0] == slots[0][-1] == group.slots[0]
    assert slots[1][-1] == group.slots[1]
    assert not set(slots[0]) & set(slots[1])


def test_a_cache_may_have_keys_alone() -> None:
    """Mistral Large 4 keeps what it rotates as values. In layers without rotary positions, that is nothing."""
    (group,) = groups_of([(0, 2), (0, 2)])
    (cache,) = allocate([LayerShape(1, 4, 0)], 100, BLOCK, torch.float32, torch.device("cpu"))
    new = torch.arange(16.0).view(2, 1, 2, 4)
    keys, values = PagedCache(group, {CachePart(0, False): cache}).update(new, new[..., :0], 0)
    assert keys.tolist() == new.tolist()
    assert values.shape == (2, 1, 2, 0)


def test_sequences_of_different_lengths_are_decoded_in_one_call_if_padding_changes_nothing(
    loaded: tuple[str, Path, LoadedModel],
) -> None:
    engine, calls = engine_of(loaded), []
    hook = loaded[2].module.register_forward_pre_hook(
        lambda _module, _args, kwargs: calls.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    try:
        engine.generate(PROMPTS, greedy(3, ignore_eos=True))
    finally:
        hook.remove()
    # Prompts have different lengths.
    assert calls[:4] == [(1, 3), (1, 25), (1, 31), (1, 40)]
    assert calls[4:] == {"bloom": [(4, 1)], "bart": [(1, 1)] * 4}[loaded[0]] * 2


def test_turns_of_a_chat_reuse_blocks_and_stay_the_same(loaded: tuple[str, Path, LoadedModel]) -> None:
    engine, calm = engine_of(loaded), engine_of(loaded, enable_prefix_caching=False)
    prompt, cached = make_prompt(30), []
    for turn in range(3):
        found, wanted = engine.generate([prompt], greedy(12)), calm.generate([prompt], greedy(12))
        assert tokens(found) == tokens(wanted)
        cached.append(found[0].num_cached_tokens)
        prompt = [*prompt, *found[0].token_ids, *make_prompt(5, seed=turn)]
    assert cached == [0, 40, 56]


def test_drafts_change_no_tokens(loaded: tuple[str, Path, LoadedModel]) -> None:
    repeating = [prompt * 3 for prompt in PROMPTS]
    wanted = tokens(engine_of(loaded).generate(repeating, greedy(12)))
    drafting = engine_of(loaded, speculative_config={"method": "ngram", "num_speculative_tokens": 3})
    assert tokens(drafting.generate(repeating, greedy(12))) == wanted
    assert drafting.stats().draft_tokens > 0


def test_nan_in_free_blocks_changes_no_output(loaded: tuple[str, Path, LoadedModel]) -> None:
    wanted = tokens(engine_of(loaded).generate(PROMPTS, greedy(12)))
    engine = engine_of(loaded, max_num_batched_tokens=7)
    for cache in engine._runner._caches:
        cache.keys.fill_(math.nan)
        cache.values.fill_(math.nan)
    assert tokens(engine.generate(PROMPTS, greedy(12))) == wanted


def test_scores_of_prompts_are_those_of_transformers(tmp_path: Path) -> None:
    reference = save_model(OWN_ATTENTION["bloom"].config, tmp_path)
    engine = make_engine(tmp_path, max_model_len=256, max_num_batched_tokens=16)
    output = engine.generate([PROMPTS[0]], greedy(1, prompt_logprobs=1))[0]
    with torch.inference_mode():
        rows = reference(torch.tensor([PROMPTS[0]])).logits[0, :-1].log_softmax(dim=-1)
    assert output.prompt_logprobs is not None
    found = [entry.chosen for entry in output.prompt_logprobs if entry is not None]
    assert found == pytest.approx(rows.gather(1, torch.tensor(PROMPTS[0][1:])[:, None])[:, 0].tolist(), abs=1e-4)


@pytest.mark.parametrize(
    ("floor_scale", "pads"),
    [
        (16, False),  # The queries from position 15 on are scaled by their positions, padding included.
        (256, False),
        (257, True),
    ],
)
def test_llama_4_is_not_padded_where_it_scales_queries_by_positions(
    floor_scale: int, pads: bool, tmp_path: Path
) -> None:
    config = OWN_ATTENTION["llama4_text"].config.to_diff_dict()
    model = save_model(Llama4TextConfig(**{**config, "floor_scale": floor_scale, "attn_scale": 1.0}), tmp_path)
    engine = make_engine(tmp_path)
    assert isinstance(engine.model.forward, PaddedForward)
    assert engine.model.forward.pads == pads
    assert tokens(engine.generate(PROMPTS, greedy(20))) == [generate(model, prompt, 20) for prompt in PROMPTS]


@pytest.mark.parametrize(("chosen", "pads"), [(8, False), (48, False), (255, False), (256, True)])
def test_doge_is_not_padded_where_it_chooses_among_tokens(chosen: int, pads: bool, tmp_path: Path) -> None:
    model = save_model(DogeConfig(**SIZES, keep_window_size=chosen), tmp_path)
    with torch.no_grad():
        for layer in model.model.layers:
            # It is zero at first. Then all tokens score the same, and the choice is arbitrary.
            layer.self_attn.A.normal_(0, 0.5)
    model.save_pretrained(tmp_path)
    engine = make_engine(tmp_path)
    assert isinstance(engine.model.forward, PaddedForward)
    assert engine.model.forward.pads == pads
    prompts = [*PROMPTS, make_prompt(70), make_prompt(100)]
    assert tokens(engine.generate(prompts, greedy(12))) == [generate(model, prompt, 12) for prompt in prompts]


@pytest.mark.parametrize(
    "config",
    [GraniteConfig(**SIZES, sliding_window=100), DiffLlamaConfig(**SIZES, sliding_window=64)],
    ids=lambda config: config.model_type,
)
def test_a_window_of_the_cache_that_the_masks_do_not_have_is_refused(config: PreTrainedConfig, tmp_path: Path) -> None:
    save_model(config, tmp_path)
    with pytest.raises(UnsupportedModel, match=r"its own attention cannot be used either.* does not come out right"):
        make_engine(tmp_path)


def test_a_window_of_the_cache_that_is_too_wide_to_try_bounds_the_length(tmp_path: Path) -> None:
    config = {**SIZES, "max_position_embeddings": 1024}
    save_model(DiffLlamaConfig(**config, sliding_window=700), tmp_path)
    assert make_engine(tmp_path).model.max_model_len == 700
    with pytest.raises(ValueError, match="max_model_len is 701; it must be at most 700"):
        make_engine(tmp_path, max_model_len=701)


@pytest.mark.parametrize(("setting", "value"), [("lora_modules", {"a": "nowhere"}), ("tensor_parallel_size", 2)])
def test_settings_that_need_our_attention_are_refused(setting: str, value: Any, tmp_path: Path) -> None:
    save_model(OWN_ATTENTION["llama4_text"].config, tmp_path)
    with pytest.raises(UnsupportedModel, match=f"llama4_text attends by its own code.* {setting}"):
        make_engine(tmp_path, max_model_len=256, **{setting: value})


def test_mpt_names_its_longest_context_in_its_own_way(tmp_path: Path) -> None:
    save_model(MptConfig(vocab_size=VOCABULARY, d_model=64, n_layers=2, n_heads=4, max_seq_len=64), tmp_path)
    assert make_engine(tmp_path).model.max_model_len == 64


def test_a_length_is_asked_for_where_nothing_bounds_it(tmp_path: Path) -> None:
    save_model(BloomConfig(vocab_size=VOCABULARY, hidden_size=64, n_layer=2, n_head=4), tmp_path)
    with pytest.raises(ValueError, match="max_model_len must be given"):
        make_engine(tmp_path)


@pytest.mark.parametrize("name", OWN_ATTENTION)
def test_bfloat16_packs_the_weights(name: str, tmp_path: Path) -> None:
    if not load_kernels():
        pytest.skip("this processor has no kernels")
    save_model(OWN_ATTENTION[name].config, tmp_path)
    engine = make_engine(tmp_path, dtype="bfloat16", max_model_len=256, quantization="int8")
    assert isinstance(engine.model.forward, PaddedForward)
    assert len(engine.generate([PROMPTS[0]], greedy(8, ignore_eos=True))[0].token_ids) == 8
