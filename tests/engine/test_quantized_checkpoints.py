"""Checkpoints with quantized weights serve as the model that their weights stand for."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedConfig, Qwen3MoeConfig, Qwen3VLMoeConfig

from inflight import Engine, UnsupportedModel
from inflight.model.loading.quantized_checkpoint.formats import from_bitsandbytes
from scripts.reference.tiny_models import SERVED, save_model
from scripts.reference.tiny_models import greedy as reference
from tests.engine import quantized_weights
from tests.engine.models import greedy, make_engine, make_prompt
from tests.engine.quantized_weights import Format


def of_auto_round(form: Format, packing: str, **others: int) -> Format:
    """The same tensors, as AutoRound names their format. `others` is what most layers have, but not these."""
    config = {name: form.config[name] for name in ("bits", "group_size")}
    return Format({"quant_method": "auto-round", "packing_format": packing, **config, **others}, form.pack)


def in_order(form: Format) -> Format:
    """The same tensors without the group of each input."""

    def pack(weight: torch.Tensor) -> quantized_weights.Packed:
        tensors, values = form.pack(weight)
        return {name: tensor for name, tensor in tensors.items() if name != "g_idx"}, values

    return Format(form.config, pack)


FORMATS = {
    "gptq": quantized_weights.gptq(4),
    "gptq in 2 bits": quantized_weights.gptq(2),
    "gptq in 8 bits": quantized_weights.gptq(8),
    "gptq with desc_act": quantized_weights.gptq(4, in_order=False),
    "gptq_v2": quantized_weights.gptq(4, version=2),
    "awq": quantized_weights.awq(),
    "auto-round as gptq": of_auto_round(quantized_weights.gptq(4), "auto_round:auto_gptq"),
    "auto-round as gptq_v2": of_auto_round(quantized_weights.gptq(4, version=2), "auto_round"),
    "auto-round as awq": of_auto_round(quantized_weights.awq(), "auto_round:auto_awq"),
    "gptq without g_idx": in_order(quantized_weights.gptq(4)),
    "auto-round as gptq, layers with bits and groups of their own": of_auto_round(
        in_order(quantized_weights.gptq(2)), "auto_round:auto_gptq", bits=4, group_size=64
    ),
    "auto-round as awq, layers with groups of their own": of_auto_round(
        quantized_weights.awq(), "auto_round:auto_awq", group_size=64
    ),
    "nf4": quantized_weights.nf4(nested=False),
    "nf4 with double quantization": quantized_weights.nf4(nested=True),
    "bitsandbytes in int8": quantized_weights.bitsandbytes_int8(),
    "modelopt in fp8": quantized_weights.modelopt_fp8(),
    "modelopt in nvfp4": quantized_weights.nvfp4(),
    "fp8": quantized_weights.fp8(),
    "fp8 with smaller blocks at the edges": quantized_weights.fp8(48),
    "fp8 with layers smaller than a block": quantized_weights.fp8(128),
    "fp8 with exponents": quantized_weights.fp8(exponents=True),
    "fp8 with one scale": quantized_weights.fp8_with_one_scale(),
    "fp8 of AutoFP8": quantized_weights.auto_fp8(),
    "compressed-tensors in int4": quantized_weights.compressed_int4(),
    "compressed-tensors in int4 with zero points": quantized_weights.compressed_asymmetric_int4(),
    "compressed-tensors in int8": quantized_weights.compressed_int8(),
    "compressed-tensors in fp8": quantized_weights.compressed_fp8(),
}
COMPRESSED = {name: form for name, form in FORMATS.items() if name.startswith("compressed-tensors")}
EXPERTS: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts": 4,
    "num_experts_per_tok": 2,
}


def quantize(
    config: PreTrainedConfig, form: Format, folder: Path, layers: tuple[str, ...] = ("_proj.weight",)
) -> dict[str, torch.Tensor]:
    """Write a tiny model with quantized weights in the layers whose names end so. Return what all weights are, by
    name."""
    save_model(config, folder)
    found = load_file(folder / "model.safetensors")
    stored: dict[str, torch.Tensor] = {}
    for name, tensor in found.items():
        if name.endswith(layers):
            packed, found[name] = form.pack(tensor)
            stored |= {name.removesuffix("weight") + part: value for part, value in packed.items()}
        else:
            stored[name] = tensor
    save_file(stored, folder / "model.safetensors")
    write_config(folder, form.config)
    return found


def write_config(folder: Path, quantization: dict[str, Any]) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": quantization}))


def answers(engine: Engine) -> list[list[int]]:
    prompts = [make_prompt(length) for length in (3, 17, 40)]
    return [output.token_ids for output in engine.generate(prompts, greedy(16))]


def plain(config: PreTrainedConfig, weights: dict[str, torch.Tensor], folder: Path) -> Path:
    """Write the model with these weights as an ordinary checkpoint."""
    save_model(config, folder)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_answers_are_those_of_the_weights_that_the_checkpoint_stands_for(form: Format, tmp_path: Path) -> None:
    config = SERVED["llama"].config
    weights = quantize(config, form, tmp_path / "quantized")
    expected = plain(config, weights, tmp_path / "plain")
    engine = make_engine(tmp_path / "quantized")
    module = AutoModelForCausalLM.from_pretrained(expected, dtype=torch.float32)
    for name, weight in module.named_parameters():
        mine = engine.model.module.get_parameter(name)
        torch.testing.assert_close(mine, weight, rtol=1e-6, atol=0)
        assert mine.is_contiguous()
    assert answers(engine) == [reference(module, make_prompt(length), 16) for length in (3, 17, 40)]


def test_layers_of_gpt2_are_stored_as_those_of_others(tmp_path: Path) -> None:
    config = SERVED["gpt2"].config
    layers = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
    for form in (FORMATS["gptq"], FORMATS["bitsandbytes in int8"]):
        weights = quantize(config, Format(form.config, transposed(form)), tmp_path / "quantized", layers)
        engine = make_engine(tmp_path / "quantized")
        assert answers(engine) == answers(make_engine(plain(config, weights, tmp_path / "plain")))


def transposed(form: Format) -> Callable[[torch.Tensor], quantized_weights.Packed]:
    """Pack weights [inputs, outputs]."""

    def pack(weight: torch.Tensor) -> quantized_weights.Packed:
        tensors, values = form.pack(weight.T.contiguous())
        return tensors, values.T.contiguous()

    return pack


def test_a_weight_with_an_odd_number_of_elements() -> None:
    form = quantized_weights.nf4(nested=False)
    tensors, expected = form.pack(torch.randn(3, 5, generator=torch.Generator().manual_seed(0)))
    torch.testing.assert_close(from_bitsandbytes(tensors, form.config), expected)


@pytest.mark.usefixtures("cpu_kernels")
@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
def test_the_kernels_serve_dequantized_weights(quantization: str | None, tmp_path: Path) -> None:
    config = SERVED["llama"].config
    weights = quantize(config, FORMATS["awq"], tmp_path / "quantized")
    expected = plain(config, weights, tmp_path / "plain")
    settings = {"dtype": "bfloat16", "block_size": 16, "quantization": quantization}
    engine = make_engine(tmp_path / "quantized", **settings)
    assert engine.model.backend.name == "cpu kernels"
    assert answers(engine) == answers(make_engine(expected, **settings))


@pytest.mark.parametrize(("named", "served"), [("float16", torch.bfloat16), ("float32", torch.float32)])
def test_auto_is_bfloat16_where_the_config_names_float16(named: str, served: torch.dtype, tmp_path: Path) -> None:
    quantize(SERVED["llama"].config, FORMATS["gptq"], tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "dtype": named}))
    assert make_engine(tmp_path, dtype="auto").model.dtype is served


OF_EXPERTS = {name: FORMATS[name] for name in ("gptq", "awq", "fp8")} | COMPRESSED
ALL_LAYERS = ("_proj.weight",)
ALL_BUT_EXPERTS = tuple(f"self_attn.{name}_proj.weight" for name in "qkvo")
SOME_OF_EXPERTS = ("down_proj.weight",)


@pytest.mark.parametrize(
    "layers", [ALL_LAYERS, ALL_BUT_EXPERTS, SOME_OF_EXPERTS], ids=["all", "all but experts", "some of experts"]
)
@pytest.mark.parametrize("form", OF_EXPERTS.values(), ids=OF_EXPERTS)
def test_experts_are_read_whether_quantized_or_not(form: Format, layers: tuple[str, ...], tmp_path: Path) -> None:
    config = Qwen3MoeConfig(**EXPERTS)
    weights = quantize(config, form, tmp_path / "quantized", layers)
    expected = plain(config, weights, tmp_path / "plain")
    assert answers(make_engine(tmp_path / "quantized")) == answers(make_engine(expected))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_experts_have_the_dtype_of_the_model_whatever_that_of_their_scales(dtype: torch.dtype, tmp_path: Path) -> None:
    form = quantized_weights.compressed_int4()

    def pack(weight: torch.Tensor) -> quantized_weights.Packed:
        tensors, values = form.pack(weight)
        return {**tensors, "weight_scale": tensors["weight_scale"].to(dtype)}, values

    config = Qwen3MoeConfig(**EXPERTS)
    weights = quantize(config, Format(form.config, pack), tmp_path / "quantized")
    expected = plain(config, weights, tmp_path / "plain")
    engine = make_engine(tmp_path / "quantized")
    assert {weight.dtype for weight in engine.model.module.parameters()} == {torch.float32}
    assert answers(engine) == answers(make_engine(expected))


VISION = {"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 48, "out_hidden_size": 64}
ROTARY = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
STACKED: dict[str, PreTrainedConfig] = {
    "gpt_oss": SERVED["gpt_oss"].config,
    # Its file has inputs and outputs in another order than the model.
    "qwen3_vl_moe": Qwen3VLMoeConfig(
        text_config={**EXPERTS, "head_dim": 16, "max_position_embeddings": 256, "rope_parameters": ROTARY},
        vision_config={**VISION, "deepstack_visual_indexes": [0]},
    ),
}
"""Models whose checkpoints have all experts of a layer in one tensor."""
IN_ONE_TENSOR = ("experts.gate_up_proj", "experts.down_proj")


def quantize_experts(config: PreTrainedConfig, scale: str, folder: Path) -> dict[str, torch.Tensor]:
    """Write a tiny model whose experts are in FP8 with blocks of 32. Return what all weights are, by name."""
    save_model(config, folder)
    found = load_file(folder / "model.safetensors")
    stored = dict(found)
    for name in (name for name in found if name.endswith(IN_ONE_TENSOR)):
        packed = [quantized_weights.fp8().pack(expert) for expert in found[name]]
        stored[name] = torch.stack([tensors["weight"] for tensors, _ in packed])
        stored[name + scale] = torch.stack([tensors["weight_scale_inv"] for tensors, _ in packed])
        found[name] = torch.stack([values for _, values in packed])
    save_file(stored, folder / "model.safetensors")
    return found


@pytest.mark.parametrize("config", STACKED.values(), ids=STACKED)
def test_experts_in_one_tensor_are_read(config: PreTrainedConfig, tmp_path: Path) -> None:
    weights = quantize_experts(config, "_scale_inv", tmp_path / "quantized")
    write_config(tmp_path / "quantized", quantized_weights.fp8().config)
    expected = plain(config, weights, tmp_path / "plain")
    assert answers(make_engine(tmp_path / "quantized")) == answers(make_engine(expected))


def test_experts_in_one_tensor_without_scales_are_refused(tmp_path: Path) -> None:
    quantize_experts(SERVED["gpt_oss"].config, "_other", tmp_path)
    write_config(tmp_path, quantized_weights.fp8().config)
    with pytest.raises(ValueError, match="its weights cannot be loaded"):
        make_engine(tmp_path)


def test_experts_in_one_tensor_of_compressed_tensors_are_refused(tmp_path: Path) -> None:
    quantize_experts(SERVED["gpt_oss"].config, "_scale", tmp_path)
    write_config(tmp_path, quantized_weights.compressed_fp8().config)
    with pytest.raises(UnsupportedModel, match=r"mlp.experts.down_proj, which are all experts of a layer in F8_E4M3"):
        make_engine(tmp_path)


def quantize_gpt_oss(folder: Path) -> dict[str, torch.Tensor]:
    """Write a tiny gpt-oss whose experts are in MXFP4. Return what all weights are, by name."""
    save_model(SERVED["gpt_oss"].config, folder)
    found = load_file(folder / "model.safetensors")
    stored = dict(found)
    for name in [name for name in found if name.endswith(IN_ONE_TENSOR)]:
        # The file has [experts, outputs, inputs], and the model the other order.
        blocks, scales, meant = quantized_weights.mxfp4(stored.pop(name).transpose(1, 2))
        stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        found[name] = meant.transpose(1, 2).contiguous()
    save_file(stored, folder / "model.safetensors")
    write_config(folder, {"quant_method": "mxfp4", "modules_to_not_convert": ["model.embed_tokens"]})
    return found


def test_experts_of_gpt_oss_are_read(tmp_path: Path) -> None:
    weights = quantize_gpt_oss(tmp_path / "quantized")
    expected = plain(SERVED["gpt_oss"].config, weights, tmp_path / "plain")
    assert answers(make_engine(tmp_path / "quantized")) == answers(make_engine(expected))


INT4 = quantized_weights.compressed_int4().config["config_groups"]["group_0"]["weights"]


def of_groups(attention: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
    """A config of compressed-tensors with a group for the layers of attention, and one for the others."""
    groups = {
        "group_0": {"targets": ["re:.*self_attn.*"], "weights": attention},
        "group_1": {"targets": ["re:.*mlp.*"], "weights": others, "input_activations": None},
    }
    return {**quantized_weights.compressed_int4().config, "config_groups": groups}


def test_groups_of_layers_may_have_weights_of_the_same_kind(tmp_path: Path) -> None:
    form = Format(of_groups(INT4, {**INT4, "observer": "mse"}), quantized_weights.compressed_int4().pack)
    weights = quantize(SERVED["llama"].config, form, tmp_path / "quantized")
    expected = plain(SERVED["llama"].config, weights, tmp_path / "plain")
    assert answers(make_engine(tmp_path / "quantized")) == answers(make_engine(expected))


@pytest.mark.parametrize(
    ("quantization", "message"),
    [
        ({"quant_method": "aqlm"}, "quantization_config has quant_method 'aqlm'; supported are auto-round, awq,"),
        ({"quant_method": "gptq", "bits": 3}, "bits 3; it must be one of 2, 4, 8"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "the format 'marlin'; it must be gptq or"),
        ({"quant_method": "modelopt", "quant_algo": "W4A16_AWQ"}, "quant_algo 'W4A16_AWQ'; it must be FP8 or NVFP4"),
        ({"quant_method": "modelopt"}, "quant_algo None; it must be FP8 or NVFP4"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "the format 'gemv'; it must be gemm"),
        ({"quant_method": "auto-round", "packing_format": "auto_round:fp4"}, "and packing_format 'auto_round:fp4'"),
        (
            of_groups(INT4, {**INT4, "actorder": "group"}),
            "config_groups with actorder 'group', an order of inputs that",
        ),
        (of_groups(INT4, {**INT4, "num_bits": 8}), "config_groups that store their weights in different ways; all"),
    ],
)
def test_other_formats_are_refused(quantization: dict[str, Any], message: str, tmp_path: Path) -> None:
    save_model(SERVED["llama"].config, tmp_path)
    write_config(tmp_path, quantization)
    with pytest.raises(UnsupportedModel, match=message):
        make_engine(tmp_path)


@pytest.mark.parametrize(("form", "scales"), [("gptq", "scales"), ("fp8", "weight_scale_inv")])
def test_a_damaged_layer_is_refused(form: str, scales: str, tmp_path: Path) -> None:
    quantize(SERVED["llama"].config, FORMATS[form], tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights[f"model.layers.1.mlp.up_proj.{scales}"]
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="its weights cannot be loaded"):
        make_engine(tmp_path)


def without_a_description(folder: Path) -> None:
    """A checkpoint whose config.json does not say that its weights are quantized."""
    quantize(SERVED["llama"].config, FORMATS["modelopt in fp8"], folder)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    del config["quantization_config"]
    path.write_text(json.dumps(config))


def test_quantized_weights_without_a_description_are_refused(tmp_path: Path) -> None:
    without_a_description(tmp_path)
    with pytest.raises(UnsupportedModel, match=r"its weights have .*down_proj.weight_scale, so they are quantized"):
        make_engine(tmp_path)


def test_a_description_in_a_file_of_its_own_is_found(tmp_path: Path) -> None:
    without_a_description(tmp_path / "older")
    description = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}
    (tmp_path / "older" / "hf_quant_config.json").write_text(json.dumps(description))
    quantize(SERVED["llama"].config, FORMATS["modelopt in fp8"], tmp_path / "newer")
    assert answers(make_engine(tmp_path / "older")) == answers(make_engine(tmp_path / "newer"))


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"quantization": 5}'])
def test_a_damaged_description_is_named(content: str, tmp_path: Path) -> None:
    without_a_description(tmp_path)
    (tmp_path / "hf_quant_config.json").write_text(content)
    with pytest.raises(
        ValueError, match=r"its hf_quant_config\.json must be a JSON object with the object quantization"
    ):
        make_engine(tmp_path)
