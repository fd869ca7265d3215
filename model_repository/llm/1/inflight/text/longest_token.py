"""How much text one token can stand for. It tells that a text has too many tokens without tokenizing it."""

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer, models

# Normalizers that lose no text, and how many characters they can make one of. Unicode composes at most four characters,
# to U+1F82 for example.
_NORMALIZERS = {"NFC": 4, "NFKC": 4, "NFD": 1, "NFKD": 1, "Prepend": 1}
_PRE_TOKENIZERS = {"ByteLevel", "Digits", "Metaspace", "Punctuation", "Split", "UnicodeScripts"}


@dataclass(frozen=True)
class LongestToken:
    """The longest text that one token of a tokenizer can stand for."""

    size: int
    unit: str
    """`bytes` of UTF-8, or `characters`."""
    lost_bytes: bytes = b""
    """Bytes that have no token and leave no trace in the tokens of a text."""

    @classmethod
    def of(cls, tokenizer: Any) -> "LongestToken | None":
        """Return the longest token of a transformers tokenizer. None if its tokens can stand for texts of any length.

        That is so where the tokenizer loses characters or makes one token of a whole run: by its normalizer or
        pre-tokenizer, by an added token that takes the white space beside it, or by an unknown token. All models but
        BPE have such unknown tokens. Code that ships with a model may do anything.
        """
        backend: Tokenizer = tokenizer.backend_tokenizer
        merged = _merged_characters(backend.normalizer)
        pre_tokenizers = _parts(backend.pre_tokenizer, "pretokenizers")
        if (
            not type(tokenizer).__module__.startswith("transformers.")
            or merged is None
            or any(token.lstrip or token.rstrip for token in backend.get_added_tokens_decoder().values())
            or any(part["type"] not in _PRE_TOKENIZERS or part.get("behavior") == "Removed" for part in pre_tokenizers)
            or not isinstance(backend.model, models.BPE)
            or backend.model.continuing_subword_prefix
            or backend.model.end_of_word_suffix
        ):
            return None
        vocabulary = backend.get_vocab()
        longest = merged * max(*map(len, vocabulary), _longest_added(backend))
        if all(part["type"] != "ByteLevel" for part in pre_tokenizers):
            return cls(longest, "characters") if _knows_all_characters(backend.model, vocabulary) else None
        lost = bytes(byte for byte, letter in enumerate(_byte_letters()) if letter not in vocabulary)
        if merged == 1:
            return cls(longest, "bytes", lost)  # Each letter of a token is one byte.
        return None if lost else cls(longest, "characters")

    def size_of(self, text: str) -> int:
        """Return the size of a text in `unit`. The text has at least as many tokens as `size` fits into that."""
        return len(text) if self.unit == "characters" else len(text.encode().translate(None, self.lost_bytes))


def _parts(component: Any, children: str) -> list[dict[str, Any]]:
    """Return the steps of a normalizer or pre-tokenizer, as tokenizer.json describes them."""
    if component is None:
        return []
    written = json.loads(component.__getstate__())
    return list(written[children]) if written["type"] == "Sequence" else [written]


def _merged_characters(normalizer: Any) -> int | None:
    """Return how many characters of a text can become one. None if characters can be lost."""
    merged = 1
    for part in _parts(normalizer, "normalizers"):
        if part["type"] == "Replace":
            old, new = part["pattern"].get("String", ""), part["content"]
            if not 0 < len(old) <= len(new) or len(old.encode()) > len(new.encode()):
                return None
        elif part["type"] in _NORMALIZERS:
            merged *= _NORMALIZERS[part["type"]]
        else:
            return None
    return merged


def _longest_added(tokenizer: Tokenizer) -> int:
    """Return the bytes of the longest added token. Those that are looked for in normalized text are normalized, too."""
    contents = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    if tokenizer.normalizer is not None:
        contents += [tokenizer.normalizer.normalize_str(content) for content in contents]
    return max((len(content.encode()) for content in contents), default=0)


def _knows_all_characters(model: models.BPE, vocabulary: Collection[str]) -> bool:
    """Whether each unknown character has a token of its own, or tokens for its bytes."""
    if model.byte_fallback and all(f"<0x{byte:02X}>" in vocabulary for byte in range(256)):
        return True
    return model.unk_token is not None and not model.fuse_unk


def _byte_letters() -> list[str]:
    """Return the letter that GPT-2 writes for each byte: printable ones stand for themselves, others follow at 256."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]
