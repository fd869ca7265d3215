"""Finds out whether a model takes embeddings in place of tokens, and how."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from inflight.errors import UnsupportedModel
from inflight.model.attention.backend import AttentionBackend
from inflight.model.cpu.traced_forward import TracedForward
from inflight.model.embeds.embeds_reader import EmbedsReader
from inflight.model.forward import EagerForward, ForwardPass
from inflight.model.head import vocab_size
from inflight.model.loading.reading import Reading
from inflight.model.loading.self_check import SelfCheck
from inflight.model.lora.lora_forward import EagerAdapted
from inflight.model.own_attention.padded_forward import PaddedForward
from inflight.model.own_cache.own_cache_forward import OwnCacheForward
from inflight.model.recurrent.recurrent_forward import RecurrentForward
from inflight.model.routed_forward import RoutedForward, has_adapters, has_embeds
from inflight.prompt_content import PromptContent

logger = logging.getLogger(__name__)

_TOKENS = 24
"""Length of the prompt with which the model is tried. Two thirds are embeddings."""


def embeds_reader(module: Any, check: SelfCheck) -> tuple[EmbedsReader, PromptContent]:
    """Return the reader of prompts with embeddings, and the prompt that `check` expects from now on.

    Call this before the model is optimized.

    Raises:
        UnsupportedModel: The model does not take embeddings in place of tokens.
    """
    with _failing_as_unsupported(module):
        width = module.get_input_embeddings()(torch.zeros(1, dtype=torch.int64, device=module.device)).shape[-1]
        reader = EmbedsReader(vocab_size(module), width, module.dtype)
        inputs, prompt = _sample(module, reader)
        check.expect_inserts(inputs)
    return reader, prompt


def embeds_forward(
    module: Any,
    reading: Reading,
    text: ForwardPass,
    check: SelfCheck,
    backend: AttentionBackend,
    prompt: PromptContent,
) -> ForwardPass:
    """Return the first forward pass that computes the prompt of `embeds_reader` right.

    Args:
        text: the forward pass over batches without embeddings. Batches may have LoRA adapters if it is a routed one.

    Raises:
        UnsupportedModel: None does.
    """
    difference = None
    with _failing_as_unsupported(module):
        check.expect_inserts_of_optimized()
        for forward in _forwards(module, reading, text, check, backend, prompt):
            difference = check.error_with_inserts(prompt, forward, reading.layers, backend)
            if difference is None:
                return forward
    raise UnsupportedModel(
        f"enable_prompt_embeds is true, but logits of {module.config.model_type} after embeddings in place of tokens "
        f"differ by {difference:.1%} from those of its own forward pass"
    )


@contextmanager
def _failing_as_unsupported(module: Any) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise UnsupportedModel(
            f"enable_prompt_embeds is true, but {module.config.model_type} fails with embeddings in place of tokens: "
            f"{type(error).__name__}: {error}"
        ) from error


@torch.inference_mode()
def _sample(module: Any, reader: EmbedsReader) -> tuple[dict[str, torch.Tensor], PromptContent]:
    """Return the model's own arguments for a prompt of tokens and embeddings, and what the reader makes of the same."""
    generator = torch.Generator().manual_seed(0)
    token_ids = torch.randint(reader.vocab_size, (_TOKENS,), generator=generator)
    embedded = module.get_input_embeddings()(token_ids.to(module.device)[None])
    is_row = torch.arange(_TOKENS) % 3 < 2
    rows = int(is_row.sum())
    # As large as those of tokens.
    noise = torch.randn((rows, reader.width), generator=generator) * embedded.float().std().item()
    noise = noise.to(reader.dtype)
    embedded[0, is_row] = noise.to(module.device)
    token_ids[is_row] = torch.arange(rows) + reader.vocab_size
    return {"inputs_embeds": embedded}, reader.read(token_ids.tolist(), noise.float().numpy())


def _forwards(
    module: Any,
    reading: Reading,
    text: ForwardPass,
    check: SelfCheck,
    backend: AttentionBackend,
    prompt: PromptContent,
) -> Iterator[ForwardPass]:
    """Yield forward passes, the fastest first.

    If that of text is traced, that of batches with embeddings is traced like it. So the tokens of a text do not depend
    on embeddings in its batch.
    """
    adapters = isinstance(text, RoutedForward)
    plain = text.plain if isinstance(text, RoutedForward) else text
    if isinstance(plain, EagerForward | RecurrentForward | PaddedForward | OwnCacheForward):
        yield text  # The model's own code can do both.
        return
    eager = reading.forward(module, backend)

    def beside_text(embedded: ForwardPass) -> RoutedForward:
        if adapters:
            embedded = RoutedForward(embedded, EagerAdapted(eager), has_adapters)
        return RoutedForward(text, embedded, has_embeds)

    if isinstance(plain, TracedForward):
        traced = _traced(module, reading, check, backend, prompt, eager)
        if traced is not None:
            yield beside_text(traced.fused(gated=not adapters) if plain.is_fused else traced)
        logger.warning("batches with embeddings run in Python, as the model's code cannot be traced")
    yield beside_text(eager)


def _traced(
    module: Any,
    reading: Reading,
    check: SelfCheck,
    backend: AttentionBackend,
    prompt: PromptContent,
    eager: ForwardPass,
) -> TracedForward | None:
    try:
        traced = TracedForward(module, reading.layers, has_embeds=True)
        in_python = RoutedForward(eager, traced, has_embeds)
        return traced if check.same_with_inserts(prompt, in_python, eager, reading.layers, backend) else None
    except Exception as error:  # noqa: BLE001 - tracing a model's code may raise any exception
        logger.info("batches with embeddings cannot be traced: %s", error)
        return None
