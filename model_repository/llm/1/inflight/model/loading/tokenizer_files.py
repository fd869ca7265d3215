"""Looks at the files of a tokenizer. The libraries that read them do not say which one is damaged."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers.utils.hub import CHAT_TEMPLATE_DIR, CHAT_TEMPLATE_FILE

TOKENIZER_FILE = "tokenizer.json"
_CONFIG_FILE = "tokenizer_config.json"
_TEKKEN_FILE = "tekken.json"
_OBJECTS = (TOKENIZER_FILE, _TEKKEN_FILE, _CONFIG_FILE, "special_tokens_map.json", "added_tokens.json", "vocab.json")
# transformers converts these for whichever class. Models of Mistral often have the second alone.
_OF_ANY_CLASS = ("tokenizer.*", _TEKKEN_FILE, "tiktoken.model")


def damage(folder: Path) -> str | None:
    """Return which file in the folder of a tokenizer is damaged, and how; None if none is."""
    return next(_damages(folder), None)


def _damages(folder: Path) -> Iterator[str]:
    for path in filter(Path.is_file, (folder / name for name in _OBJECTS)):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            yield f"{path.name}, is damaged: it is not JSON: {error}"
        else:
            if not isinstance(content, dict):
                yield f"{path.name}, is damaged: it must be a JSON object"
            elif path.name == _CONFIG_FILE and not _is_template(content.get("chat_template")):
                yield f"{path.name}, is damaged: chat_template must be a text, or objects with name and template"
    templates = [folder / CHAT_TEMPLATE_FILE, *sorted((folder / CHAT_TEMPLATE_DIR).glob("*.jinja"))]
    for path in filter(Path.is_file, templates):
        try:
            path.read_text(encoding="utf-8")
        except ValueError as error:
            yield f"{path.relative_to(folder)}, is damaged: it is not UTF-8: {error}"


def damage_of_processor(tokenizer: Any) -> str | None:
    """Return what is wrong with the post_processor of a loaded tokenizer, as `damage` does; None if nothing is.

    It puts tokens around texts. The library tokenizers panics at each text where it does not know one of them.
    """
    processor = tokenizer.backend_tokenizer.post_processor
    unknown = None if processor is None else next(_unknown_tokens(json.loads(processor.__getstate__())), None)
    if unknown is None:
        return None
    return f"{TOKENIZER_FILE}, is damaged: its post_processor names the token {unknown!r}, but has no ids for it"


def _unknown_tokens(processor: dict[str, Any]) -> Iterator[str]:
    for each in processor.get("processors", ()):
        yield from _unknown_tokens(each)
    if processor["type"] == "TemplateProcessing":
        for piece in processor["single"]:
            if "SpecialToken" in piece and (token := piece["SpecialToken"]["id"]) not in processor["special_tokens"]:
                yield token


def has_files(folder: Path, tokenizer: Any) -> bool:
    """Whether a tokenizer was read from files. Without them, transformers makes one of a few special tokens."""
    names = set(tokenizer.vocab_files_names.values()) - {_CONFIG_FILE}
    of_any_class = (path for pattern in _OF_ANY_CLASS for path in folder.glob(pattern))
    return any(map(Path.is_file, (*of_any_class, *(folder / name for name in names))))


def _is_template(value: Any) -> bool:
    """Whether a value is a chat template, or several of them by name, or None."""
    if isinstance(value, list):
        return all(isinstance(each, dict) and _is_named(each.get("name"), each.get("template")) for each in value)
    if isinstance(value, dict):
        return all(_is_named(name, template) for name, template in value.items())
    return value is None or isinstance(value, str)


def _is_named(name: Any, template: Any) -> bool:
    return isinstance(name, str) and isinstance(template, str)
