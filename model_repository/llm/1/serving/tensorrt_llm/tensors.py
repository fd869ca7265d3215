"""The inputs and outputs of TensorRT-LLM's models, by their names, types and shapes.

Nothing that takes time is imported, for the same reason as in `serving.fields`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Input:
    """An input tensor."""

    name: str
    data_type: str
    dims: tuple[int, ...] = (1,)
    field: str | None = None
    """Our field that means the same. None: `TokenRequest` reads it."""


# The tensors of `tensorrt_llm`.
INPUTS = (
    Input("input_ids", "TYPE_INT32", (-1,)),
    Input("input_lengths", "TYPE_INT32"),
    Input("request_output_len", "TYPE_INT32", field="max_tokens"),
    Input("streaming", "TYPE_BOOL"),
    Input("exclude_input_in_output", "TYPE_BOOL"),
    Input("end_id", "TYPE_INT32", field="end_id"),
    Input("pad_id", "TYPE_INT32", field="pad_id"),
    Input("stop_words_list", "TYPE_INT32", (2, -1)),
    Input("bad_words_list", "TYPE_INT32", (2, -1)),
    Input("embedding_bias", "TYPE_FP32", (-1,)),
    Input("temperature", "TYPE_FP32", field="temperature"),
    Input("runtime_top_k", "TYPE_INT32"),
    Input("runtime_top_p", "TYPE_FP32"),
    Input("repetition_penalty", "TYPE_FP32", field="repetition_penalty"),
    Input("presence_penalty", "TYPE_FP32", field="presence_penalty"),
    Input("frequency_penalty", "TYPE_FP32", field="frequency_penalty"),
    Input("min_tokens", "TYPE_INT32", field="min_tokens"),
    Input("min_length", "TYPE_INT32", field="min_tokens"),
    Input("seed", "TYPE_UINT64", field="seed"),
    Input("random_seed", "TYPE_UINT64", field="seed"),
    Input("num_return_sequences", "TYPE_INT32", field="num_return_sequences"),
    Input("beam_width", "TYPE_INT32", field="beam_width"),
    Input("len_penalty", "TYPE_FP32", field="length_penalty"),
    Input("early_stopping", "TYPE_BOOL", field="early_stopping"),
    Input("draft_input_ids", "TYPE_INT32", (-1,), field="draft_input_ids"),
    Input("prompt_embedding_table", "TYPE_FP16", (-1, -1), field="prompt_embedding_table"),
    Input("prompt_vocab_size", "TYPE_INT32", field="prompt_vocab_size"),
    Input("guided_decoding_guide_type", "TYPE_STRING", field="guided_decoding_guide_type"),
    Input("guided_decoding_guide", "TYPE_STRING", field="guided_decoding_guide"),
    Input("return_log_probs", "TYPE_BOOL", field="return_log_probs"),
    Input("return_perf_metrics", "TYPE_BOOL", field="return_perf_metrics"),
    Input("return_num_input_tokens", "TYPE_BOOL", field="return_num_input_tokens"),
    Input("return_num_output_tokens", "TYPE_BOOL", field="return_num_output_tokens"),
    # Ensembles connect the following ones.
    Input("return_context_logits", "TYPE_BOOL"),
    Input("return_generation_logits", "TYPE_BOOL"),
    Input("lora_task_id", "TYPE_UINT64"),
    Input("lora_weights", "TYPE_FP16", (-1, -1)),
    Input("lora_config", "TYPE_INT32", (-1, 3)),
    # Ignored: the first tells embeddings apart in the prefix cache, which we do by their values. The others are for
    # encoders, and the ensemble always sends them.
    Input("prompt_table_extra_ids", "TYPE_UINT64", (-1,)),
    Input("decoder_input_ids", "TYPE_INT32", (-1,)),
    Input("decoder_input_lengths", "TYPE_INT32"),
)

REFUSED = frozenset(
    {"return_context_logits", "return_generation_logits", "lora_task_id", "lora_weights", "lora_config"}
)
"""What does not exist here, unless it asks for nothing."""

OUTPUTS: dict[str, tuple[str, tuple[int, ...]]] = {
    "output_ids": ("TYPE_INT32", (-1, -1)),
    "sequence_length": ("TYPE_INT32", (-1,)),
    "cum_log_probs": ("TYPE_FP32", (-1,)),
    "output_log_probs": ("TYPE_FP32", (-1, -1)),
    "num_input_tokens": ("TYPE_INT32", (1,)),
    "num_output_tokens": ("TYPE_INT32", (1,)),
    "kv_cache_reused_blocks": ("TYPE_INT32", (1,)),
    "arrival_time_ns": ("TYPE_INT64", (1,)),
    "first_scheduled_time_ns": ("TYPE_INT64", (1,)),
    "first_token_time_ns": ("TYPE_INT64", (1,)),
    "last_token_time_ns": ("TYPE_INT64", (1,)),
    "acceptance_rate": ("TYPE_FP32", (1,)),
    "total_accepted_draft_tokens": ("TYPE_INT32", (1,)),
    "total_draft_tokens": ("TYPE_INT32", (1,)),
    "kv_cache_alloc_new_blocks": ("TYPE_INT32", (1,)),
    "kv_cache_alloc_total_blocks": ("TYPE_INT32", (1,)),
    # Never sent, but ensembles connect them.
    "context_logits": ("TYPE_FP32", (-1, -1)),
    "generation_logits": ("TYPE_FP32", (-1, -1, -1)),
    "batch_index": ("TYPE_INT32", (1,)),
    "sequence_index": ("TYPE_INT32", (1,)),
}
"""The type and the shape of each output tensor."""

ENSEMBLE_OUTPUTS: dict[str, tuple[str, tuple[int, ...]]] = {
    "sequence_index": ("TYPE_INT32", (1,)),
    "kv_cache_alloc_new_blocks": ("TYPE_INT32", (-1,)),
    "kv_cache_alloc_total_blocks": ("TYPE_INT32", (-1,)),
    # Never sent, but clients name it.
    "batch_index": ("TYPE_INT32", (1,)),
}
"""Those of `ensemble` that our own format does not have."""


def request_format(config: Any) -> str:
    """Return the format that the parameters of a `pb_utils.ModelConfig` ask for."""
    parameter = config.as_dict().get("parameters", {}).get("request_format", {})
    return str(parameter.get("string_value", "")).strip()


def add_tensors(config: Any) -> Any:
    """Give a `pb_utils.ModelConfig` all inputs and outputs of `tensorrt_llm`; returns it."""
    for tensor in INPUTS:
        given = {"name": tensor.name, "data_type": tensor.data_type, "dims": list(tensor.dims)}
        config.add_input({**given, "optional": True})
    return _with_outputs(config, OUTPUTS)


def add_ensemble_outputs(config: Any) -> Any:
    """Give a `pb_utils.ModelConfig` the outputs that `ensemble` has besides ours; returns it."""
    return _with_outputs(config, ENSEMBLE_OUTPUTS)


def _with_outputs(config: Any, outputs: Mapping[str, tuple[str, tuple[int, ...]]]) -> Any:
    for name, (data_type, dims) in outputs.items():
        config.add_output({"name": name, "data_type": data_type, "dims": list(dims)})
    return config
