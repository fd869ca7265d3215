"""Reads what a model's files say about generation: its defaults, and the tokens that end a sequence."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import GenerationConfig, PreTrainedConfig
from transformers.utils import CONFIG_NAME, GENERATION_CONFIG_NAME

logger = logging.getLogger(__name__)


def generation_config(folder: str) -> Mapping[str, Any]:
    """Return the settings of generation_config.json. Without that file, those of config.json, as `generate` does.

    Raises:
        ValueError: The file cannot be read.
    """
    name = _file(folder)
    try:
        found = GenerationConfig.from_pretrained(folder, name, _from_model_config=name == CONFIG_NAME)
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"model is {folder!r}; its {name} cannot be read: {error}") from error
    return dict(found.to_diff_dict())


def eos_token_ids(folder: str, generation: Mapping[str, Any], tokenizer: Any | None) -> frozenset[int]:
    """Return the end-of-sequence tokens from the first source that has them.

    The sources are what `generation_config` returns, the tokenizer and config.json. The last is read as written,
    because a config class may add a default that the model does not use. Negative numbers, which some models have for
    no token, are left out with a warning.

    Raises:
        ValueError: The value is no token and no list of tokens.
    """
    written, _ = PreTrainedConfig.get_config_dict(folder)
    candidates = (
        (_file(folder), generation.get("eos_token_id")),
        ("the tokenizer", None if tokenizer is None else tokenizer.eos_token_id),
        (CONFIG_NAME, written.get("eos_token_id")),
    )
    for source, value in candidates:
        if value is not None:
            return _tokens(source, value)
    return frozenset()


def _file(folder: str) -> str:
    return GENERATION_CONFIG_NAME if (Path(folder) / GENERATION_CONFIG_NAME).is_file() else CONFIG_NAME


def _tokens(source: str, value: Any) -> frozenset[int]:
    tokens = value if isinstance(value, list) else [value]
    if not all(isinstance(token, int) and not isinstance(token, bool) for token in tokens):
        raise ValueError(f"eos_token_id of {source} is {value!r}; it must be a token id or a list of token ids")
    if negative := [token for token in tokens if token < 0]:
        logger.warning("eos_token_id of %s has %s, which is ignored; it must be at least 0", source, negative[0])
    return frozenset(tokens).difference(negative)
