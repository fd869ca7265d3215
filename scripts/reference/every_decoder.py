"""Serves every decoder that transformers registers, scaled down with random weights.

Decoders are the causal LMs, and models that also read images or sounds, which are served with text alone.
`python -m scripts.reference.every_decoder` takes ten minutes; names of model types limit it to those. The last line
counts the outcomes:

- matched: in float32, all tokens are those of transformers' `generate`, with prompts in chunks and preempted requests;
- refused: the engine does not serve it, and says why;
- wrong: a token differs, or the process crashes or takes over two minutes. There must be none;
- not built: the scaled-down model cannot be made, or transformers' own `generate` fails on it.
"""

import argparse
import itertools
import logging
import random
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMultimodalLM, PreTrainedConfig
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
)

from inflight import Engine, EngineConfig, SamplingParams
from inflight.model.loading.support import max_length
from scripts.reference.tiny_models import VOCABULARY, WINDOW, greedy, save_model

MATCHED, REFUSED, WRONG, NOT_BUILT = "matched", "refused", "wrong", "not built"

_SECONDS_PER_MODEL = 120
_MAX_PARAMETERS = 200_000_000
_MAX_TOKENS = 12
_LENGTH = 256
_WIDTH, _WIDE, _LAYERS, _HEADS, _EXPERTS = 64, 96, 4, 4, 4
_SMALL: dict[str, int | None] = {
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input", "unpadded_vocab_size"), VOCABULARY),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim", "embedding_size", "word_embed_proj_dim"), _WIDTH),
    **dict.fromkeys(("out_hidden_size", "text_hidden_size", "projection_dim"), _WIDTH),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "n_inner", "ffn_hidden_size", "mlp_dim"), _WIDE),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "n_layers"), _LAYERS),
    **dict.fromkeys(("encoder_layers", "decoder_layers"), _LAYERS),
    **dict.fromkeys(("num_attention_heads", "n_head", "num_heads", "n_heads"), _HEADS),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), _HEADS),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx"), _LENGTH),
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"), _EXPERTS),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k", "num_experts_per_token", "top_k_experts"), 2),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"), 32),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace"), 1),
    **dict.fromkeys(("sliding_window", "attention_window_size", "local_attention_window"), WINDOW),
    **dict.fromkeys(("attention_chunk_size", "window_size", "index_topk"), WINDOW),
    "num_key_value_heads": 2,
    "head_dim": 16,
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "hidden_size_per_layer_input": 16,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_HYBRID = ["linear_attention", "full_attention", "linear_attention", "linear_attention"]
_WINDOWED = ["full_attention", "sliding_attention", "full_attention", "sliding_attention"]
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16}
_DELTA = {
    "layer_types": _HYBRID,
    "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
    "num_key_value_heads": _HEADS,
    "linear_num_heads": _HEADS,
    "linear_head_dim": 16,
    "num_expert_group": 1,
    "topk_group": 1,
    "num_experts_per_token": 2,
}
# Types with constraints of their own, or whose layers would all be of one kind. They may be parts of other models.
_OF_TYPE: dict[str, dict[str, Any]] = {
    "apertus1p5": {"image_token_offset": 100, "audio_token_offset": 116},
    "apertus1p5_vision_tokenizer": {"codebook_size": 16},
    "bamba": {"attn_layer_indices": [1], **_MAMBA},
    "chameleon": {"vocabulary_map": {"<image>": 3}},
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense", *["sparse"] * (_LAYERS - 1)]},
    "emu3_vqgan": {"base_channels": 32},
    "emu3": {"vocabulary_map": {"<image>": 3}},
    "cohere_compass_text": {"layer_types": _WINDOWED, "rope_parameters": dict.fromkeys(_WINDOWED, _ROPE)},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 10000.0},
        "ffn_config": {"ffn_hidden_size": _WIDE, "moe_num_experts": _EXPERTS, "moe_top_k": 2},
    },
    "dots3_note_audio_encoder": {"adapter_input_size": _WIDTH, "adapter_out_dim": _WIDTH},
    "dots3_note_vision_encoder": {
        **dict.fromkeys(("adapter_in_dim", "adapter_out_dim"), _WIDTH),
        "mlp_layer_types": ["dense"] * _LAYERS,
    },
    "dots1": {"n_routed_experts": _EXPERTS, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "glm5_next_text": {"index_kpool": 4, "qk_rope_head_dim": 0, "linear_num_heads": _HEADS, "linear_head_dim": 16},
    "granite4_vision": {"deepstack_layer_map": [], "spatial_target_layers": [0, 1, 2, 3], "downsample_rate": "1/2"},
    "granitemoehybrid": {"layer_types": _HYBRID, **_MAMBA},
    "inkling2_loop_text": {"n_layers_per_attn_res_block": 1, "loop_layer_index_start": 1, "loop_layer_index_end": 3},
    "kimi_linear": _DELTA,
    "bailing_hybrid": _DELTA,
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv", "conv"]},
    "codegen": {"rotary_dim": 8},
    "gptj": {"rotary_dim": 8},
    "longcat_flash": {"head_dim": 8},
    "mamba2": {"num_heads": 8, "head_dim": 16},
    "qwen2_5_omni_thinker": {"vision_start_token_id": 4},
    "qwen3_omni_moe_thinker": {"vision_start_token_id": 4},
    "qwen3_omni_moe_talker_text": {"shared_expert_intermediate_size": 32},
    "qwen4_exp_text": {
        "layer_types": _HYBRID,
        **{"linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_num_key_heads": 2, "hc_lowrank": 16},
        # With few heads, many tokens have the score 0, and what else is in the batch changes which of them are chosen.
        **{"indexer_n_heads": 64, "indexer_kv_heads": 1, "indexer_head_dim": 16},
        **{"indexer_budget": 16, "indexer_compress_ratio": 4},
        **{"ple_layer_ids": [1, 3], "ple_embed_dim": _WIDTH, "heads_per_ngram": 2, "eos_token_id": 2},
        **{"ngram_vocab_size_base": 500, "split_ngram_parts": 2, "make_ngram_vocab_size_divisible_by": 8},
    },
    "radio": {"video_temporal_patch_size": 2},
    "wavtokenizer_encoder": {"codebook_dim": _WIDTH, "codebook_size": 16},
    "xlstm": {"hidden_size": 128, "num_heads": 2},
    "zaya": {"num_experts_per_tok": 1},
}
# Their rotary dimensions are divided among time, height and width, in numbers that are for the usual width of heads.
_DIVIDED_ROTARY = (
    *("qwen2_vl_text", "qwen2_5_vl_text", "qwen2_5_omni_text", "qwen3_omni_moe_text", "hunyuan_vl_text"),
    *("glm4v_text", "glm4v_moe_text", "glm46v_text", "glm_ocr_text", "ernie4_5_vl_moe_text"),
    "hy_v4_vl_text",
)
# Changes of `_SMALL` where a config cannot have it. None: the config's own default.
_VARIANTS: tuple[dict[str, int | None], ...] = (
    {},
    {"num_key_value_heads": _HEADS},
    {"head_dim": None},
    {"num_key_value_heads": _HEADS, "head_dim": None},
    {"num_key_value_heads": None, "head_dim": None, "v_head_dim": None, "q_lora_rank": None},
    {"num_hidden_layers": None, "n_layer": None, "num_layers": None},
)


def build(model_type: str, folder: Path) -> Any:
    """Write a small model of this type with random weights to `folder`, and return it.

    Raises:
        ValueError: the type has too many constraints of its own. The message has the last one that was met.
    """
    built, reason = None, None
    # The hub has models of images with all their weights, also where transformers has a class for their text alone.
    whole = [AutoModelForMultimodalLM] if model_type in MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES else []
    text = [AutoModelForCausalLM] if model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES else []
    for auto, variant in itertools.product([*whole, *text], _VARIANTS):
        try:
            config = _scaled_down(AutoConfig.for_model(model_type), _SMALL | variant)
            _check_size(config, auto)
            built = save_model(config, folder, auto)
            greedy(built, [5, 6, 7], 2)
        except Exception as error:  # noqa: BLE001 - models check themselves in all kinds of ways
            reason = error
        else:
            return built
    if built is None:
        raise ValueError(f"{reason!r:.200}")
    # transformers' `generate` fails on it. The engine may refuse it with a better reason.
    return built


def _scaled_down(config: PreTrainedConfig, small: dict[str, int | None]) -> PreTrainedConfig:
    known = config.to_dict() | {name: getattr(config, name) for name in config.attribute_map if hasattr(config, name)}
    changes: dict[str, Any] = {
        name: number for name, number in small.items() if number is not None and _is_number(known.get(name, ""), name)
    }
    for name in {"text_config", "decoder", *config.sub_configs}:
        if isinstance(part := getattr(config, name, None), PreTrainedConfig):
            changes[name] = _scaled_down(part, small).to_dict()
    if config.model_type in _DIVIDED_ROTARY:
        rope = config.rope_parameters
        width = changes.get("head_dim", _WIDTH // _HEADS) * rope.get("partial_rotary_factor", 1)
        width = changes.get("qk_rope_head_dim", width)
        changes["rope_parameters"] = rope | {"mrope_section": _sections(int(width) // 2)}
    return type(config)(**changes | _OF_TYPE.get(config.model_type, {}))


def _sections(width: int) -> list[int]:
    """Divide rotary dimensions among time, height and width, as models of images and videos do.

    Ernie begins with height and width, which must have equally many.
    """
    return [width // 3, width // 3, width - 2 * (width // 3)]


def _is_number(value: object, name: str) -> bool:
    """Whether a config's value is a number. These few may be None until they are set."""
    if value is None:
        return name in ("head_dim", "num_key_value_heads", "num_experts_per_tok")
    return isinstance(value, int) and not isinstance(value, bool)


def _check_size(config: PreTrainedConfig, auto: Any) -> None:
    with torch.device("meta"):
        model: Any = auto.from_config(config)
    if (size := sum(weight.numel() for weight in model.parameters())) > _MAX_PARAMETERS:
        raise ValueError(f"it has {size} parameters")


def outcome(model_type: str, folder: Path) -> tuple[str, str]:
    """Return what happens to a model of this type, and the reason."""
    try:
        model = build(model_type, folder)
    except ValueError as error:
        return NOT_BUILT, str(error)
    config = EngineConfig(
        model=str(folder),
        dtype="float32",
        device="cpu",
        max_model_len=None if max_length(model.config.get_text_config(decoder=True)) else _LENGTH,
        max_num_batched_tokens=16,
        kv_cache_tokens=96,
    )
    try:
        engine = Engine(config)
    except ValueError as error:
        return REFUSED, str(error)
    rng = random.Random(1)
    prompts = [[rng.randrange(3, VOCABULARY) for _ in range(rng.randint(1, 44))] for _ in range(6)]
    prompts.append(prompts[0][:30] + prompts[1])
    try:
        expected = [greedy(model, prompt, _MAX_TOKENS) for prompt in prompts]
    except Exception as error:  # noqa: BLE001 - whatever transformers does not do
        return NOT_BUILT, f"{error!r:.200}"
    outputs = engine.generate(prompts, SamplingParams(max_tokens=_MAX_TOKENS, temperature=0))
    found = [output.token_ids for output in outputs]
    return (MATCHED, "") if found == expected else (WRONG, f"{found} instead of {expected}")


def outcomes(model_types: list[str]) -> Iterator[tuple[str, str, str]]:
    """Yield type, outcome and reason of each. They are tried in other processes, as a few crash or never end."""
    waiting = list(model_types)
    while waiting:
        command = [sys.executable, "-m", "scripts.reference.every_decoder", "--here", *waiting]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            assert process.stdout is not None
            timer = threading.Timer(_SECONDS_PER_MODEL, process.kill)
            timer.start()
            for line in process.stdout:
                timer.cancel()
                model_type, what, reason = line.rstrip("\n").split("\t", 2)
                yield model_type, what, reason
                waiting.remove(model_type)
                timer = threading.Timer(_SECONDS_PER_MODEL, process.kill)
                timer.start()
            timer.cancel()
        if waiting:
            yield waiting.pop(0), WRONG, f"the process ended with {process.returncode}"


def main() -> int:
    """Try the model types that are named, or all of them. Return 1 if one of them is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model_types", nargs="*", metavar="MODEL_TYPE", help="such as llama (default: all)")
    parser.add_argument("--here", action="store_true", help="try them in this process, without a limit on time")
    options = parser.parse_args()
    known = {*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES}
    if unknown := [name for name in options.model_types if name not in known]:
        parser.error(f"transformers has no decoder of the type {unknown[0]!r}")
    model_types = options.model_types or sorted(known)
    if options.here:
        logging.disable()
        for model_type in model_types:
            with tempfile.TemporaryDirectory() as folder:
                what, reason = outcome(model_type, Path(folder))
            print(model_type, what, reason.replace("\n", " "), sep="\t", flush=True)
        return 0
    counts: Counter[str] = Counter()
    for model_type, what, reason in tqdm(outcomes(model_types), total=len(model_types)):
        counts[what] += 1
        tqdm.write(f"{model_type:32} {what:10} {reason}")
    print(", ".join(f"{counts[what]} {what}" for what in (MATCHED, REFUSED, WRONG, NOT_BUILT)))
    return int(counts[WRONG] > 0)


if __name__ == "__main__":
    sys.exit(main())
