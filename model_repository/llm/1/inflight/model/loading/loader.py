"""Loads a model from a Hugging Face folder or hub id and checks that it can be served."""

import logging
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedConfig

from inflight.classifier import Classifier
from inflight.config import EngineConfig
from inflight.cpu_count import allowed_cpus, usable_cpus
from inflight.errors import UnsupportedModel
from inflight.generation_defaults import GenerationDefaults
from inflight.model.attention.backend import AttentionBackend
from inflight.model.embeds.embeds_reader import EmbedsReader
from inflight.model.embeds.load_embeds import embeds_forward, embeds_reader
from inflight.model.forward import ForwardPass
from inflight.model.head import vocab_size
from inflight.model.images.load_reader import image_trial, load_image_reader
from inflight.model.loading import support
from inflight.model.loading.attention_probe import AttentionLayer
from inflight.model.loading.classification_head import is_classifier, load_classifier
from inflight.model.loading.description import describe
from inflight.model.loading.generation_files import eos_token_ids, generation_config
from inflight.model.loading.model_digest import model_digest
from inflight.model.loading.optimize import image_forwards, optimize
from inflight.model.loading.quantized_checkpoint.prepare import check_experts
from inflight.model.loading.reading import (
    Reading,
    bound_of_own_attention,
    with_our_attention,
    with_own_attention,
    with_own_cache,
)
from inflight.model.loading.self_check import LONGEST, SelfCheck
from inflight.model.loading.token_classifier import classifier_of_tokens
from inflight.model.loading.tokenizer import load_tokenizer, warn_of_others_tokens
from inflight.model.loading.weights import check_fractions, load_divided_module, load_module
from inflight.model.long_rope import switch_rope
from inflight.model.lora.adapters import Adapters
from inflight.model.lora.division import AdapterDivision
from inflight.model.lora.load_adapters import load_adapters
from inflight.model.lora.lora_forward import EagerAdapted
from inflight.model.own_cache.cache_size import OwnCache
from inflight.model.parallel.layers import whole
from inflight.model.parallel.shards import Shards
from inflight.model.recurrent.state_layer import StateLayer
from inflight.model.replacement import Replaced, restore
from inflight.model.routed_forward import RoutedForward, has_adapters

if TYPE_CHECKING:
    from inflight.model.images.image_reader import ImageReader

logger = logging.getLogger(__name__)

# A tokenizer without a known maximum length reports a huge number instead.
_NO_LENGTH = 10**9


@dataclass(frozen=True)
class LoadedModel:
    """A model that passed every check, with all that serving needs to know about it."""

    module: torch.nn.Module
    layers: tuple[AttentionLayer, ...]
    """One for each pair of tensors in the KV cache, in order."""
    states: tuple[StateLayer, ...] | tuple[OwnCache]
    """The modules with recurrent states, or the cache that the model makes for each sequence. Most have neither."""
    backend: AttentionBackend
    forward: ForwardPass
    tokenizer: Any | None
    """The transformers tokenizer; None if the folder has none."""
    eos_token_ids: frozenset[int]
    defaults: GenerationDefaults
    max_model_len: int
    rope_switch: int | None
    """See `Request.rope_switch`."""
    vocab_size: int
    """Prompts may hold the tokens below this number."""
    num_logits: int
    """Outputs may hold the tokens below this number. For some models, it is less than `vocab_size`."""
    has_head: bool
    """Whether the weights have an output head for text. If not, the logits are random."""
    hidden_width: int | None
    """The width of the hidden states that the head reads; None if they cannot be had apart from the logits."""
    device: torch.device
    dtype: torch.dtype
    digest: str
    """A name of the config, the weights and the code, see `model_digest`."""
    shards: Shards | None = None
    """The ranks over which the model is divided; None if this process has all of it."""
    adapters: Adapters | None = None
    """Its LoRA adapters; None if the settings name none."""
    images: "ImageReader | None" = None
    """Reads the images of prompts; None if the model takes none."""
    embeds: EmbedsReader | None = None
    """Reads embeddings in prompts; None unless `enable_prompt_embeds` is set."""
    classifier: Classifier | None = None
    """The head that tells classes apart, if there is one."""

    @property
    def backend_tokenizer(self) -> Tokenizer | None:
        """The Rust tokenizer behind `tokenizer`."""
        return None if self.tokenizer is None else self.tokenizer.backend_tokenizer

    def text_of(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, special ones included. Empty if there is no tokenizer."""
        tokenizer = self.backend_tokenizer
        return "" if tokenizer is None else str(tokenizer.decode(token_ids, skip_special_tokens=False))


def load_model(config: EngineConfig, shards: Shards | None = None, *, length: int | None = None) -> LoadedModel:
    """Load weights and tokenizer, then check that the model computes ragged batches correctly.

    With `shards`, this loads the part of one rank, and all ranks must call it. `length` is the longest context if
    neither the settings nor the model say how long it is. This also sets the number of torch's threads for the whole
    process.

    Raises:
        UnsupportedModel: The model cannot be served. The message says why.
        ValueError: The folder, the dtype or the length is not usable. The message names the field.
    """
    _set_threads(config)
    named, description = config.model, describe(config)
    config, hf_config, is_quantized = description.settings, description.config, description.is_quantized
    # transformers reads it, too, with the weights, and would not say which file is wrong.
    generation = generation_config(config.model)
    device = device_of(config) if shards is None else shards.device
    if is_quantized:
        config = _with_fast_dtype(config, hf_config, device)
    try:
        description.checkpoint.fetch_weights()
    except OSError as error:
        raise ValueError(f"model is {named!r}; its weights cannot be downloaded: {error}") from error
    description.checkpoint.check_weights()
    classifier = load_classifier(hf_config, description.checkpoint.weight_files) if is_classifier(hf_config) else None
    reference: Callable[[], AbstractContextManager[None]] = nullcontext
    division = None
    if shards is None:
        module, has_head = load_module(config, hf_config, device)
    else:
        module, has_head, divided = load_divided_module(config, hf_config, shards)
        reference = partial(whole, divided, shards)
        division = AdapterDivision(module, divided, shards)
    if is_quantized:
        check_experts(description.checkpoint.weight_files)
    else:
        check_fractions(module, filter(Path.is_file, description.checkpoint.weight_files))
    digest = model_digest(module, description.checkpoint.folder if config.trust_remote_code else None)
    tokenizer = load_tokenizer(config)
    if tokenizer is not None:
        warn_of_others_tokens(tokenizer, vocab_size(module))
    if config.classifier_from_token:
        classifier = classifier_of_tokens(module, tokenizer, config.classifier_from_token, has_head=has_head)
    worst = float if shards is None else shards.greatest
    check, reading, max_model_len, rope_switch = _read(
        module, config, tokenizer, partial(SelfCheck, reference=reference, worst=worst), length
    )
    passes = _passes(module, reading, config, check, division)
    return LoadedModel(
        module=module,
        layers=reading.layers,
        states=reading.states if reading.own_cache is None else (reading.own_cache,),
        backend=passes.backend,
        forward=passes.forward,
        tokenizer=tokenizer,
        eos_token_ids=eos_token_ids(config.model, generation, tokenizer),
        defaults=GenerationDefaults.of(generation),
        max_model_len=max_model_len,
        rope_switch=rope_switch,
        vocab_size=vocab_size(module),
        num_logits=check.num_logits,
        has_head=has_head and not is_classifier(hf_config),
        hidden_width=check.hidden_width(passes.forward, reading.layers, passes.backend),
        device=device,
        dtype=module.dtype,
        digest=digest,
        shards=shards,
        adapters=passes.adapters,
        images=passes.images,
        embeds=passes.embeds,
        classifier=classifier,
    )


def _with_fast_dtype(config: EngineConfig, hf_config: PreTrainedConfig, device: torch.device) -> EngineConfig:
    """Return the settings for a model whose quantized weights are dequantized while they are loaded."""
    if config.dtype != "auto" or device.type != "cpu" or hf_config.dtype != torch.float16:
        return config
    # That was the type of a GPU's kernels, not of the weights. CPUs have fast kernels for bfloat16.
    logger.info("dtype is auto, so the quantized weights become bfloat16 on this CPU, not float16")
    return replace(config, dtype="bfloat16")


class _Passes(NamedTuple):
    """How a model runs, and what it may get besides tokens."""

    backend: AttentionBackend
    forward: ForwardPass
    adapters: Adapters | None = None
    images: "ImageReader | None" = None
    embeds: EmbedsReader | None = None


def _passes(
    module: Any, reading: Reading, config: EngineConfig, check: SelfCheck, division: AdapterDivision | None
) -> _Passes:
    """Make the forward pass, with those for LoRA adapters, and for embeddings or else images.

    A model that is divided over ranks has a `division`.
    """
    layers = reading.layers
    embeds = trial = None
    if config.enable_prompt_embeds:
        embeds = embeds_reader(module, check)
    elif reading.has_our_attention and not reading.states:
        trial = image_trial(module, config, check, reading.windows, None if division is None else division.shards)
    backend, forward = optimize(module, reading, config, check)
    adapters = None
    if config.lora_setting is not None:
        forward, adapters = load_adapters(module, layers, backend, forward, config, check, division)
    if embeds is not None:
        reader, prompt = embeds
        forward = embeds_forward(module, reading, forward, check, backend, prompt)
        return _Passes(backend, forward, adapters, embeds=reader)
    if trial is None:
        return _Passes(backend, forward, adapters)
    found = load_image_reader(
        trial, check, layers, backend, partial(image_forwards, module, reading, backend, forward, check)
    )
    if found is None:
        return _Passes(backend, forward, adapters)
    images, routed = found
    if adapters is not None:
        adapted = RoutedForward(routed.special, EagerAdapted(routed.special), has_adapters)
        routed = replace(routed, special=adapted)
    return _Passes(backend, routed, adapters, images=images)


def _read(
    module: Any, config: EngineConfig, tokenizer: Any | None, check_of: Callable[..., SelfCheck], length: int | None
) -> tuple[SelfCheck, Reading, int, int | None]:
    """Find out how to serve a model.

    Return the self-check, the reading that passed it, the longest context, and the length beyond which its rotary
    embeddings are switched. Our attention is tried first, then the model's own, then also its own cache.

    Raises:
        UnsupportedModel: None comes out right.
        ValueError: `max_model_len` is missing or too large.
    """
    text_config = module.config.get_text_config(decoder=True)
    switched: Replaced = []
    try:
        readings, bound = with_our_attention(module, text_config, LONGEST)
        switch = support.rope_switch(module.config)
        if switch is not None and not readings[0].states and (config.max_model_len or math.inf) > switch:
            switched = switch_rope(module, switch)
        longest = support.max_positions(text_config) if switched else support.max_length(text_config)
        max_model_len = _max_model_len(config, tokenizer, bound, longest, length)
        check = check_of(module, readings, max_model_len)
        return check, check.right_reading(readings), max_model_len, switch if switched else None
    except UnsupportedModel as error:
        reasons = [str(error)]
        restore(switched)
    bound = bound_of_own_attention(text_config, LONGEST)
    max_model_len = _max_model_len(config, tokenizer, bound, support.max_length(text_config), length)
    for check_settings, read, way in (
        (support.check_settings_of_own_attention, with_own_attention, "attends by its own code"),
        (support.check_settings_of_own_cache, with_own_cache, "computes sequences one by one, over caches of its own"),
    ):
        try:
            check_settings(module.config, config)
            readings = read(module, text_config, max_model_len, LONGEST)
            check = check_of(module, readings, max_model_len)
            reading = check.right_reading(readings)
        except UnsupportedModel as error:
            reasons.append(str(error))
        else:
            logger.warning("the model %s, which is slower, because %s", way, reasons[0])
            return check, reading, max_model_len, None
    ours, *others = reasons
    others = list(dict.fromkeys(others))
    raise UnsupportedModel(f"{ours}; its own attention cannot be used either: {'; nor its own cache: '.join(others)}")


def _set_threads(config: EngineConfig) -> None:
    wanted, ranks = config.num_threads, config.ranks_per_machine
    if wanted is not None and wanted > allowed_cpus():
        raise ValueError(
            f"num_threads is {wanted}; it must be at most {allowed_cpus()}, the processors that this process may use"
        )
    # torch's own number comes from OMP_NUM_THREADS, the number of cores, or whoever has set it before.
    # Ranks share the processors.
    torch.set_num_threads(
        max(1, wanted // ranks) if wanted else min(torch.get_num_threads(), max(1, usable_cpus() // ranks))
    )


def device_of(config: EngineConfig, rank: int = 0) -> torch.device:
    """Return the device of a rank. The ranks of a machine are on its GPUs, each on one, or on the CPU.

    Raises:
        ValueError: there is no such device.
    """
    name, ranks = config.device, config.ranks_per_machine
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if config.tensor_parallel_size > 1 and torch.cuda.is_available():
        # transformers loads shards to accelerators where there are any.
        if name == "cpu":
            raise ValueError(
                "device is cpu and tensor_parallel_size is over 1; then CUDA_VISIBLE_DEVICES must be empty"
            )
        if ranks > torch.cuda.device_count():
            raise ValueError(
                f"tensor_parallel_size is {config.tensor_parallel_size}, which is {ranks} on each machine; it must be "
                f"at most {torch.cuda.device_count()}, the GPUs"
            )
        name = f"cuda:{rank % ranks}"
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"device is {name!r}: {error}") from error


def _max_model_len(
    config: EngineConfig, tokenizer: Any | None, bound: int | None, longest: int | None, length: int | None
) -> int:
    bound = min((b for b in (bound, longest) if b is not None), default=None)
    if bound is None and tokenizer is not None and tokenizer.model_max_length < _NO_LENGTH:
        bound = tokenizer.model_max_length
    wanted = config.max_model_len
    if wanted is None and bound is None and length is None:
        raise ValueError("max_model_len must be given: the model does not say how long its context is")
    if wanted is not None and bound is not None and wanted > bound:
        raise ValueError(
            f"max_model_len is {wanted}; it must be at most {bound}, the longest context that is computed correctly"
        )
    return wanted or bound or length or 0
