"""What cannot be served right is refused at load, with the reason."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    Gemma3TextConfig,
    Gemma4TextConfig,
    GemmaConfig,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

from inflight import Engine, EngineConfig, InvalidRequest, SamplingParams, UnsupportedModel
from inflight.model.loading.support import check_config, check_settings, max_length
from scripts.reference.tiny_models import MODELS, REFUSED, SERVED, greedy, save_model
from tests.unit.tiny_tokenizers import byte_level


def config_for(folder: Path) -> EngineConfig:
    return EngineConfig(model=str(folder), dtype="float32", kv_cache_tokens=1024)


@pytest.mark.parametrize("name", REFUSED)
def test_model_is_refused(name: str, tmp_path: Path) -> None:
    config, reason = REFUSED[name]
    save_model(config, tmp_path)
    with pytest.raises(UnsupportedModel, match=reason):
        Engine(config_for(tmp_path))


def test_encoder_decoder_is_refused(tmp_path: Path) -> None:
    config = T5Config(vocab_size=160, d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4)
    T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match="encoder-decoder"):
        Engine(config_for(tmp_path))


@pytest.mark.parametrize(
    "config",
    [
        Gemma3TextConfig(use_bidirectional_attention=True),
        GemmaConfig(use_bidirectional_attention=True),
        Gemma4TextConfig(use_bidirectional_attention="all"),
        LlamaConfig(is_causal=False),
    ],
    ids=lambda config: config.model_type,
)
def test_attention_in_both_directions_is_refused_by_the_config_alone(config: PreTrainedConfig) -> None:
    with pytest.raises(UnsupportedModel, match="attends in both directions"):
        check_config(config)


def test_attention_in_both_directions_within_images_is_no_reason() -> None:
    check_config(Gemma4TextConfig(use_bidirectional_attention="vision"))


def test_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere', a folder that does not exist, so it has no config\.json"):
        Engine(config_for(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match=r"which has no config\.json"):
        Engine(config_for(tmp_path))


def change_json(file: Path, **fields: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("num_hidden_layers", "3", "StrictDataclassFieldValidationError.*num_hidden_layers"),
        ("num_attention_heads", 5, "StrictDataclassClassValidationError.*hidden size"),
        ("dtype", "float8", "AttributeError.*float8"),
    ],
)
def test_a_config_that_cannot_be_read_is_named(field: str, value: object, reason: str, tmp_path: Path) -> None:
    save_model(SERVED["llama"].config, tmp_path)
    change_json(tmp_path / "config.json", **{field: value})
    with pytest.raises(ValueError, match=rf"(?s)model is '.*'; its config cannot be read: {reason}"):
        Engine(config_for(tmp_path))


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [("rope_theta", "10000", "TypeError: unsupported operand"), ("hidden_act", "swishglu", "KeyError: 'swishglu'")],
)
def test_a_config_with_which_no_model_can_be_made_is_refused(
    field: str, value: object, reason: str, tmp_path: Path
) -> None:
    save_model(SERVED["llama"].config, tmp_path)
    file = tmp_path / "config.json"
    written = {name: given for name, given in json.loads(file.read_text()).items() if name != "rope_parameters"}
    file.write_text(json.dumps({**written, field: value}))
    with pytest.raises(UnsupportedModel, match=f"llama cannot be loaded as a decoder: {reason}"):
        Engine(config_for(tmp_path))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"dtype": "float8"}, r"'float8' \(config.json has it in dtype\)$"),
        ({"hidden_act": "swishglu"}, r"'swishglu' \(config.json has it in hidden_act\)$"),
        (
            {"rope_parameters": {"rope_type": "yan", "rope_theta": 1e4}},
            r"'yan' \(config.json has it in rope_parameters.rope_type\)$",
        ),
        ({"num_hidden_layers": "3"}, r"^[^\n]*num_hidden_layers[^\n]*$"),
        ({"pad_token_id": 160}, "llama cannot be loaded as a decoder: AssertionError: Padding_idx"),
        ({"intermediate_size": -1}, "llama cannot be loaded as a decoder: RuntimeError: .*negative dimension -1"),
        ({"vocab_size": 0}, "llama has vocab_size 0 in its config; it must be at least 1"),
        ({"num_hidden_layers": 0}, "llama has num_hidden_layers 0 in its config; it must be at least 1"),
        ({"max_position_embeddings": -1}, "llama has max_position_embeddings -1 in its config; it must be at least 1"),
        ({"model_type": "clip"}, r"^[^\n]{,800}$"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_the_field_of_a_config_is_named_in_one_line(fields: dict[str, object], reason: str, tmp_path: Path) -> None:
    save_model(SERVED["llama"].config, tmp_path)
    change_json(tmp_path / "config.json", **fields)
    with pytest.raises(ValueError, match=reason):
        Engine(config_for(tmp_path))


def test_code_of_the_models_own_that_python_cannot_read_is_refused(tmp_path: Path) -> None:
    save_model(SERVED["llama"].config, tmp_path)
    change_json(tmp_path / "config.json", auto_map={"AutoModelForCausalLM": "modeling_own.Own"})
    (tmp_path / "modeling_own.py").write_text("def f(:")
    with pytest.raises(UnsupportedModel, match="llama cannot be loaded as a decoder: SyntaxError: invalid syntax"):
        Engine(EngineConfig(model=str(tmp_path), dtype="float32", kv_cache_tokens=1024, trust_remote_code=True))


@pytest.mark.parametrize("content", ["null", "[]"])
def test_a_config_that_is_no_object_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match=r"its config cannot be read: config\.json must be a JSON object"):
        Engine(config_for(tmp_path))


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn", 5])
def test_a_dtype_in_which_no_model_computes_is_named(dtype: object, tmp_path: Path) -> None:
    save_model(SERVED["llama"].config, tmp_path)
    change_json(tmp_path / "config.json", dtype=dtype)
    with pytest.raises(UnsupportedModel, match=f"llama has the dtype .*{dtype} in its config, in which it cannot comp"):
        Engine(EngineConfig(model=str(tmp_path), kv_cache_tokens=1024))


@pytest.mark.parametrize("dtype", ["bfloat16", "half"])
def test_a_config_may_have_the_name_of_a_dtype(dtype: str) -> None:
    """One with code of its own has it, if that code sets the field."""
    config = LlamaConfig()
    config.dtype = dtype
    assert config.dtype == dtype
    check_settings(config, EngineConfig(model="m"))


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_damaged_tokenizer_is_refused(name: str, tmp_path: Path) -> None:
    """Git without LFS writes such files."""
    save_model(SERVED["llama"].config, tmp_path)
    PreTrainedTokenizerFast(tokenizer_object=byte_level()).save_pretrained(tmp_path)
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(ValueError, match=r"model is '.*'; a file of its tokenizer, .* it is not JSON"):
        Engine(config_for(tmp_path))


def test_a_tokenizer_of_a_newer_library_is_named(tmp_path: Path) -> None:
    save_model(SERVED["llama"].config, tmp_path)
    PreTrainedTokenizerFast(tokenizer_object=byte_level()).save_pretrained(tmp_path)
    change_json(tmp_path / "tokenizer.json", decoder={"type": "Newer"})
    with pytest.raises(
        ValueError, match=r"model is '.*'; its tokenizer\.json .* cannot be read, .*: data did not match"
    ):
        Engine(config_for(tmp_path))


@pytest.mark.parametrize(("kind", "longest"), [("dynamic", 256), ("longrope", 64), ("yarn", 256)])
def test_only_longrope_bounds_the_context_by_the_original_length(kind: str, longest: int) -> None:
    rope = {"rope_type": kind, "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 64}
    if kind == "longrope":
        rope |= {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
    config = LlamaConfig(hidden_size=64, num_attention_heads=4, max_position_embeddings=256, rope_parameters=rope)
    assert max_length(config) == longest


@pytest.mark.parametrize("name", ["llama", "mistral3", "falcon"])
def test_a_config_may_ask_for_tuples(name: str, tmp_path: Path) -> None:
    """`generate` asks for the names of what a model returns, in each call."""
    model = save_model(MODELS[name].config, tmp_path)
    path = tmp_path / "config.json"
    text = json.loads(path.read_text()).get("text_config")
    parts = {} if text is None else {"text_config": {**text, "return_dict": False}}
    change_json(path, return_dict=False, **parts)
    outputs = Engine(config_for(tmp_path)).generate([[5, 9, 3]], SamplingParams(max_tokens=8, temperature=0))
    assert outputs[0].token_ids == greedy(model, [5, 9, 3], 8)


@pytest.mark.parametrize(
    ("others", "found"),
    [
        ((), ""),
        (("consolidated.safetensors",), r"\. The folder has consolidated\.safetensors"),
        (("pytorch_model-00001-of-00002.bin", "model.gguf"), r"\. The folder has model\.gguf and 1 more"),
    ],
)
def test_folder_without_safetensors_is_refused(others: tuple[str, ...], found: str, tmp_path: Path) -> None:
    save_model(SERVED["llama"].config, tmp_path)
    (tmp_path / "model.safetensors").unlink()
    for name in others:
        (tmp_path / name).touch()
    with pytest.raises(ValueError, match=rf"weights cannot be loaded: .*model\.safetensors\.index\.json names{found}$"):
        Engine(config_for(tmp_path))


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def test_damaged_weights_are_refused(tmp_path: Path) -> None:
    save_model(SERVED["llama"].config, tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"weights cannot be loaded: .*not fully covered"):
        Engine(config_for(tmp_path))


def test_weights_of_zeros_are_refused(tmp_path: Path) -> None:
    save_model(SERVED["llama"].config, tmp_path)
    change_weights(tmp_path, lambda weights: [weight.zero_() for weight in weights.values()])
    with pytest.raises(UnsupportedModel, match="its own forward pass gives only logits of 0; are the weights whole"):
        Engine(config_for(tmp_path))


def test_weights_that_lack_a_tensor_are_refused(tmp_path: Path) -> None:
    """transformers would fill it with random numbers."""
    save_model(SERVED["llama"].config, tmp_path)
    name = "model.layers.1.self_attn.q_proj.weight"
    change_weights(tmp_path, lambda weights: weights.pop(name))
    with pytest.raises(ValueError, match=f"its weights lack {name}$"):
        Engine(config_for(tmp_path))
    change_weights(tmp_path, lambda weights: weights.pop("model.norm.weight"))
    with pytest.raises(ValueError, match=f"its weights lack {name} and 1 more"):
        Engine(config_for(tmp_path))


def test_weights_under_other_names_are_refused(tmp_path: Path) -> None:
    """As of a model that was compiled, or is part of a larger one. transformers would fill all with random numbers."""
    save_model(SERVED["llama"].config, tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    renamed = {f"_orig_mod.{name}": weight for name, weight in weights.items()}
    save_file(renamed, tmp_path / "model.safetensors", {"format": "pt"})
    wrong = r"lack model\.embed_tokens\.weight and 28 more, but have _orig_mod\.lm_head\.weight and 29 more that the"
    with pytest.raises(ValueError, match=wrong):
        Engine(config_for(tmp_path))


def test_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    save_model(SERVED["llama"].config, tmp_path)
    change_weights(tmp_path, lambda weights: weights.update({"model.norm.weight": torch.ones(63)}))
    with pytest.raises(ValueError, match=r"norm.weight has the shape \[63\] in its weights and \[64\] by its config"):
        Engine(config_for(tmp_path))


@pytest.mark.parametrize("name", ["model.layers.0.mlp.down_proj.weight", "layers.0.mlp.down_proj.weight"])
def test_whole_numbers_are_refused_as_quantized(name: str, tmp_path: Path) -> None:
    """transformers would serve them without their scale. Files may leave out the first part of a name."""
    save_model(SERVED["llama"].config, tmp_path)

    def round_one(weights: dict[str, torch.Tensor]) -> None:
        weights[name] = (100 * weights.pop("model.layers.0.mlp.down_proj.weight")).to(torch.int8)

    change_weights(tmp_path, round_one)
    with pytest.raises(
        UnsupportedModel, match=rf"its weights have {name} as I8 in model\.safetensors, so they are quan"
    ):
        Engine(config_for(tmp_path))


def test_weights_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    save_model(SERVED["llama"].config, tmp_path)
    change_weights(tmp_path, lambda weights: weights["model.norm.weight"].fill_(math.nan))
    with pytest.raises(UnsupportedModel, match="llama: its own forward pass gives logits that are not numbers"):
        Engine(config_for(tmp_path))


def test_an_adapter_is_refused(tmp_path: Path) -> None:
    """transformers would serve the model without it."""
    save_model(SERVED["llama"].config, tmp_path)
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    with pytest.raises(UnsupportedModel, match="has a LoRA adapter; model must be the one that it changes"):
        Engine(config_for(tmp_path))


def test_weights_without_an_output_head_make_embeddings_but_no_text(tmp_path: Path) -> None:
    save_model(SERVED["llama"].config, tmp_path)
    whole = Engine(config_for(tmp_path)).embed([[5, 6, 7]])
    change_weights(tmp_path, lambda weights: weights.pop("lm_head.weight"))
    engine = Engine(config_for(tmp_path))
    assert np.array_equal(engine.embed([[5, 6, 7]]), whole)
    with pytest.raises(InvalidRequest, match="no output head; it makes embeddings"):
        engine.generate([[5, 6, 7]], SamplingParams(max_tokens=1))


def test_shared_embeddings_are_no_output_head(tmp_path: Path) -> None:
    save_model(SERVED["gpt2"].config, tmp_path)
    change_weights(tmp_path, lambda weights: weights.pop("transformer.wte.weight"))
    with pytest.raises(ValueError, match=r"its weights lack lm_head\.weight and 1 more"):
        Engine(config_for(tmp_path))


def test_rope_that_depends_on_the_batch_bounds_the_length(tmp_path: Path) -> None:
    """`generate` would keep the keys of the shorter sequence when Llama becomes long."""
    size = {"vocab_size": 160, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    longrope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "short_factor": [1.0] * 8,
        "long_factor": [2.0] * 8,
        "original_max_position_embeddings": 32,
    }
    config = LlamaConfig(
        **size, num_attention_heads=4, pad_token_id=0, max_position_embeddings=128, rope_parameters=longrope
    )
    save_model(config, tmp_path)
    engine = Engine(config_for(tmp_path))
    assert engine.max_model_len == 32
    with pytest.raises(InvalidRequest, match=r"prompt has 40 tokens.*at most 31"):
        engine.submit([5] * 40, SamplingParams(max_tokens=1))


def test_length_beyond_the_models_is_refused(tmp_path: Path) -> None:
    save_model(LlamaConfig(**{**SERVED["llama"].config.to_diff_dict(), "max_position_embeddings": 64}), tmp_path)
    with pytest.raises(ValueError, match=r"max_model_len is 65.*at most 64"):
        Engine(EngineConfig(model=str(tmp_path), max_model_len=65))
