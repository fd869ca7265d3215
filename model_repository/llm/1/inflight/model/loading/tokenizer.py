"""Loads a model's tokenizer and its chat template."""

import json
import logging
from pathlib import Path
from typing import Any

import jinja2
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils import PROCESSOR_NAME
from transformers.utils.chat_template_utils import render_jinja_template
from transformers.utils.hub import LEGACY_PROCESSOR_CHAT_TEMPLATE_FILE

from inflight.config import EngineConfig
from inflight.model.loading.checkpoint import find

logger = logging.getLogger(__name__)

# What transformers raises where files are missing.
_NOT_THERE = (OSError, ValueError, KeyError, TypeError, ImportError)
_SENTENCEPIECE_FILE = "tokenizer.model"
"""Without the package that reads it, transformers names another one."""
_TEMPLATE_MARKS = ("{{", "{%")


def load_tokenizer(config: EngineConfig) -> Any | None:
    """Return the tokenizer that `config.tokenizer` names, or else that in the folder `config.model`.

    None: the model has none, or none with a Rust backend.

    Raises:
        ValueError: A file is damaged or too new, or a setting names what cannot be used. The message names it.
    """
    tokenizer = _own_tokenizer(config) if config.tokenizer is None else _named_tokenizer(config.tokenizer)
    if config.chat_template is not None:
        if tokenizer is None:
            raise ValueError("chat_template is given, but the model has no tokenizer; name one in tokenizer")
        tokenizer.chat_template = _given_template(config.chat_template)
    elif tokenizer is not None and tokenizer.chat_template is None:
        tokenizer.chat_template = _template_of_processor(Path(config.model))
    return tokenizer


def _own_tokenizer(config: EngineConfig) -> Any | None:
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            config.model, revision=config.revision, trust_remote_code=config.trust_remote_code
        )
    except json.JSONDecodeError as error:
        raise ValueError(
            f"model is {config.model!r}; a file of its tokenizer, such as tokenizer.json, is damaged: it is not JSON: "
            f"{error}"
        ) from error
    except _NOT_THERE as error:
        reason = " ".join(str(error).split())
        if (Path(config.model) / _SENTENCEPIECE_FILE).is_file():
            reason += f" ({_SENTENCEPIECE_FILE} is read with the package sentencepiece)"
        logger.warning("no tokenizer can be loaded, so only token ids are served: %s", reason)
        return None
    except Exception as error:
        # The library tokenizers raises this very class where a file has parts that it does not know.
        raise ValueError(
            f"model is {config.model!r}; its tokenizer.json or tokenizer_config.json cannot be read, or needs a newer "
            f"version of the library tokenizers: {type(error).__name__}: {error}"
        ) from error
    if not _has_backend(tokenizer):
        logger.warning("the tokenizer has no Rust backend, so only token ids are served")
        return None
    return tokenizer


def _named_tokenizer(name: str) -> Any:
    try:
        tokenizer = AutoTokenizer.from_pretrained(find(name, "main").folder)
    except Exception as error:
        # See above: also the library tokenizers raises this very class.
        raise ValueError(f"tokenizer is {name!r}, which cannot be loaded: {type(error).__name__}: {error}") from error
    if not _has_backend(tokenizer):
        raise ValueError(f"tokenizer is {name!r}, which has no Rust backend; it must have one")
    return tokenizer


def _has_backend(tokenizer: Any) -> bool:
    # Without files, transformers makes a tokenizer for some models that has one token.
    return isinstance(tokenizer, PreTrainedTokenizerFast) and tokenizer.backend_tokenizer.get_vocab_size() > 1


def _given_template(setting: str) -> str:
    """Return the template that the setting `chat_template` has or names."""
    template = setting
    if not any(mark in setting for mark in _TEMPLATE_MARKS):
        try:
            template = Path(setting).expanduser().read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ValueError(f"chat_template is {setting!r}, a file that cannot be read: {error}") from error
    try:
        render_jinja_template(conversations=[], chat_template=template)
    except jinja2.TemplateError as error:
        raise ValueError(f"chat_template is {setting[:100]!r}, which is no Jinja template: {error}") from error
    return template


def _template_of_processor(folder: Path) -> str | None:
    """Return the chat template that only a processor of images or sounds would read."""
    for path in (folder / LEGACY_PROCESSOR_CHAT_TEMPLATE_FILE, folder / PROCESSOR_NAME):
        if not path.is_file():
            continue
        try:
            template = json.loads(path.read_text()).get("chat_template")
        except (ValueError, AttributeError) as error:
            raise ValueError(f"model is {str(folder)!r}; its {path.name} is not a JSON object: {error}") from error
        if isinstance(template, str):
            return template
    return None
