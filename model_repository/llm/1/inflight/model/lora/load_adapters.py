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
from inflight.model.attention.backend import AttentionBackend
from inflight.model.cpu.kernels import load_kernels
from inflight.model.cpu.traced_forward import TracedForward
from inflight.model.forward import EagerForward, ForwardPass
from inflight.model.loading.attention_probe import AttentionLayer
from inflight.model.loading.self_check import SelfCheck
from inflight.model.lora.adapter_weights import read_adapter
from inflight.model.lora.lora_forward import EagerAdapted, WithMixedAdapters
from inflight.model.lora.lora_layers import add_adapters
from inflight.model.routed_forward import RoutedForward, has_adapters

logger = logging.getLogger(__name__)


def load_adapters(
    module: Any,
    layers: Sequence[AttentionLayer],
    backend: AttentionBackend,
    plain: ForwardPass,
    config: EngineConfig,
    check: SelfCheck,
) -> tuple[ForwardPass, dict[str, Adapter]]:
    """Return the forward pass of a model with the adapters in `lora_modules`, and the adapters by their names.

    `plain` is its forward pass without them.

    Raises:
        UnsupportedModel: an adapter does not fit this kind of model.
        ValueError: an adapter cannot be read.
    """
    named = tqdm(config.lora_modules.items(), desc="adapters", disable=len(config.lora_modules) < 10)
    weights = {name: read_adapter(name, folder) for name, folder in named}
    device = next(module.parameters()).device
    on_cpu = config.enable_kernels and device.type == "cpu" and module.dtype == torch.bfloat16
    add_adapters(module, weights, has_kernel=on_cpu and load_kernels())
    eager = EagerAdapted(EagerForward(module, backend, [layer.window for layer in layers]))
    adapted: ForwardPass | None = None
    if isinstance(plain, TracedForward):
        adapted = _traced(module, layers, backend, plain, eager, check, len(weights))
    if adapted is None:
        adapted = eager
        try:
            mixed = WithMixedAdapters(eager, len(weights))
            works, reason = check.gives_numbers(mixed, layers, backend), "the logits are not numbers"
        except RuntimeError as error:
            works, reason = False, str(error)
        if not works:
            raise UnsupportedModel(f"{module.config.model_type} fails with adapters: {reason}")
    adapters = {name: Adapter(name, slot, each.digest) for slot, (name, each) in enumerate(weights.items())}
    logger.info("%d LoRA adapters: %s", len(adapters), ", ".join(adapters))
    return RoutedForward(plain, adapted, has_adapters), adapters


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
