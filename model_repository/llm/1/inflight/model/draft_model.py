"""Loads the draft model of `speculative_config`, and gives it a KV cache."""

from dataclasses import replace

from inflight.config import EngineConfig
from inflight.errors import UnsupportedModel
from inflight.model.loading.loader import LoadedModel, load_model
from inflight.model.runner import ModelRunner
from inflight.scheduler.factory import make_tables
from inflight.speculation.model_drafter import ModelDrafter
from inflight.speculation.speculative_config import SpeculativeConfig


def load_draft_model(config: EngineConfig, target: LoadedModel) -> LoadedModel | None:
    """Return the draft model that the config names, or None.

    Raises:
        UnsupportedModel: it cannot be served.
        ValueError: it cannot be loaded, or its tokens are not those of `target`.
    """
    settings = SpeculativeConfig.of(config.speculative_config)
    if settings.model is None:
        return None
    try:
        draft = load_model(_config_of(config, settings.model), length=target.max_model_len)
    except UnsupportedModel as error:
        raise UnsupportedModel(
            f"speculative_config: model is {settings.model!r}, which cannot draft: {error}"
        ) from error
    if draft.states:
        raise UnsupportedModel(f"{settings.model} has recurrent states, so it cannot draft")
    if not draft.has_head:
        raise ValueError(f"speculative_config: model is {settings.model!r}, whose weights have no output head")
    if _tokens(draft) != _tokens(target):
        raise ValueError(
            f"speculative_config: model is {settings.model!r}; its tokenizer must have the same tokens as the one of "
            f"{config.model!r}"
        )
    return draft


def make_drafter(config: EngineConfig, target: LoadedModel, draft: LoadedModel, num_blocks: int) -> ModelDrafter:
    """Return what drafts with `draft`. Its cache has `num_blocks` blocks, as many as that of `target`."""
    mine = replace(_config_of(config, config.model), kv_cache_tokens=num_blocks * config.block_size)
    runner = ModelRunner(draft, mine)
    return ModelDrafter(
        runner.run,
        make_tables(config, runner.num_blocks),
        runner.measure_rows(min(config.max_num_seqs, draft.max_model_len)),
        # Beyond `rope_switch`, its keys would have to be computed again. It drafts up to there.
        max_model_len=draft.rope_switch or draft.max_model_len,
        vocab_size=target.num_logits,
        draft_vocab_size=draft.vocab_size,
    )


def _tokens(model: LoadedModel) -> object:
    tokenizer = model.backend_tokenizer
    return model.vocab_size if tokenizer is None else tokenizer.get_vocab()


def _config_of(config: EngineConfig, model: str) -> EngineConfig:
    """The settings of a draft model. Each step samples at most one token of each request."""
    return replace(
        config,
        model=model,
        revision="main",
        tokenizer=None,
        max_model_len=None,
        swap_space_tokens=0,
        kv_offloading_size=0.0,
        preemption_mode="recompute",
        speculative_config={},
        lora_modules={},
        classifier_from_token=(),
        lora_folder=None,
    )
