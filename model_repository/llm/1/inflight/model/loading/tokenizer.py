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
from inflight.model.loading.tokenizer_files import TOKENIZER_FILE, damage, damage_of_processor, has_files

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
    tokenizer = _own_tokenizer(config) if config.tokenizer is None else _named_tokenizer(config, config.tokenizer)
    if config.chat_template is not None:
        if tokenizer is None:
            raise ValueError("chat_template is given, but the model has no tokenizer; name one in tokenizer")
        tokenizer.chat_template = _given_template(config.chat_template)
    elif tokenizer is not None:
        if tokenizer.chat_template is None:
            tokenizer.chat_template = _template_of_processor(Path(config.model))
        _warn_of_templates(tokenizer.chat_template)
    return tokenizer


def _own_tokenizer(config: EngineConfig) -> Any | None:
    folder = Path(config.model)
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            config.model, revision=config.revision, trust_remote_code=config.trust_remote_code
        )
    except Exception as error:
        # The library tokenizers raises this very class where a file has parts that it does not know.
        if damaged := damage(folder):
            raise ValueError(f"model is {config.model!r}; a file of its tokenizer, {damaged}") from error
        if (folder / TOKENIZER_FILE).is_file() or not isinstance(error, _NOT_THERE):
            raise ValueError(
                f"model is {config.model!r}; its tokenizer.json or tokenizer_config.json cannot be read, or needs a "
                f"newer version of the library tokenizers: {type(error).__name__}: {error}"
            ) from error
        reason = " ".join(str(error).split())
        if (folder / _SENTENCEPIECE_FILE).is_file():
            reason += f" ({_SENTENCEPIECE_FILE} is read with the package sentencepiece)"
        logger.warning("no tokenizer can be loaded, so only token ids are served: %s", reason)
        return None
    if _is_made_up(folder, tokenizer):
        logger.warning("the model has no files of a tokenizer, so only token ids are served")
        return None
    if not _has_backend(tokenizer):
        logger.warning("the tokenizer has no Rust backend, so only token ids are served")
        return None
    if damaged := damage_of_processor(tokenizer):
        raise ValueError(f"model is {config.model!r}; a file of its tokenizer, {damaged}")
    if not isinstance(tokenizer.model_max_length, int | float):
        raise ValueError(
            f"model is {config.model!r}; model_max_length of its tokenizer_config.json is "
            f"{tokenizer.model_max_length!r}; it must be a number"
        )
    return tokenizer


def _named_tokenizer(config: EngineConfig, name: str) -> Any:
    try:
        folder = find(name, "main").folder
    except OSError as error:
        raise ValueError(f"tokenizer is {name!r}, which cannot be loaded: {error}") from error
    try:
        # Without the setting, transformers would ask on the terminal whether to run the tokenizer's own code.
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=config.trust_remote_code)
    except Exception as error:
        # See above: also the library tokenizers raises this very class.
        reason = damage(folder) or f"{type(error).__name__}: {error}"
        raise ValueError(f"tokenizer is {name!r}, which cannot be loaded: {reason}") from error
    if _is_made_up(folder, tokenizer):
        raise ValueError(f"tokenizer is {name!r}, which cannot be loaded: it has no files of a tokenizer")
    if not _has_backend(tokenizer):
        raise ValueError(f"tokenizer is {name!r}, which has no Rust backend; it must have one")
    if damaged := damage_of_processor(tokenizer):
        raise ValueError(f"tokenizer is {name!r}, which cannot be loaded: {damaged}")
    return tokenizer


def _is_made_up(folder: Path, tokenizer: Any) -> bool:
    """Whether transformers made a tokenizer without files, of a few special tokens. It does so for some classes."""
    return isinstance(tokenizer, PreTrainedTokenizerFast) and not has_files(folder, tokenizer)


def _has_backend(tokenizer: Any) -> bool:
    # Of an empty vocabulary, transformers makes one of a single token.
    return isinstance(tokenizer, PreTrainedTokenizerFast) and tokenizer.backend_tokenizer.get_vocab_size() > 1


def warn_of_others_tokens(tokenizer: Any, vocab_size: int) -> None:
    """Warn if a tokenizer has more tokens than its model."""
    size = tokenizer.backend_tokenizer.get_vocab_size()
    if size > vocab_size:
        logger.warning(
            "the tokenizer has %d tokens, but the model has only %d, so texts with the others are refused; is it the "
            "tokenizer of another model?",
            size,
            vocab_size,
        )


def _warn_of_templates(templates: Any) -> None:
    """Warn if the model's chat template, or one of several by name, cannot be used."""
    if templates is None:
        return
    for template in templates.values() if isinstance(templates, dict) else [templates]:
        try:
            render_jinja_template(conversations=[], chat_template=template)
        except (jinja2.TemplateError, TypeError) as error:
            logger.warning("the model's chat template cannot be used, so such chats are refused: %s", error)


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
            template = json.loads(path.read_text(encoding="utf-8")).get("chat_template")
        except (ValueError, AttributeError, RecursionError) as error:
            raise ValueError(f"model is {str(folder)!r}; its {path.name} is not a JSON object: {error}") from error
        if isinstance(template, str):
            return template
    return None
