"""Tokenizers of the kinds that models come with, made on the spot."""

from collections.abc import Iterable

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

WORDS = ["▁", "a", "b", "▁a", "▁b", "▁the", ".", "é", "你", "▁你"]


def byte_level() -> Tokenizer:
    """GPT-2's bytes without its merges, but for one: `X` and the first byte of some Chinese character."""
    names = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "X\N{LATIN SMALL LETTER A WITH DIAERESIS}"]
    tokenizer = Tokenizer(models.BPE({name: index for index, name in enumerate(names)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    return tokenizer


def byte_fallback() -> Tokenizer:
    """Some words, and bytes for all else, as in Llama 2, Mistral or Gemma."""
    names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS]
    model = models.BPE({name: index for index, name in enumerate(names)}, [], unk_token="<unk>", byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    return tokenizer


def metaspace() -> Tokenizer:
    """Words that carry the space before them, as in T5 or XGLM."""
    pieces = [("<unk>", 0.0), *((word, -1.0) for word in WORDS)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    return tokenizer


def from_bytes(tokenizer: Tokenizer, data: bytes) -> list[int]:
    """One token per byte, whether or not the bytes are valid UTF-8."""
    if (first := tokenizer.token_to_id("<0x00>")) is not None:
        return [first + byte for byte in data]
    letters = _byte_letters()
    return [tokenizer.token_to_id(letters[byte]) for byte in data]


def from_names(tokenizer: Tokenizer, names: Iterable[str]) -> list[int]:
    """Tokens by name; characters that no token has become one token per byte."""
    ids = []
    for name in names:
        known = tokenizer.token_to_id(name)
        ids += from_bytes(tokenizer, name.encode()) if known is None else [known]
    return ids


def _byte_letters() -> list[str]:
    """GPT-2's letter for each byte: printable ones stand for themselves, the others follow from 256 on."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]
