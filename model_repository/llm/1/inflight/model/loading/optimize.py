"""Makes a loaded model faster with the means of this machine, and checks that its logits stay correct."""

import importlib.util
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from inflight.config import EngineConfig
from inflight.errors import UnsupportedModel
from inflight.model.attention.backend import CPU_KERNELS, CUDA_KERNELS, TORCH, AttentionBackend
from inflight.model.cpu import kernel_attention
from inflight.model.cpu.fast_gelu import replace_gelus
from inflight.model.cpu.fast_norm import replace_norms
from inflight.model.cpu.kernels import load_kernels
from inflight.model.cpu.packed_experts import PackedExperts, round_experts_to_int4
from inflight.model.cpu.packed_linear import pack_linears, round_linears_to_int4
from inflight.model.cpu.plain_linears import replace_conv1ds
from inflight.model.cpu.traced_forward import TracedForward, TracedImages
from inflight.model.forward import EagerForward, ForwardPass
from inflight.model.loading.attention_probe import AttentionLayer
from inflight.model.loading.reading import Reading
from inflight.model.loading.self_check import SelfCheck
from inflight.model.mixtures import changeable_choices
from inflight.model.replacement import restore
from inflight.model.routed_forward import RoutedForward, has_images
from inflight.prompt_content import PromptContent

logger = logging.getLogger(__name__)


def optimize(
    module: Any,
    reading: Reading,
    config: EngineConfig,
    check: SelfCheck,
) -> tuple[AttentionBackend, ForwardPass]:
    """Choose the attention backend and the forward pass.

    A GPU gets the kernels for GPUs. A CPU gets the C++ kernels if the model is in bfloat16; those of the sampler serve
    any model. An optimisation that fails the self-check is undone.

    Raises:
        ValueError: The configuration asks for quantization, but this model or machine does not support it.
    """
    own = not reading.has_our_attention
    portable = TORCH, reading.forward(module, TORCH)
    device = next(module.parameters()).device
    if device.type == "cuda":
        _check_no_quantization(config, "is for the CPU")
        return portable if own else _on_gpu(module, reading, config, check) or portable
    if config.enable_kernels and device.type == "cpu" and load_kernels() and module.dtype == torch.bfloat16:
        return _on_cpu(module, reading, config, check) or portable
    _check_no_quantization(config, "needs a model in bfloat16 and the kernels for CPUs with AVX2")
    if config.enable_kernels and module.dtype == torch.float16 and load_kernels():
        logger.warning("dtype is float16, which is slow on CPUs; the C++ kernels serve bfloat16")
    return portable


def _on_cpu(
    module: Any, reading: Reading, config: EngineConfig, check: SelfCheck
) -> tuple[AttentionBackend, ForwardPass] | None:
    """Let a model in bfloat16 use the C++ kernels. If they fail the self-check, undo it and return None."""
    torch.ops.inflight.set_num_threads(torch.get_num_threads())
    layers, backend = reading.layers, TORCH
    if reading.has_our_attention:
        if kernel_attention.takes([layer.shape for layer in layers], config.block_size):
            backend = CPU_KERNELS
        else:
            _warn_of_torch_attention(reading, config)
    replaced, int4_scales, expert_scales = replace_conv1ds(module), None, None
    if config.quantization == "int4":
        int4_scales, expert_scales = round_linears_to_int4(module), round_experts_to_int4(module)
        check.repeat_reference()
    num_weights = _num_weights(module)
    replaced += replace_norms(module) + replace_gelus(module)
    experts = PackedExperts(module, config.quantization, expert_scales)
    try:
        replaced += pack_linears(module, config.quantization, int4_scales)
        eager = reading.forward(module, backend)
        passes = check.passes(eager, layers, backend)
    except UnsupportedModel as error:  # The dry run of `pack_linears` fails with the replaced layers.
        logger.info("%s", error)
        passes = False
    if not passes:
        _check_no_quantization(config, f"fails the self-check with {module.config.model_type}")
        logger.warning(
            "the CPU kernels fail the self-check with %s; torch's own operators serve", module.config.model_type
        )
        restore(replaced)
        experts.undo()
        return None
    if config.quantization is not None:
        _warn_of_unquantized(module, config.quantization, num_weights)
    # A gated product rounds once. Next to an adapter it cannot, and a row must not depend on the others of its batch.
    gated = config.lora_setting is None
    is_traceable = backend is CPU_KERNELS and not reading.states
    traced = _traced(module, eager, layers, check, gated=gated) if is_traceable else None
    return backend, traced or eager


def _warn_of_torch_attention(reading: Reading, config: EngineConfig) -> None:
    shapes = [layer.shape for layer in reading.layers]
    keys, values = (sorted(widths) for widths in ({s.key_width for s in shapes}, {s.value_width for s in shapes}))
    logger.warning(
        "the CPU kernels cannot attend: block_size is %d, keys have %s and values %s numbers for each head; block_size "
        "and values must be multiples of 16, and keys of 2. torch's attention serves, which is slower, and an answer "
        "may depend on what else is in the batch",
        config.block_size,
        " and ".join(map(str, keys)),
        " and ".join(map(str, values)),
    )


def _warn_of_unquantized(module: Any, quantization: str, num_weights: int) -> None:
    """Warn if more than half of what were `num_weights` weights are not quantized."""
    if 2 * (left := _num_weights(module)) > num_weights:
        logger.warning(
            "quantization is %r; %.0f %% of the weights stay in bfloat16: only linear layers are quantized, and "
            "experts whose outputs are multiples of 32",
            quantization,
            100 * left / num_weights,
        )


def _num_weights(module: Any) -> int:
    """Return the number of weights in matrices that are not quantized, without those that embed tokens."""
    embeddings = module.get_input_embeddings().weight
    matrices = (e for e in module.parameters() if e.ndim > 1 and e is not embeddings and e.is_floating_point())
    return sum(each.numel() for each in matrices)


def image_forwards(
    module: Any,
    reading: Reading,
    backend: AttentionBackend,
    text: ForwardPass,
    check: SelfCheck,
    ahead: tuple[bool, ...],
    prompt: PromptContent,
) -> Iterator[RoutedForward]:
    """Yield forward passes of a model that reads images, the fastest first. See `ImageForwards`.

    `text` is that of batches without images. If it is traced, that of the others is traced like it, so that the tokens
    of a text do not depend on images in its batch.
    """
    eager = EagerForward(module, backend, reading.windows, ahead)
    if isinstance(text, TracedForward):
        traced, reason = None, "its control flow depends on the values of tensors"
        try:
            assert prompt.images is not None
            example = TracedImages(prompt.images.features[:1], prompt.images.positions, ahead)
            plain = TracedForward(module, reading.layers, images=example)
            in_python = RoutedForward(eager, plain, has_images)
            if check.same_with_inserts(prompt, in_python, eager, reading.layers, backend):
                traced = plain.fused() if text.is_fused else plain
        except Exception as error:  # noqa: BLE001 - tracing a model's code may raise any exception
            reason = f"{type(error).__name__}: {error}"
        if traced is None:
            logger.warning("batches with images run in Python, as the model's code cannot be traced: %s", reason)
        else:
            yield RoutedForward(text, traced, has_images)
    yield RoutedForward(text, eager, has_images)


def _on_gpu(
    module: Any,
    reading: Reading,
    config: EngineConfig,
    check: SelfCheck,
) -> tuple[AttentionBackend, ForwardPass] | None:
    if not config.enable_kernels:
        return None
    if importlib.util.find_spec("triton") is None:
        logger.warning(
            "the package triton, which compiles the kernels for GPUs, is missing; torch's own operators serve"
        )
        return None
    from inflight.model.cuda.graphed_forward import CudaGraphs, GraphedForward

    eager = reading.forward(module, CUDA_KERNELS)
    if not check.passes(eager, reading.layers, CUDA_KERNELS):
        logger.warning(
            "the kernels for GPUs fail the self-check with %s; torch's own operators serve", module.config.model_type
        )
        return None
    if config.enable_cuda_graphs and config.tensor_parallel_size > 1:
        # After a rank has failed in a step, the ranks connect anew; a graph would still use the old connections.
        logger.info("tensor_parallel_size is over 1: decode steps are not captured as CUDA graphs")
        return CUDA_KERNELS, eager
    if not isinstance(eager, EagerForward) or not config.enable_cuda_graphs:
        return CUDA_KERNELS, eager
    return CUDA_KERNELS, GraphedForward(eager, CudaGraphs(module.device))


def _check_no_quantization(config: EngineConfig, reason: str) -> None:
    if config.quantization is not None:
        raise ValueError(f"quantization is {config.quantization!r}, which {reason}")


def _traced(
    module: Any, eager: ForwardPass, layers: Sequence[AttentionLayer], check: SelfCheck, *, gated: bool
) -> TracedForward | None:
    usable, reason = None, "its control flow depends on the values of tensors"
    try:
        with changeable_choices(module):
            plain = TracedForward(module, layers)
        if check.same(plain, eager, layers, CPU_KERNELS):
            usable = plain
            fused = plain.fused(gated=gated)
            if check.passes(fused, layers, CPU_KERNELS):
                usable = fused
    except Exception as error:  # noqa: BLE001 - tracing a model's code may raise any exception
        reason = f"{type(error).__name__}: {error}"
    if usable is None:
        logger.warning("the code of %s cannot be traced and runs in Python: %s", module.config.model_type, reason)
        return None
    return usable.with_fixed_choices()
