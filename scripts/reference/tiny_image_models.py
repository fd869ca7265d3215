"""Tiny models with random weights that read images, with the processors of transformers that belong to them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import transformers
from transformers import AutoTokenizer

from scripts.launch.default_model import default_model
from scripts.reference.tiny_models import save_model

t: Any = transformers

_TEXT: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
}
_LAYER_TYPES = ["full_attention", "sliding_attention", "full_attention"]
_SIGHT: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
_QWEN_SIGHT: dict[str, Any] = {"depth": 2, "hidden_size": 32, "num_heads": 2, "out_hidden_size": 64}


def _text(tokenizer: Any, model_type: str, **others: Any) -> dict[str, Any]:
    special = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    return {"model_type": model_type, "vocab_size": len(tokenizer), **special, **_TEXT, **others}


def _llava(tokenizer: Any) -> tuple[Any, Any]:
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    processor = t.LlavaProcessor(
        image_processor=t.CLIPImageProcessorPil(size={"shortest_edge": 56}, crop_size={"height": 56, "width": 56}),
        tokenizer=tokenizer,
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )
    config = t.LlavaConfig(
        vision_config={"model_type": "clip_vision_model", **_SIGHT, "image_size": 56, "patch_size": 14},
        text_config=_text(tokenizer, "llama"),
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
    )
    return config, processor


class _LlavaOnevisionProcessor(t.LlavaOnevisionProcessor):  # type: ignore[misc]
    """Without videos, for which it would need torchvision."""

    def __init__(self, image_processor: Any, tokenizer: Any) -> None:
        super().__init__(image_processor, tokenizer, num_image_tokens=16, vision_feature_select_strategy="full")


def _llava_onevision(tokenizer: Any) -> tuple[Any, Any]:
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    sizes = {"image_grid_pinpoints": [[56, 56], [56, 112], [112, 56], [112, 112]]}
    processor = _LlavaOnevisionProcessor(
        image_processor=t.LlavaOnevisionImageProcessorPil(size={"height": 56, "width": 56}, **sizes),
        tokenizer=tokenizer,
    )
    sight = {**_SIGHT, "model_type": "siglip_vision_model", "image_size": 56, "patch_size": 14}
    config = t.LlavaOnevisionConfig(
        vision_config={**sight, "vision_use_head": False},
        text_config=_text(tokenizer, "qwen2"),
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        **sizes,
    )
    return config, processor


class _Qwen2_5VLProcessor(t.Qwen2_5_VLProcessor):  # type: ignore[misc]
    """Without videos, for which it would need torchvision."""

    def __init__(self, image_processor: Any, tokenizer: Any) -> None:
        super().__init__(image_processor, tokenizer)


class _Qwen3VLProcessor(t.Qwen3VLProcessor):  # type: ignore[misc]
    """Without videos, for which it would need torchvision."""

    def __init__(self, image_processor: Any, tokenizer: Any) -> None:
        super().__init__(image_processor, tokenizer)


def _qwen(
    tokenizer: Any, config_class: Any, processor_class: Any, text: dict[str, Any], **sight: Any
) -> tuple[Any, Any]:
    names = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
    tokenizer.add_special_tokens({"additional_special_tokens": names})
    start, end, image, video = tokenizer.convert_tokens_to_ids(names)
    size = {"shortest_edge": 4 * 28 * 28, "longest_edge": 16 * 28 * 28}
    processor = processor_class(
        image_processor=t.Qwen2VLImageProcessorPil(size=size, patch_size=sight.get("patch_size", 14)),
        tokenizer=tokenizer,
    )
    config = config_class(
        vision_config={**_QWEN_SIGHT, **sight},
        text_config={**text, "vocab_size": len(tokenizer)},
        vision_start_token_id=start,
        vision_end_token_id=end,
        image_token_id=image,
        video_token_id=video,
    )
    return config, processor


def _qwen2_5_vl(tokenizer: Any) -> tuple[Any, Any]:
    rope = {"rope_type": "default", "mrope_section": [2, 3, 3]}
    text = _text(tokenizer, "qwen2_5_vl_text", rope_parameters=rope)
    return _qwen(tokenizer, t.Qwen2_5_VLConfig, _Qwen2_5VLProcessor, text, fullatt_block_indexes=[1])


def _qwen3_vl(tokenizer: Any) -> tuple[Any, Any]:
    rope = {"rope_type": "default", "mrope_section": [2, 3, 3], "mrope_interleaved": True}
    text = _text(tokenizer, "qwen3_vl_text", rope_parameters=rope)
    sight = {"deepstack_visual_indexes": [0, 1], "patch_size": 16, "num_position_embeddings": 64}
    return _qwen(tokenizer, t.Qwen3VLConfig, _Qwen3VLProcessor, text, **sight)


def _idefics3(tokenizer: Any) -> tuple[Any, Any]:
    processor = t.Idefics3Processor(
        image_processor=t.Idefics3ImageProcessorPil(
            size={"longest_edge": 112}, max_image_size={"longest_edge": 56}, do_image_splitting=True
        ),
        tokenizer=tokenizer,
        image_seq_len=4,
    )
    config = t.Idefics3Config(
        vision_config={**_SIGHT, "image_size": 56, "patch_size": 14},
        text_config=_text(tokenizer, "llama"),
        scale_factor=2,
        image_token_id=processor.image_token_id,
    )
    return config, processor


def _gemma3(_: Any) -> tuple[Any, Any]:
    names = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
    tokenizer = AutoTokenizer.from_pretrained(default_model(), extra_special_tokens=names)
    start, end, image = map(tokenizer.convert_tokens_to_ids, names.values())
    processor = t.Gemma3Processor(
        image_processor=t.Gemma3ImageProcessorPil(size={"height": 112, "width": 112}),
        tokenizer=tokenizer,
        image_seq_length=16,
    )
    config = t.Gemma3Config(
        vision_config={**_SIGHT, "image_size": 112, "patch_size": 14},
        text_config=_text(tokenizer, "gemma3_text", sliding_window=13, layer_types=_LAYER_TYPES),
        mm_tokens_per_image=16,
        boi_token_index=start,
        eoi_token_index=end,
        image_token_index=image,
    )
    return config, processor


class _Gemma4Processor(t.Gemma4Processor):  # type: ignore[misc]
    """Without sounds and videos, for which it would need torchvision."""

    def __init__(self, image_processor: Any, tokenizer: Any) -> None:
        t.ProcessorMixin.__init__(self, image_processor=image_processor, tokenizer=tokenizer)
        for name in ("image_token", "image_token_id", "boi_token", "eoi_token"):
            setattr(self, name, getattr(tokenizer, name))
        self.audio_token = self.audio_token_id = self.video_token = self.video_token_id = None
        self.boa_token = self.eoa_token = ""  # Not None, which is refused even without sounds.


def _gemma4(_: Any) -> tuple[Any, Any]:
    names = {"boi_token": "<|image>", "eoi_token": "<image|>", "image_token": "<|image|>"}
    tokenizer = AutoTokenizer.from_pretrained(default_model(), extra_special_tokens=names)
    start, end, image = map(tokenizer.convert_tokens_to_ids, names.values())
    processor = _Gemma4Processor(
        image_processor=t.Gemma4ImageProcessorPil(max_soft_tokens=70, patch_size=14, pooling_kernel_size=2),
        tokenizer=tokenizer,
    )
    config = t.Gemma4Config(
        vision_config={**_SIGHT, "num_key_value_heads": 2, "head_dim": 16, "patch_size": 14, "pooling_kernel_size": 2},
        text_config=_text(
            tokenizer,
            "gemma4_text",
            sliding_window=13,
            layer_types=_LAYER_TYPES,
            use_bidirectional_attention="vision",
            hidden_size_per_layer_input=0,
        ),
        boi_token_id=start,
        eoi_token_id=end,
        image_token_id=image,
    )
    return config, processor


CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}{% elif part['type'] == 'image' %}@{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""It reads lists of parts, as templates of such models do. `@` stands for the placeholder of an image."""

IMAGE_MODELS: dict[str, Callable[[Any], tuple[Any, Any]]] = {
    "llava": _llava,
    "llava_onevision": _llava_onevision,
    "qwen2_5_vl": _qwen2_5_vl,
    "qwen3_vl": _qwen3_vl,
    "idefics3": _idefics3,
    "gemma3": _gemma3,
    "gemma4": _gemma4,
}


def save_image_model(kind: str, folder: Path) -> tuple[Any, Any]:
    """Write a model of `IMAGE_MODELS` and its processor to `folder`. Return the model in float32, and the processor.

    Without torchvision, transformers cannot load Qwen's processors from there.
    """
    config, processor = IMAGE_MODELS[kind](AutoTokenizer.from_pretrained(default_model()))
    model = save_model(config, folder)
    processor.tokenizer.chat_template = CHAT_TEMPLATE.replace("@", processor.image_token)
    processor.save_pretrained(folder)
    return model, processor
