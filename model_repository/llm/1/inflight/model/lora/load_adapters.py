"""Loads the adapters that the settings name, and makes the forward pass that uses them."""

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from tqdm import tqdm

from inflight.config import EngineConfig
from inflight.errors import UnsupportedModel
from inflight.lora.adapter import Adapter
from inflight.lora.lora_folder import LoraFolder
from inflight.model.attention.backend import AttentionBackend
from inflight.model.cpu.kernels import load_kernels
from inflight.model.cpu.traced_forward import TracedForward
from inflight.model.forward import EagerForward, ForwardPass
from inflight.model.loading.attention_probe import AttentionLayer
from inflight.model.loading.self_check import SelfCheck
from inflight.model.lora.adapter_cache import AdapterCache
from inflight.model.lora.adapter_weights import read_named_adapter
from inflight.model.lora.adapters import Adapters
from inflight.model.lora.division import AdapterDivision
from inflight.model.lora.linear_layers import layers_of_all_tokens
from inflight.model.lora.lora_forward import EagerAdapted, WithMixedAdapters
from inflight.model.lora.lora_layers import AdaptedLayers
from inflight.model.routed_forward import RoutedForward, has_adapters

logger = logging.getLogger(__name__)

# How many of the slots that are empty at the start have random adapters while a forward pass is checked.
_NUM_TRIED = 2


def load_adapters(
    module: Any,
    layers: Sequence[AttentionLayer],
    backend: AttentionBackend,
    plain: ForwardPass,
    config: EngineConfig,
    check: SelfCheck,
    division: AdapterDivision | None,
) -> tuple[ForwardPass, Adapters]:
    """Return the forward pass of a model with adapters, and the adapters: those in `lora_modules`, and `lora_folder`.

    `plain` is its forward pass without them. A model that is divided over ranks has a `division`. Then each rank reads
    those in `lora_modules`, and rank 0 alone those in `lora_folder`.

    Raises:
        UnsupportedModel: an adapter does not fit this kind of model.
        ValueError: an adapter or the folder cannot be read.
    """
    folder = None
    if config.lora_folder is not None and (division is None or division.shards.rank == 0):
        folder = LoraFolder(config.lora_folder, config.lora_modules)
    named = tqdm(config.lora_modules.items(), desc="adapters", disable=len(config.lora_modules) < 10)
    weights = {name: read_named_adapter(name, files) for name, files in named}
    eager = EagerAdapted(EagerForward(module, backend, [layer.window for layer in layers]))
    ranks: dict[str, int] = {}
    if division is not None:
        division.check_same(list(weights.values()))
    if config.lora_folder is not None:
        names = layers_of_all_tokens(module, eager.forward, layers, backend, check)
        ranks = dict.fromkeys(names, config.max_lora_rank)
    spare = range(len(weights), len(weights) + (0 if config.lora_folder is None else config.max_loras))
    on_cpu = config.enable_kernels and module.device.type == "cpu" and module.dtype == torch.bfloat16
    slots = AdaptedLayers(
        module,
        weights.values(),
        slots=len(weights) + len(spare),
        ranks=ranks,
        kernel=on_cpu and load_kernels(),
        division=division,
    )
    for slot, each in enumerate(weights.values()):
        slots.check(each)
        slots.put(slot, each)
    with slots.random(spare[:_NUM_TRIED]):
        num_tried = len(weights) + len(spare[:_NUM_TRIED])
        adapted = _checked(module, layers, backend, plain, eager, check, num_tried)
    logger.info("LoRA adapters: %d slots of %.1f MiB", len(weights) + len(spare), slots.nbytes_per_slot / 2**20)
    adapters = {name: Adapter(name, slot, each.digest) for slot, (name, each) in enumerate(weights.items())}
    cache = None if folder is None else AdapterCache(folder, spare, slots)
    return RoutedForward(plain, adapted, has_adapters), Adapters(adapters, slots, cache)


def _checked(
    module: Any,
    layers: Sequence[AttentionLayer],
    backend: AttentionBackend,
    plain: ForwardPass,
    eager: ForwardPass,
    check: SelfCheck,
    num_adapters: int,
) -> ForwardPass:
    """Return the fastest forward pass with adapters that works."""
    if isinstance(plain, TracedForward):
        traced = _traced(module, layers, backend, plain, eager, check, num_adapters)
        if traced is not None:
            return traced
    try:
        mixed = WithMixedAdapters(eager, num_adapters)
        works, reason = check.gives_numbers(mixed, layers, backend), "the logits are not numbers"
    except RuntimeError as error:
        works, reason = False, str(error)
    if not works:
        raise UnsupportedModel(f"{module.config.model_type} fails with adapters: {reason}")
    return eager


def _traced(
    module: Any,
    layers: Sequence[AttentionLayer],
    backend: AttentionBackend,
    plain: TracedForward,
    eager: ForwardPass,
    check: SelfCheck,
    num_adapters: int,
) -> TracedForward | None:
    """Trace the model with its adapters, and fuse the same operators as in `plain`.

    So a request without an adapter gets the same logits to the last bit, whoever is in its batch.
    """
    reason = "the logits differ"
    mixed = partial(WithMixedAdapters, num_adapters=num_adapters)
    try:
        traced = TracedForward(module, layers, has_adapters=True)
        if check.same(mixed(traced), mixed(eager), layers, backend):
            fused = traced.fused(gated=False) if plain.is_fused else traced
            if check.similar(mixed(fused), mixed(traced), layers, backend):
                return fused
    except Exception as error:  # noqa: BLE001 - tracing a model's code may raise any exception
        reason = f"{type(error).__name__}: {error}"
    logger.warning("%s with adapters cannot be traced and runs in Python: %s", module.config.model_type, reason)
    return None
