"""Requests with LoRA adapters: each gets the tokens of the model with its adapter merged into the weights."""

import copy
import dataclasses
import json
import math
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from inflight import Engine, EngineConfig, InvalidRequest, RequestOptions, RequestOutput, SamplingParams
from inflight.errors import UnsupportedModel
from inflight.model.cpu.traced_forward import TracedForward
from inflight.model.loading.loader import LoadedModel, load_model
from inflight.model.lora.adapter_weights import read_adapter
from inflight.model.routed_forward import RoutedForward
from scripts.reference.random_adapter import RandomAdapter
from scripts.reference.tiny_models import SERVED, save_model
from scripts.reference.tiny_models import greedy as generate
from tests.engine.models import Tiny, drain, greedy, make_engine, make_prompt

ONE = RandomAdapter(rank=4, alpha=16, seed=1)
TWO = RandomAdapter(rank=24, alpha=8, seed=2, layers=("q_proj", "down_proj", "v_proj"), size=0.5)
ADAPTERS = {"one": ONE, "two": TWO}
TOKENS = 12


def save_adapters(folder: Path, module: Any) -> dict[str, str]:
    return {name: adapter.save(folder / name, module) for name, adapter in ADAPTERS.items()}


def ask(
    engine: Engine, asked: Sequence[tuple[list[int], str]], params: SamplingParams, **options: Any
) -> list[list[int]]:
    """The tokens of requests that run together, each with the adapter that it names."""
    ids = [engine.submit(prompt, params, RequestOptions(lora_name=name, **options)) for prompt, name in asked]
    outputs = drain(engine)
    return [outputs[each].token_ids for each in ids]


def merged(module: Any, prompt: list[int], name: str) -> list[int]:
    """What transformers says with the adapter in the weights."""
    if not name:
        return generate(module, prompt, TOKENS)
    with ADAPTERS[name].merged_into(module):
        return generate(module, prompt, TOKENS)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "gemma2", "olmo2", "cohere2", "gpt_oss"])
def test_each_request_of_a_batch_has_its_own_adapter(kind: str, tmp_path: Path) -> None:
    module = save_model(SERVED[kind].config, tmp_path)
    modules = save_adapters(tmp_path / "adapters", module)
    engine = make_engine(tmp_path, lora_modules=modules, max_num_batched_tokens=16)
    asked = [(make_prompt(length), name) for length in (5, 20, 33) for name in ("", "one", "two")]
    found = ask(engine, asked, greedy(TOKENS))
    assert found == [merged(module, prompt, name) for prompt, name in asked]
    assert len({tuple(each) for each in found[-3:]}) == 3


@pytest.fixture(scope="module")
def modules(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return save_adapters(tmp_path_factory.mktemp("adapters"), tiny.module)


@pytest.fixture(scope="module")
def loaded(tiny: Tiny, modules: dict[str, str]) -> LoadedModel:
    return load_model(EngineConfig(model=str(tiny.folder), dtype="float32", lora_modules=modules))


@pytest.mark.parametrize(
    "settings",
    [
        {"kv_cache_tokens": 96, "preemption_mode": "recompute"},
        {"kv_cache_tokens": 96, "swap_space_tokens": 320, "preemption_mode": "swap"},
        {"enable_prefix_caching": False},
        {"speculative_config": {"method": "ngram", "adaptive": False}},
    ],
)
def test_adapters_come_through_preemption_swapping_and_drafts(
    tiny: Tiny, loaded: LoadedModel, modules: dict[str, str], settings: dict[str, Any]
) -> None:
    config = EngineConfig(
        model=str(tiny.folder),
        **{"dtype": "float32", "block_size": 8, "kv_cache_tokens": 1024, "lora_modules": modules, **settings},
    )
    engine = Engine(config, loaded)
    asked = [(make_prompt(length), name) for length in (6, 14, 23) for name in ("one", "", "two")]
    found = ask(engine, asked, greedy(TOKENS))
    assert found == [merged(tiny.module, prompt, name) for prompt, name in asked]
    if "kv_cache_tokens" in settings:
        assert engine.stats().preemptions > 0


def test_cached_prefixes_belong_to_an_adapter(tiny: Tiny, loaded: LoadedModel, modules: dict[str, str]) -> None:
    engine = make_engine(tiny.folder, lora_modules=modules)
    prompt = make_prompt(40)
    for name, cached in (("one", 0), ("two", 0), ("", 0), ("one", 32), ("two", 32), ("", 32)):
        engine.submit(prompt, greedy(TOKENS), RequestOptions(lora_name=name))
        (output,) = drain(engine).values()
        assert output.num_cached_tokens == cached
        assert output.token_ids == merged(tiny.module, prompt, name)


def test_samples_beams_and_embeddings_have_the_adapter(
    tiny: Tiny, loaded: LoadedModel, modules: dict[str, str]
) -> None:
    engine, prompt = Engine(make_engine(tiny.folder, lora_modules=modules).config, loaded), make_prompt(20)
    options = RequestOptions(lora_name="one")
    with ONE.merged_into(tiny.module), torch.inference_mode():
        beams = tiny.module.generate(
            torch.tensor([prompt]), max_new_tokens=TOKENS, num_beams=3, do_sample=False, pad_token_id=0
        )[0, len(prompt) :].tolist()
        state = tiny.module.model(torch.tensor([prompt])).last_hidden_state[0, -1]
    found = ask(engine, [(prompt, "one")], SamplingParams(max_tokens=TOKENS, beam_width=3))
    assert found == [beams]
    engine.submitter.submit_samples(prompt, {name: greedy(TOKENS) for name in "abc"}, options)
    assert {tuple(output.token_ids) for output in drain(engine).values()} == {tuple(merged(tiny.module, prompt, "one"))}
    engine.submit_embedding(prompt, None, options)
    (output,) = drain(engine).values()
    assert output.embedding is not None
    np.testing.assert_allclose(output.embedding, (state / state.norm()).numpy(), atol=1e-5)


def test_a_draft_model_drafts_without_adapters(tiny: Tiny, modules: dict[str, str], tmp_path: Path) -> None:
    smaller = copy.deepcopy(SERVED["llama"].config)
    smaller.num_hidden_layers = 1  # The adapters change more layers.
    save_model(smaller, tmp_path)
    engine = make_engine(
        tiny.folder,
        lora_modules=modules,
        speculative_config={"method": "draft_model", "model": str(tmp_path), "num_speculative_tokens": 3},
    )
    asked = [(make_prompt(length), name) for length in (6, 23) for name in ("one", "", "two")]
    assert ask(engine, asked, greedy(TOKENS)) == [merged(tiny.module, prompt, name) for prompt, name in asked]


def test_unknown_adapters_are_refused(tiny: Tiny, loaded: LoadedModel, modules: dict[str, str]) -> None:
    engine = Engine(make_engine(tiny.folder, lora_modules=modules).config, loaded)
    with pytest.raises(InvalidRequest, match="lora_name is 'three'; it must be one of one, two"):
        engine.submit([5], None, RequestOptions(lora_name="three"))
    assert not engine.has_work
    plain = make_engine(tiny.folder)
    with pytest.raises(InvalidRequest, match="neither lora_modules nor lora_folder is set"):
        plain.submit([5], None, RequestOptions(lora_name="one"))


# -- what PEFT writes, and what of it is refused ---------------------------------------------------------------------


def test_scales_and_patterns_are_those_of_peft(tiny: Tiny, tmp_path: Path) -> None:
    """rsLoRA divides by the root of the rank. A pattern sets alpha of some layers."""
    rooted = dataclasses.replace(ONE, alpha=8, config={"use_rslora": True})
    pattern = dataclasses.replace(ONE, alpha=2, config={"alpha_pattern": {r"layers\.[0-2].*": 16}})
    engine = make_engine(
        tiny.folder,
        lora_modules={
            "rooted": rooted.save(tmp_path / "rooted", tiny.module),
            "pattern": pattern.save(tmp_path / "pattern", tiny.module),
        },
    )
    prompt = make_prompt(20)
    with ONE.merged_into(tiny.module):  # 16 / 4 = 8 / sqrt(4)
        wanted = generate(tiny.module, prompt, TOKENS)
    assert ask(engine, [(prompt, "rooted"), (prompt, "pattern")], greedy(TOKENS)) == [wanted, wanted]


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"peft_type": "IA3"}, "its peft_type is 'IA3', and only LORA is supported"),
        ({"use_dora": True}, "it uses use_dora, which is not supported"),
        ({"modules_to_save": ["lm_head"], "lora_bias": True}, "it uses lora_bias, modules_to_save, which is not"),
        ({"bias": "all"}, "its bias is 'all', and only 'none' is supported"),
        ({"init_lora_weights": "pissa_niter_4"}, "its init_lora_weights is 'pissa_niter_4', which also changes"),
    ],
)
def test_other_kinds_of_adapters_are_refused(tiny: Tiny, tmp_path: Path, config: dict[str, Any], says: str) -> None:
    folder = dataclasses.replace(ONE, config=config).save(tmp_path, tiny.module)
    with pytest.raises(UnsupportedModel, match=says):
        make_engine(tiny.folder, lora_modules={"one": folder})


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"lora_alpha": None}, "its alpha is None by lora_alpha; it must be a number of at most 1e"),
        ({"lora_alpha": math.nan}, "its alpha is nan by lora_alpha; it must be a number of at most 1e"),
        ({"alpha_pattern": {"q_proj": "x"}}, "its alpha is 'x' by q_proj; it must be a number of at most 1e"),
        ({"alpha_pattern": "x"}, "its alpha_pattern is 'x'; it must be an object"),
        ({"alpha_pattern": {"(": 3}}, r"its alpha_pattern has '\(', which is no regular expression: missing \)"),
        ({"alpha_pattern": {"(?i)q": 3}}, r"its alpha_pattern has '\(\?i\)q', which is no .*: global flags not at"),
        ({"alpha_pattern": {"q{99999999999}": 3}}, "its alpha_pattern has .*: the repetition number is too large"),
    ],
)
def test_an_alpha_that_is_no_number_is_refused(tmp_path: Path, tiny: Tiny, config: dict[str, Any], says: str) -> None:
    folder = Path(dataclasses.replace(ONE, config=config).save(tmp_path, tiny.module))
    with pytest.raises(ValueError, match=f"^it; {says}"):
        read_adapter(folder, "it")


Q, HEAD = "base_model.model.model.layers.1.self_attn.q_proj", "base_model.model.lm_head"
PAIR = {"lora_A": torch.ones(4, 64), "lora_B": torch.ones(64, 4)}


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({f"{Q}.lora_A.weight": torch.ones(4, 65)}, ValueError, "has 65 inputs and 64 outputs for model.layers.1"),
        ({f"{Q}.lora_B.weight": None}, ValueError, "model.layers.1.self_attn.q_proj has lora_A alone"),
        ({f"{Q}.lora_A.weight": torch.full((4, 64), torch.nan)}, ValueError, "has weights that are not numbers"),
        (
            {f"{Q}.lora_A.weight": torch.ones(0, 64), f"{Q}.lora_B.weight": torch.ones(64, 0)},
            UnsupportedModel,
            r"has lora_A \[0, 64\] and lora_B \[64, 0\]",
        ),
        ({f"{Q}.lora_A.weight": torch.tensor(1.0)}, UnsupportedModel, r"has lora_A \[\] and lora_B \[64, 4\]"),
        ({f"{Q}.lora_A.weight": torch.ones(3, 64)}, UnsupportedModel, r"has lora_A \[3, 64\] and lora_B \[64, 4\]"),
        (
            {Q.removeprefix("base_model.model.") + ".lora_A.weight": PAIR["lora_A"]},
            UnsupportedModel,
            "names must be those",
        ),
        ({f"{Q}.lora_B.default.weight": PAIR["lora_B"]}, UnsupportedModel, "base_model.model.LAYER.lora_A.weight"),
        ({"base_model.model.model.norm.weight": torch.ones(64)}, UnsupportedModel, "it changes base_model.model.model"),
        ({f"{HEAD}.{part}.weight": each for part, each in PAIR.items()}, UnsupportedModel, "the output head; that is"),
        (
            {f"base_model.model.model.norm.{part}.weight": each for part, each in PAIR.items()},
            UnsupportedModel,
            "changes model.norm, a LlamaRMSNorm; only linear layers are supported",
        ),
        (
            {f"base_model.model.model.layers.7.mlp.{part}.weight": each for part, each in PAIR.items()},
            UnsupportedModel,
            "changes model.layers.7.mlp, which LlamaForCausalLM does not have",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    tiny: Tiny, tmp_path: Path, changes: dict[str, torch.Tensor | None], error: type[Exception], says: str
) -> None:
    folder = ONE.save(tmp_path, tiny.module)
    file = tmp_path / "adapter_model.safetensors"
    weights = {**load_file(file), **changes}
    save_file({name: tensor for name, tensor in weights.items() if tensor is not None}, file)
    with pytest.raises(error, match=says):
        make_engine(tiny.folder, lora_modules={"one": folder})


def test_files_that_cannot_be_read_are_refused(tiny: Tiny, tmp_path: Path) -> None:
    missing = str(tmp_path / "nothing")
    with pytest.raises(ValueError, match=r"lora_modules\['one'\] is .*nothing'; it cannot be read: there is no such"):
        make_engine(tiny.folder, lora_modules={"one": missing})
    folder = ONE.save(tmp_path, tiny.module)
    (tmp_path / "adapter_model.safetensors").rename(tmp_path / "adapter_model.bin")
    with pytest.raises(ValueError, match=r"it has no adapter_model\.safetensors, but adapter_model\.bin, which is not"):
        make_engine(tiny.folder, lora_modules={"one": folder})
    (tmp_path / "adapter_config.json").unlink()
    with pytest.raises(ValueError, match=r"it cannot be read: it has no adapter_config\.json"):
        make_engine(tiny.folder, lora_modules={"one": folder})
    ONE.save(tmp_path, tiny.module)
    (tmp_path / "adapter_config.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r"it cannot be read: maximum recursion depth exceeded"):
        make_engine(tiny.folder, lora_modules={"one": folder})
    (tmp_path / "adapter_config.json").write_text(json.dumps([]))
    with pytest.raises(ValueError, match=r"its adapter_config.json is not a JSON object"):
        make_engine(tiny.folder, lora_modules={"one": folder})


# -- with the kernels for CPUs ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def adapted(cpu_kernels: None, shallow: Engine, first_layers: Path, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """The first layers of the default model in bfloat16 with adapters."""
    folder = tmp_path_factory.mktemp("adapters")
    saved = {
        name: RandomAdapter(16, 16, seed, size=0.1).save(folder / name, shallow.model.module)
        for seed, name in enumerate(ADAPTERS)
    }
    return make_engine(first_layers, dtype="bfloat16", block_size=16, kv_cache_tokens=4096, lora_modules=saved)


def test_rows_do_not_depend_on_the_adapters_of_others(adapted: Engine) -> None:
    prompts = [make_prompt(length) for length in (1, 7, 40, 100)]
    params = greedy(TOKENS, ignore_eos=True, logprobs=1)

    def logprobs(engine: Engine, asked: Sequence[tuple[list[int], str]]) -> list[list[float]]:
        ids = [engine.submit(prompt, params, RequestOptions(lora_name=name)) for prompt, name in asked]
        outputs = drain(engine)
        return [[each.chosen for each in outputs[name].logprobs or ()] for name in ids]

    names = ("", "one", "two")
    together = logprobs(adapted, [(prompt, name) for prompt in prompts for name in names])
    for name in names:
        of_name = together[names.index(name) :: len(names)]
        assert of_name == [logprobs(adapted, [(prompt, name)])[0] for prompt in prompts]
    assert together[:: len(names)] == logprobs(adapted, [(prompt, "") for prompt in prompts])
    assert together[0] != together[1] != together[2]


def test_adapters_are_part_of_a_traced_graph(adapted: Engine) -> None:
    forward = adapted.model.forward
    assert isinstance(forward, RoutedForward)
    for each, added in ((forward.plain, 0), (forward.special, 7)):
        assert isinstance(each, TracedForward)
        assert each.is_fused
        kinds = Counter(node.kind() for node in each._graph.nodes())
        assert kinds["inflight::add_lora"] == added * len(adapted.model.layers)
        assert kinds["inflight::add_rms_norm"] == 2 * len(adapted.model.layers)


def test_each_request_has_its_own_adapter_in_a_layer_with_an_odd_number_of_inputs(
    cpu_kernels: None, tmp_path: Path
) -> None:
    config = copy.deepcopy(SERVED["llama"].config)
    config.intermediate_size = 97
    module = save_model(config, tmp_path)
    names = ("", "one", "two", "three")
    modules = {
        name: RandomAdapter(4, 8, seed, layers=("down_proj",), size=2.0).save(tmp_path / name, module)
        for seed, name in enumerate(names[1:])
    }
    engine = make_engine(tmp_path, dtype="bfloat16", block_size=16, lora_modules=modules)
    exact = make_engine(tmp_path, lora_modules=modules)
    logprobs = []
    for each in (engine, exact):
        ids = [
            each.submit(
                make_prompt(20), greedy(1, logprob_token_ids=tuple(range(3, 23))), RequestOptions(lora_name=name)
            )
            for name in names
        ]
        outputs = drain(each)
        logprobs.append([_named(outputs[name]) for name in ids])
    rounded, expected = np.array(logprobs)
    for row, own in enumerate(rounded):
        distances = np.abs(expected - own).max(axis=1)
        assert distances.argmin() == row
        assert distances[row] < 0.1 * np.delete(distances, row).min()
    assert isinstance(engine.model.forward, RoutedForward)
    assert isinstance(engine.model.forward.special, TracedForward)


def _named(output: RequestOutput) -> list[float]:
    assert output.logprobs is not None
    return [logprob for logprob, _ in output.logprobs[0].others.values()]


def test_kernels_give_nearly_the_logits_of_float32(adapted: Engine, shallow: Engine, first_layers: Path) -> None:
    in_float = make_engine(first_layers, kv_cache_tokens=2048, lora_modules=adapted.config.lora_modules)
    prompts = [make_prompt(length) for length in (5, 33, 90)]
    params = greedy(1, prompt_logprobs=0)
    found = []
    for engine in (adapted, in_float, shallow):
        ids = [
            engine.submit(prompt, params, RequestOptions(lora_name="" if engine is shallow else "one"))
            for prompt in prompts
        ]
        outputs = drain(engine)
        found.append(np.array([e.chosen for each in ids for e in outputs[each].prompt_logprobs if e is not None]))
    with_kernels, exact, without_adapter = found
    assert np.abs(with_kernels - exact).mean() < 0.1 * np.abs(without_adapter - exact).mean()


def test_a_crowd_with_adapters_gets_the_tokens_of_a_calm_engine(adapted: Engine) -> None:
    """A small cache, host memory, shared prefixes, drafts, chunks and cancellations, with sampled tokens."""
    rng = random.Random(0)
    crowded = dataclasses.replace(
        adapted.config,
        kv_cache_tokens=256,
        max_num_batched_tokens=48,
        swap_space_tokens=512,
        preemption_mode="auto",
        max_queue_tokens=100_000,
        speculative_config={"method": "ngram", "adaptive": False},
    )
    beginnings = [make_prompt(length, seed=9) for length in (16, 48)]
    asked = [
        (
            rng.choice(beginnings)[: rng.randint(1, 48)] + make_prompt(rng.randint(1, 20), seed=number),
            SamplingParams(max_tokens=rng.randint(10, 40), temperature=rng.choice((0, 0.9)), seed=number),
            RequestOptions(lora_name=rng.choice(("", "one", "two"))),
        )
        for number in range(40)
    ]
    calm = [adapted.submit(*each) for each in asked]
    outputs = drain(adapted)
    engine = Engine(crowded, adapted.model)
    ids = {engine.submit(*each): outputs[name].token_ids for each, name in zip(asked, calm, strict=True)}
    cancelled = rng.sample(sorted(ids), 5)
    for name in cancelled:
        engine.step()
        engine.cancel(name)
    found = drain(engine)
    assert len(found) >= 30
    for name in found.keys() - set(cancelled):
        assert found[name].token_ids == ids[name]
    stats = engine.stats()
    assert stats.preemptions > 0
    assert stats.accepted_draft_tokens > 0
    assert sum(stats.hits.values()) > 0
    assert stats.blocks_used == 0
