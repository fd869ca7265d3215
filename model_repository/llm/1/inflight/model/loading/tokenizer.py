"""Loads a model's tokenizer and its chat template."""

import json
import logging
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer
from transformers.utils import PROCESSOR_NAME
from transformers.utils.hub import LEGACY_PROCESSOR_CHAT_TEMPLATE_FILE

from inflight.config import EngineConfig

logger = logging.getLogger(__name__)


def load_tokenizer(config: EngineConfig) -> Any | None:
    """Return the tokenizer in the folder `config.model`; None if there is none, or none with a Rust backend.

    Raises:
        ValueError: A file is damaged or too new. The message names it.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            config.model, revision=config.revision, trust_remote_code=config.trust_remote_code
        )
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        logger.warning("no tokenizer can be loaded, so only token ids are served: %s", str(error).partition("\n")[0])
        return None
    except Exception as error:
        # The library tokenizers raises this very class where a file has parts that it does not know.
        raise ValueError(
            f"model is {config.model!r}; its tokenizer.json or tokenizer_config.json cannot be read, or needs a newer "
            f"version of the library tokenizers: {type(error).__name__}: {error}"
        ) from error
    # Without files, transformers makes a tokenizer for some models that has one token.
    if not tokenizer.is_fast or tokenizer.backend_tokenizer.get_vocab_size() <= 1:
        logger.warning("the tokenizer has no Rust backend, so only token ids are served")
        return None
    if tokenizer.chat_template is None:
        tokenizer.chat_template = _template_of_processor(Path(config.model))
    return tokenizer


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
