"""Loads the weights of a model, and checks that they are all there."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedConfig
from transformers.distributed.configuration_utils import DistributedConfig
from transformers.utils.import_utils import is_accelerate_available

from inflight.config import EngineConfig
from inflight.errors import UnsupportedModel
from inflight.model.attention import interface
from inflight.model.loading.auto_class import auto_class
from inflight.model.loading.checkpoint import first_of, hint_at_other_files
from inflight.model.loading.classification_head import HEAD_WEIGHTS
from inflight.model.loading.config_errors import reason
from inflight.model.loading.quantized_checkpoint.dividing import dividing
from inflight.model.mixtures import is_mixture
from inflight.model.parallel.layers import DividedWeight, divide
from inflight.model.parallel.plan import check_plan
from inflight.model.parallel.shards import Shards

logger = logging.getLogger(__name__)

_SCALES = ("weight_scale", "weight_scale_inv", "_scales", ".scales", ".absmax", ".SCB", ".qweight")
"""How the names of tensors end that only quantized weights have."""
_NO_FRACTIONS = ("BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64")
_GROUPED_BYTES = 16
"""torch.nn.functional.grouped_mm needs rows of a multiple of this size."""


def load_module(
    config: EngineConfig,
    hf_config: PreTrainedConfig,
    device: torch.device,
    distributed: DistributedConfig | None = None,
) -> tuple[Any, bool]:
    """Return the module with its weights, and whether it has an output head.

    Raises:
        UnsupportedModel: transformers cannot load it as a decoder.
        ValueError: The weights are damaged, incomplete or of another shape, or need a package that is not there.
    """
    is_quantized = _is_quantized(hf_config)
    # accelerate loads weights directly to the device. Without it they take a detour through host memory.
    directly = device.type != "cpu" and is_accelerate_available() and distributed is None
    dtype = config.dtype if config.dtype == "auto" else getattr(torch, config.dtype)
    load = partial(
        auto_class(hf_config).from_pretrained,
        config.model,
        revision=config.revision,
        config=hf_config,
        dtype=dtype,
        device_map={"": device} if directly else None,
        use_safetensors=True,
        trust_remote_code=config.trust_remote_code,
        distributed_config=distributed,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # `_check_weights` names them better.
    )
    try:
        loaded: Any = _with_our_attention_or_its_own(load)
    except (OSError, ImportError, SafetensorError) as error:
        hint = hint_at_other_files(Path(config.model))
        raise ValueError(f"model is {config.model!r}; its weights cannot be loaded: {error}{hint}") from error
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:
        # Values of the config that its class lets pass, or code of the model's own.
        if "conversion of the weights" in str(error):
            raise ValueError(
                f"model is {config.model!r}; its weights cannot be loaded: the log says which are damaged, incomplete, "
                "or stored in another way than the config says"
            ) from error
        if distributed is not None and isinstance(error, RuntimeError):  # Another rank may have failed.
            raise
        raise UnsupportedModel(
            f"{hf_config.model_type} cannot be loaded as a decoder: {reason(config.model, error)}"
        ) from error
    module, report = loaded
    if not is_quantized:
        _check_not_quantized(report)
    has_head = _check_weights(config, module, report)
    module.to(device)
    module.eval()
    module.requires_grad_(False)
    if is_quantized:
        _cast_experts(module)
    _choose_experts(module)
    return module, has_head


def _is_quantized(hf_config: PreTrainedConfig) -> bool:
    return getattr(hf_config, "quantization_config", None) is not None


def _cast_experts(module: Any) -> None:
    """Give experts the dtype of the model. transformers leaves those of compressed-tensors in that of their scales."""
    for weight in _weights_of_experts(module):
        weight.data = weight.data.to(module.dtype)


def _choose_experts(module: Any) -> None:
    """Let a mixture compute its experts one by one where torch's product of all of them does not support their width.

    That product needs rows whose size is a multiple of 16 bytes.
    """
    widths = {width * weight.itemsize for weight in _weights_of_experts(module) for width in weight.shape[1:]}
    if any(width % _GROUPED_BYTES for width in widths):
        module.set_experts_implementation("eager")


def _weights_of_experts(module: Any) -> Iterator[torch.nn.Parameter]:
    """Return the weights of mixtures that have those of all experts in one tensor."""
    for experts in module.modules():
        if is_mixture(experts):
            yield from (weight for weight in experts.parameters(recurse=False) if weight.ndim == 3)


def _with_our_attention_or_its_own(load: Callable[..., Any]) -> Any:
    try:
        return load(attn_implementation=interface.NAME)
    except (ValueError, KeyError) as error:
        if interface.NAME not in str(error):
            raise
    loaded = load(attn_implementation=None)
    # Perhaps only its encoder of images has no choice, such as SAM's.
    with suppress(ValueError, KeyError):
        interface.choose_attention(loaded[0], interface.NAME)
    return loaded


def load_divided_module(
    config: EngineConfig, hf_config: PreTrainedConfig, shards: Shards
) -> tuple[Any, bool, list[DividedWeight]]:
    """Like `load_module`, but load only what one rank holds. Also return its parts of weights."""
    changes = check_plan(hf_config, shards.size, trust_remote_code=config.trust_remote_code)
    with shards.loading(), dividing() if _is_quantized(hf_config) else nullcontext():
        module, has_head = load_module(
            config, hf_config, shards.device, DistributedConfig(tp_size=shards.size, tp_plan=changes or None)
        )
        divided = divide(module, shards, changes)
    _choose_experts(module)  # Again, as parts have another width.
    shards.renew(0)
    mine = sum(weight.nbytes for weight in module.parameters())
    others = sum(part.nbytes * (shards.size // copies - 1) for part, copies in {(d.part, d.copies) for d in divided})
    logger.info("each of %d ranks holds %.1f %% of the weights", shards.size, 100 * mine / (mine + others))
    return module, has_head, divided


def _check_not_quantized(report: Mapping[str, Any]) -> None:
    """Check that there are no scales. transformers would leave them out, and serve the numbers without them.

    Raises:
        UnsupportedModel: There are scales.
    """
    if scale := next((name for name in sorted(report["unexpected_keys"]) if name.endswith(_SCALES)), None):
        raise UnsupportedModel(
            f"its weights have {scale}, so they are quantized, but its config does not say how (quantization_config)"
        )


def check_fractions(module: Any, files: Iterable[Path]) -> None:
    """Check that no weight is a whole number. transformers would serve it as it is, though it must have had a scale.

    Raises:
        UnsupportedModel: One is. The message names it.
    """
    weights = [f".{name}" for name, weight in module.named_parameters() if weight.is_floating_point()]
    for file in files:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - it is no mapping
                dtype = opened.get_slice(name).get_dtype()
                # Files may leave out the first part of a name.
                if dtype in _NO_FRACTIONS and any(weight.endswith(f".{name}") for weight in weights):
                    raise UnsupportedModel(
                        f"its weights have {name} as {dtype} in {file.name}, so they are quantized, but its config "
                        "does not say how (quantization_config)"
                    )


def _check_weights(config: EngineConfig, module: Any, report: Mapping[str, Any]) -> bool:
    """Check that the weights are complete. Return whether they have an output head, which embedding models may lack.

    transformers fills what is missing with random numbers, and so what has another shape.

    Raises:
        ValueError: anything else is missing, or a shape is another one.
    """
    if report["mismatched_keys"]:
        name, found, wanted = min(report["mismatched_keys"])
        raise ValueError(
            f"model is {config.model!r}; {name} has the shape {list(found)} in its weights and {list(wanted)} by its "
            "config"
        )
    missing = set(report["missing_keys"])
    unused = sorted(report["unexpected_keys"] - HEAD_WEIGHTS)
    if others := sorted(missing - _names_of_head(module)):
        found = f", but have {first_of(unused)} that the model does not have" if unused else ""
        raise ValueError(f"model is {config.model!r}; its weights lack {first_of(others)}{found}")
    if unused:
        logger.warning("%d tensors of the weights are not part of the model, such as %s", len(unused), unused[0])
    if missing:
        logger.warning("the weights have no output head, so the model makes no text")
    return not missing


def _names_of_head(module: Any) -> set[str]:
    """Return the names of the weights that only the output head has. It may share those of the input embeddings."""
    head, embeddings = module.get_output_embeddings(), module.get_input_embeddings()
    if head is None:
        return set()
    shared = {id(weight) for weight in embeddings.parameters()}
    own = {id(weight) for weight in head.parameters()} - shared
    return {name for name, weight in module.named_parameters() if id(weight) in own}
