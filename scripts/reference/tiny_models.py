"""Tiny models with random weights, one for each difference between decoder architectures."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers as t
from transformers import PreTrainedConfig

from inflight.model.loading.auto_class import auto_class

VOCABULARY = 160
WINDOW = 8

_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_GROUPED = {**_COMMON, "num_key_value_heads": 2}


def _text(model_type: str) -> dict[str, Any]:
    return {"model_type": model_type, **_GROUPED, "head_dim": 16}


@dataclass(frozen=True)
class TinyModel:
    """A configuration and what distinguishes it."""

    config: PreTrainedConfig
    why: str


SERVED: dict[str, TinyModel] = {
    "llama": TinyModel(t.LlamaConfig(**_GROUPED), "the plain case, grouped-query attention"),
    "qwen2": TinyModel(
        t.Qwen2Config(**_GROUPED, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1),
        "biases, and a window in some layers only",
    ),
    "qwen3": TinyModel(t.Qwen3Config(**_GROUPED, head_dim=32), "normed queries and keys, heads wider than the model"),
    "mistral": TinyModel(t.MistralConfig(**_GROUPED, sliding_window=WINDOW), "a window shorter than the prompts"),
    "gemma2": TinyModel(
        t.Gemma2Config(
            **_GROUPED, head_dim=16, query_pre_attn_scalar=24, sliding_window=WINDOW, attn_logit_softcapping=5.0
        ),
        "softcap, alternating windows, a scaling of its own",
    ),
    "gemma3": TinyModel(t.Gemma3TextConfig(**_GROUPED, head_dim=16, sliding_window=WINDOW), "a rope per layer type"),
    "phi3": TinyModel(t.Phi3Config(**_GROUPED), "fused projections"),
    "gpt_neox": TinyModel(t.GPTNeoXConfig(**_COMMON), "parallel residual, partial rotary"),
    "gpt2": TinyModel(
        t.GPT2Config(
            vocab_size=VOCABULARY, n_embd=64, n_layer=3, n_head=4, n_positions=256, bos_token_id=1, eos_token_id=2
        ),
        "learned positions",
    ),
    "olmo2": TinyModel(t.Olmo2Config(**_GROUPED), "norms after the sublayers"),
    "cohere2": TinyModel(t.Cohere2Config(**_GROUPED, sliding_window=WINDOW, logit_scale=0.25), "scaled logits"),
    "gpt_oss": TinyModel(
        t.GptOssConfig(**_GROUPED, head_dim=16, sliding_window=WINDOW, num_local_experts=4, num_experts_per_tok=2),
        "attention sinks, a mixture of experts",
    ),
    "phimoe": TinyModel(
        t.PhimoeConfig(**_GROUPED, sliding_window=WINDOW, num_local_experts=4), "a window in the mask alone"
    ),
    "deepseek_v3": TinyModel(
        t.DeepseekV3Config(
            **{**_COMMON, "num_key_value_heads": 4},
            moe_intermediate_size=32,
            n_routed_experts=4,
            num_experts_per_tok=2,
            n_group=1,
            topk_group=1,
            first_k_dense_replace=1,
            q_lora_rank=32,
            kv_lora_rank=16,
            qk_nope_head_dim=16,
            qk_rope_head_dim=8,
            v_head_dim=12,
        ),
        "latent attention: values narrower than keys",
    ),
}

_MAMBA: dict[str, Any] = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16}

RECURRENT: dict[str, TinyModel] = {
    "lfm2": TinyModel(
        t.Lfm2Config(**_GROUPED, layer_types=["conv", "full_attention", "conv"]), "short convolutions between attention"
    ),
    "qwen3_5": TinyModel(
        t.Qwen3_5TextConfig(
            **_GROUPED,
            head_dim=16,
            layer_types=["linear_attention", "linear_attention", "full_attention"],
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            linear_key_head_dim=16,
            linear_value_head_dim=16,
        ),
        "gated delta rule, fewer key heads than value heads",
    ),
    "granitemoehybrid": TinyModel(
        t.GraniteMoeHybridConfig(
            **_GROUPED,
            **_MAMBA,
            num_local_experts=0,
            layer_types=["linear_attention", "full_attention", "linear_attention"],
            shared_intermediate_size=96,
        ),
        "Mamba-2 between attention",
    ),
    "falcon_h1": TinyModel(
        t.FalconH1Config(**_GROUPED, **_MAMBA, mamba_d_ssm=128), "attention beside Mamba-2 in each layer"
    ),
    "jamba": TinyModel(
        t.JambaConfig(**_GROUPED, attn_layer_period=3, attn_layer_offset=1, num_experts=2, mamba_d_state=8),
        "Mamba, which continues with single tokens only",
    ),
    "nemotron_h": TinyModel(
        t.NemotronHConfig(
            **{**_GROUPED, "hybrid_override_pattern": "M-M*M"},
            head_dim=16,
            mamba_num_heads=8,
            mamba_head_dim=16,
            n_groups=2,
            ssm_state_size=16,
            # Most time steps would be below.
            time_step_min=2.0,
        ),
        "Mamba-2 whose time steps are bounded in prompts, but not in output",
    ),
    "falcon_mamba": TinyModel(
        t.FalconMambaConfig(
            vocab_size=VOCABULARY, hidden_size=64, num_hidden_layers=2, bos_token_id=1, eos_token_id=2, pad_token_id=0
        ),
        "norms without a weight, though they have one",
    ),
    "mamba2": TinyModel(
        t.Mamba2Config(
            vocab_size=VOCABULARY,
            hidden_size=64,
            num_hidden_layers=3,
            num_heads=8,
            head_dim=16,
            state_size=16,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=0,
        ),
        "no attention at all",
    ),
}
"""Models with recurrent states."""

OWN_ATTENTION: dict[str, TinyModel] = {
    "falcon": TinyModel(t.FalconConfig(**_COMMON), "a single KV head"),
    "falcon_rw": TinyModel(t.FalconConfig(**_COMMON, alibi=True, multi_query=False), "ALiBi, with sdpa"),
    "falcon_40b": TinyModel(
        t.FalconConfig(**_COMMON, new_decoder_architecture=True, num_kv_heads=2), "grouped-query attention"
    ),
    "bloom": TinyModel(
        t.BloomConfig(vocab_size=VOCABULARY, hidden_size=64, n_layer=3, n_head=4, bos_token_id=1, eos_token_id=2),
        "ALiBi: distances to the tokens of the mask, and nothing that bounds the length",
    ),
    "gpt_neo": TinyModel(
        t.GPTNeoConfig(
            vocab_size=VOCABULARY,
            hidden_size=64,
            num_layers=2,
            num_heads=4,
            attention_types=[[["global", "local"], 1]],
            window_size=WINDOW,
            max_position_embeddings=256,
            bos_token_id=1,
            eos_token_id=2,
        ),
        "a window in a mask of its own",
    ),
    "mpt": TinyModel(
        t.MptConfig(vocab_size=VOCABULARY, d_model=64, n_layers=3, n_heads=4, max_seq_len=256, eos_token_id=2),
        "it takes no positions, but distances to the last token",
    ),
    "bart": TinyModel(
        t.BartConfig(
            vocab_size=VOCABULARY,
            d_model=64,
            encoder_layers=2,
            decoder_layers=2,
            decoder_ffn_dim=96,
            decoder_attention_heads=4,
            max_position_embeddings=256,
            is_encoder_decoder=False,
        ),
        "it takes no positions, but the number of cached tokens, so padding would change it",
    ),
    "llama4_text": TinyModel(
        t.Llama4TextConfig(
            **_GROUPED,
            head_dim=16,
            num_local_experts=2,
            attention_chunk_size=WINDOW,
            no_rope_layers=[1, 0, 1],
            floor_scale=512,
        ),
        "attention within chunks",
    ),
    "deepseek_v32": TinyModel(
        t.DeepseekV32Config(
            **{**_COMMON, "num_key_value_heads": 4},
            moe_intermediate_size=32,
            n_routed_experts=4,
            num_experts_per_tok=2,
            n_group=1,
            topk_group=1,
            q_lora_rank=32,
            kv_lora_rank=16,
            qk_nope_head_dim=16,
            qk_rope_head_dim=8,
            v_head_dim=12,
            # With few heads, many tokens have the score 0, and padding changes which of them are chosen.
            index_n_heads=64,
            index_head_dim=32,
            index_topk=WINDOW,
        ),
        "an indexer, with keys of its own, chooses the tokens to attend to",
    ),
    "diffllama": TinyModel(t.DiffLlamaConfig(**_GROUPED), "two calls of attention in each layer"),
    "doge": TinyModel(t.DogeConfig(**_GROUPED), "a mask that depends on the values"),
}
"""Models that attend by their own code."""

OWN_CACHE: dict[str, TinyModel] = {
    "deepseek_v4": TinyModel(
        t.DeepseekV4Config(
            **{**_COMMON, "num_hidden_layers": 4},
            head_dim=16,
            moe_intermediate_size=32,
            n_routed_experts=4,
            num_experts_per_tok=2,
            q_lora_rank=32,
            o_groups=2,
            o_lora_rank=16,
            hc_mult=2,
            # As for DeepSeek V3.2: with few heads, the sizes of chunks change which tokens are chosen.
            index_n_heads=64,
            index_head_dim=16,
            index_topk=4,
            sliding_window=WINDOW,
            layer_types=[
                "sliding_attention",
                *["compressed_sparse_attention", "heavily_compressed_attention"],
                "sliding_attention",
            ],
            compress_rates={"compressed_sparse_attention": 4, "heavily_compressed_attention": 10},
        ),
        "compressed tokens beside a window, some of which an indexer chooses",
    ),
    "minimax": TinyModel(
        t.MiniMaxConfig(
            **_GROUPED,
            head_dim=16,
            num_local_experts=2,
            block_size=WINDOW,
            layer_types=["linear_attention", "full_attention", "linear_attention"],
        ),
        "a class of cache of its own",
    ),
    "inkling_text": TinyModel(
        t.InklingTextConfig(
            **_GROUPED,
            head_dim=16,
            swa_num_attention_heads=4,
            swa_num_key_value_heads=2,
            swa_head_dim=16,
            unpadded_vocab_size=VOCABULARY,
            sliding_window_size=WINDOW,
            rel_extent=WINDOW,
            n_routed_experts=4,
            num_experts_per_tok=2,
            layer_types=["hybrid_sliding", "hybrid", "hybrid_sliding"],
        ),
        "convolutions within attention, and a bias by distance",
    ),
    "rwkv": TinyModel(
        t.RwkvConfig(
            vocab_size=VOCABULARY, hidden_size=64, num_hidden_layers=3, rescale_every=2, bos_token_id=1, eos_token_id=2
        ),
        "a list of tensors as its cache, and weights that change in the first forward pass",
    ),
}
"""Models that keep a cache of their own for each sequence."""

_SIGHT: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
_QWEN_SIGHT: dict[str, Any] = {"depth": 1, "hidden_size": 32, "num_heads": 2, "out_hidden_size": 64}

MULTIMODAL: dict[str, TinyModel] = {
    "mistral3": TinyModel(
        t.Mistral3Config(vision_config={"model_type": "pixtral", **_SIGHT}, text_config=_text("mistral")),
        "a text model of another type",
    ),
    "gemma3_with_images": TinyModel(
        t.Gemma3Config(
            vision_config={**_SIGHT, "image_size": 28},
            text_config={**_GROUPED, "head_dim": 16, "sliding_window": WINDOW, "pad_token_id": 0},
        ),
        "tokens of images would attend in both directions",
    ),
    "qwen2_5_vl": TinyModel(
        t.Qwen2_5_VLConfig(
            vision_config=_QWEN_SIGHT,
            text_config={**_GROUPED, "rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3]}},
        ),
        "positions by time, height and width, which are the same for text",
    ),
    "qwen3_vl": TinyModel(
        t.Qwen3VLConfig(
            vision_config={**_QWEN_SIGHT, "deepstack_visual_indexes": [0]}, text_config=_text("qwen3_vl_text")
        ),
        "images also enter deeper layers",
    ),
    "qwen2_audio": TinyModel(
        t.Qwen2AudioConfig(
            audio_config={"d_model": 32, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 48},
            text_config=_text("qwen2"),
        ),
        "sounds in place of images",
    ),
    "granite4_vision": TinyModel(
        t.Granite4VisionConfig(
            vision_config={
                **{**_SIGHT, "hidden_size": 64, "num_attention_heads": 1},
                "model_type": "clip_vision_model",
                "image_size": 28,
                "patch_size": 14,
            },
            text_config=_text("granite4_vision_text"),
            deepstack_layer_map=[],
            spatial_target_layers=[0],
            downsample_rate="1/2",
        ),
        "no cache, unless it gets an empty one",
    ),
}
"""Models that also read images or sounds. They are served with text alone."""

MODELS = SERVED | MULTIMODAL | OWN_ATTENTION | RECURRENT | OWN_CACHE

REFUSED: dict[str, tuple[PreTrainedConfig, str]] = {
    "recurrent_gemma": (
        t.RecurrentGemmaConfig(**_GROUPED, lru_width=64, attention_window_size=WINDOW),
        "2 recurrent layers, of which 0 keep their states in transformers' cache",
    ),
    "bert": (
        t.BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=4,
            is_decoder=False,
        ),
        "not causal",
    ),
    "moshi": (
        t.MoshiConfig(**_GROUPED, head_dim=16, sliding_window=WINDOW, ffn_dim=96, num_codebooks=2),
        "does not come out right",
    ),
}


def save_model(config: PreTrainedConfig, folder: Path, auto: Any = None) -> Any:
    """Write a model with random weights to `folder`. Return it as transformers loads it again, in float32.

    `auto` is transformers' class that makes and loads it. Default: the one with which the engine would load it.
    """
    torch.manual_seed(0)
    auto = auto or auto_class(config)
    model: Any = auto.from_config(config)
    model.float()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                # The weights are large enough that attention affects the next token, not only the embedding.
                weight.normal_(0, 0.06)
    if model.can_generate():
        model.generation_config.do_sample = False
    model.save_pretrained(folder)
    served: Any = auto.from_pretrained(folder, dtype=torch.float32)
    return served.eval()


def greedy(model: Any, prompt: list[int], max_tokens: int) -> list[int]:
    """The tokens that transformers' `generate` appends to a prompt, without those that only settings force."""
    ids = torch.tensor([prompt])
    model.generation_config.forced_eos_token_id = None
    output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, do_sample=False)
    return list(output[0, len(prompt) :].tolist())
