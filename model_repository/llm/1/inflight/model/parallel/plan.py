"""transformers' tensor-parallel plan of a model: which layers are divided, and how."""

import re
from collections.abc import Mapping
from typing import Any

import torch
from transformers import PreTrainedConfig
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import ErnieFuseAndSplitTextVisionExperts, MergeModulelist, WeightConverter

from inflight.errors import UnsupportedModel
from inflight.model.loading.auto_class import auto_class

COLUMN, ROW = "colwise", "rowwise"
GATHERED_COLUMN = frozenset({"colwise_gather_output", "colwise_rep"})
SPLIT_ROW = frozenset({"rowwise_split_input", "rowwise_rep"})
VOCABULARY = "embedding_rowwise"
_EXPERTS = "moe_tp_experts"
SUMMED = frozenset({_EXPERTS, "all_reduce"})
REPLICATE = "replicate"
_WHOLE = "replicated_with_grad_allreduce"
# Columns need nothing after the product, and the others matter only for weights by themselves or for training.
_SILENT = frozenset(
    {
        COLUMN,
        "packed_colwise",
        "packed_rowwise",
        REPLICATE,
        _WHOLE,
        "local_params",
        "mla_kv_a_proj",
    }
)
_SERVED = {ROW, VOCABULARY} | GATHERED_COLUMN | SPLIT_ROW | SUMMED | _SILENT

KV_HEADS = ("k_proj", "v_proj")
"""The layers whose outputs are KV heads and nothing else."""
_ADDED: Mapping[str, Mapping[str, str]] = {
    "gpt_oss": {
        "model.layers.*.self_attn.q_proj": COLUMN,
        "model.layers.*.self_attn.k_proj": COLUMN,
        "model.layers.*.self_attn.v_proj": COLUMN,
        "model.layers.*.self_attn.o_proj": ROW,
        "model.layers.*.self_attn.sinks": COLUMN,
        # Experts are stored as [experts, inputs, outputs], so these two styles have changed places. Each gate lies
        # beside the output that it gates.
        "model.layers.*.mlp.experts.gate_up_proj": ROW,
        "model.layers.*.mlp.experts.gate_up_proj_bias": ROW,
        "model.layers.*.mlp.experts.down_proj": COLUMN,
        "model.layers.*.mlp.experts": _EXPERTS,
    },
    "qwen3_vl": {
        "model.language_model.layers.*.self_attn.q_proj": COLUMN,
        "model.language_model.layers.*.self_attn.k_proj": COLUMN,
        "model.language_model.layers.*.self_attn.v_proj": COLUMN,
        "model.language_model.layers.*.self_attn.o_proj": ROW,
        "model.language_model.layers.*.mlp.gate_proj": COLUMN,
        "model.language_model.layers.*.mlp.up_proj": COLUMN,
        "model.language_model.layers.*.mlp.down_proj": ROW,
    },
}
"""What transformers' plans leave undivided, by the type of the model. In both, it is all but embeddings and head."""
# The layers whose outputs are heads.
_HEADS = ("q_proj", *KV_HEADS, "qkv_proj", "query_key_value", "q_b_proj", "kv_b_proj")
# Conversions of weights that begin with one tensor for each expert. transformers divides each of them rightly.
_OF_EXPERTS = (MergeModulelist, ErnieFuseAndSplitTextVisionExperts)


def style_of(name: str, plan: Mapping[str, str]) -> str | None:
    """Return how the plan divides a module or weight of this name; None if it does not. A `*` is a layer's number."""
    return plan.get(re.sub(r"\.\d+(?=\.|$)", ".*", name))


def check_plan(config: PreTrainedConfig, size: int, *, trust_remote_code: bool) -> dict[str, str]:
    """Check that a model can be divided over `size` ranks, before any weight is read. Return changes of its plan.

    They are what transformers' plan lacks, and REPLICATE for layers of KV heads: where there are fewer KV heads than
    ranks, all ranks load all of them, and `divide` gives each rank the one that its query heads use, as vLLM does.
    Encoders of images are not divided, as rank 0 runs them alone.

    Raises:
        UnsupportedModel: it has no plan, the plan has a style that is not served, heads do not divide, or its
            checkpoints store divided weights in another way than the model has them. The message has the style, the
            numbers, or a weight.
    """
    kind = config.model_type
    with torch.device("meta"):
        model = auto_class(config).from_config(config, trust_remote_code=trust_remote_code)
    added = dict(_ADDED.get(kind, {}))
    plan: Mapping[str, str] = {**(model.tp_plan or {}), **added}
    if not plan:
        raise UnsupportedModel(
            f"{kind} has no plan for tensor parallel in transformers; tensor_parallel_size is {size}, it must be 1"
        )
    for name, style in plan.items():
        if style not in _SERVED:
            raise UnsupportedModel(
                f"the tensor-parallel plan of {kind} has the style {style!r} for {name}, which is not served; "
                f"tensor_parallel_size is {size}, it must be 1"
            )
    if found := _converted(model, plan):
        name, conversion = found
        raise UnsupportedModel(
            f"the checkpoints of {kind} store {name} in another way than the model has it ({conversion}), which cannot "
            f"be divided while it is read; tensor_parallel_size is {size}, it must be 1"
        )
    return added | _shared_heads(config, plan, size) | dict.fromkeys(_of_encoders(model, plan), _WHOLE)


def _of_encoders(model: Any, plan: Mapping[str, str]) -> list[str]:
    """Return what the plan divides of a model that reads images, beside its decoder and its head."""
    if not hasattr(model.base_model, "get_image_features"):
        return []
    parts = (model.get_decoder(), model.get_output_embeddings())
    names = [f"{name}." for name, part in model.named_modules() if any(part is each for each in parts)]
    return [name for name in plan if not f"{name}.".startswith(tuple(names))]


def _shared_heads(config: PreTrainedConfig, plan: Mapping[str, str], size: int) -> dict[str, str]:
    """Check that heads and experts can be divided over `size` ranks. Return changes for layers of shared KV heads."""
    kind, text_config = config.model_type, config.get_text_config(decoder=True)
    if _EXPERTS in _ADDED.get(kind, {}).values() and text_config.intermediate_size % size:
        raise UnsupportedModel(
            f"{kind} has experts of the width {text_config.intermediate_size}; tensor_parallel_size is {size}; it must "
            "divide the width"
        )
    divided = [name for name, style in plan.items() if style == COLUMN and name.rsplit(".", 1)[-1] in _HEADS]
    if not divided:
        return {}
    heads, kv_heads = text_config.num_attention_heads, kv_heads_of(text_config)
    shared = [name for name in divided if name.rsplit(".", 1)[-1] in KV_HEADS]
    if heads % size == 0 and kv_heads % size == 0:
        return {}
    if heads % size == 0 and size % kv_heads == 0 and shared:
        return dict.fromkeys(shared, REPLICATE)
    raise UnsupportedModel(
        f"{kind} has {heads} attention heads and {kv_heads} KV heads; tensor_parallel_size is {size}; it must divide "
        "the attention heads, and divide the KV heads or be a multiple of them"
    )


def kv_heads_of(text_config: PreTrainedConfig) -> int:
    """The number of KV heads of a layer."""
    kv_heads: int = getattr(text_config, "num_key_value_heads", None) or text_config.num_attention_heads
    return kv_heads


def _converted(model: Any, plan: Mapping[str, str]) -> tuple[str, str] | None:
    """Return a divided weight that is not in checkpoints as it is in the model, and the name of the conversion.

    transformers divides tensors before it converts them. So a rank may get rows that belong to another one, and nothing
    would tell: the whole model, with which the divided one is compared, is put together from the same rows.
    """
    for converter in get_model_conversion_mapping(model):
        if not isinstance(converter, WeightConverter) or isinstance(converter.operations[0], _OF_EXPERTS):
            continue
        results = "|".join(re.escape(pattern.lstrip(".")) for pattern in converter.target_patterns)
        of_results = re.compile(rf"{re.escape(converter.scope_prefix or '')}(.*\.)?({results})")
        for name, _ in model.named_parameters():
            is_divided = style_of(name, plan) or style_of(name.rpartition(".")[0], plan)
            if is_divided and of_results.match(name):
                return name, type(converter.operations[0]).__name__
    return None
