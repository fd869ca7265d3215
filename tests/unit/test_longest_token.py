"""A text that has few enough tokens is never taken for too long."""

import unicodedata
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from inflight import InvalidRequest
from inflight.text.chat import Chat
from inflight.text.longest_token import LongestToken
from inflight.text.prompt_encoder import PromptEncoder

A_WITH_RING = "A\N{COMBINING RING ABOVE}"
COMPOSED = "\N{GREEK SMALL LETTER ALPHA WITH PSILI AND VARIA AND YPOGEGRAMMENI}"
DECOMPOSED = unicodedata.normalize("NFD", COMPOSED)
"""Four characters."""
PIECES = [*"a \t\n\x061", "a" * 8, "\xff", "é", "你", "\N{GRINNING FACE}", A_WITH_RING, DECOMPOSED]
# Not those halves of characters that no UTF-8 can hold.
CHARACTERS = st.characters(exclude_categories=["Cs"])
TEXTS = st.lists(
    st.one_of(st.sampled_from([*PIECES, "<end>", " <end> "]), st.text(CHARACTERS, max_size=4)), max_size=12
).map("".join)


def wrapped(tokenizer: Tokenizer) -> Any:
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def bpe(names: list[str], letter: str = "a", **settings: Any) -> Tokenizer:
    """A BPE tokenizer of these tokens and of two, four and eight times a letter, with a special token."""
    merges = [(letter * half, letter * half) for half in (1, 2, 4)]
    names = [*names, letter, *(left + right for left, right in merges)]
    vocabulary = {name: index for index, name in enumerate(dict.fromkeys(names))}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, **settings))
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    return tokenizer


def of_bytes(*missing: str, normalizer: Any = None) -> Tokenizer:
    """As GPT-2, Llama 3 or Qwen, without the tokens for some letters."""
    tokenizer = bpe(sorted(set(pre_tokenizers.ByteLevel.alphabet()) - {*missing}))
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    return tokenizer


def of_pieces(normalizer: Any = None, pre_tokenizer: Any = None, **settings: Any) -> Tokenizer:
    """As Llama 2 or Gemma: the bytes of unknown characters are tokens."""
    names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "é"]
    tokenizer = bpe(names, **{"unk_token": "<unk>", "byte_fallback": True, "fuse_unk": True, **settings})
    tokenizer.normalizer = normalizer or normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    return tokenizer


BOUNDED = {
    "byte level": of_bytes(),
    "bytes without a token": of_bytes("Ć", "ÿ", "Â", "č"),
    "NFC": of_bytes(normalizer=normalizers.NFC()),
    "NFKC": of_bytes(normalizer=normalizers.NFKC()),
    "byte fallback": of_pieces(),
    "Metaspace": of_pieces(normalizers.NFKC(), pre_tokenizers.Metaspace(), letter=COMPOSED),
    "one unknown token for each character": of_pieces(byte_fallback=False, fuse_unk=False),
}


@pytest.mark.parametrize("tokenizer", [wrapped(tokenizer) for tokenizer in BOUNDED.values()], ids=BOUNDED)
@given(text=TEXTS, times=st.sampled_from([1, 50]))
@example("\x06", 200)
@example(DECOMPOSED * 8, 1)
@example("aaaaaaaa", 50)
@example(" ", 50)
def test_no_token_stands_for_more(tokenizer: Any, text: str, times: int) -> None:
    longest = LongestToken.of(tokenizer)
    assert longest is not None
    many = text * times
    assert longest.size_of(many) <= len(tokenizer(many)["input_ids"]) * longest.size


def test_the_bound_of_a_byte_level_tokenizer_counts_bytes() -> None:
    assert LongestToken.of(wrapped(of_bytes())) == LongestToken(8, "bytes")
    longest = LongestToken.of(wrapped(of_bytes("Ć")))
    assert longest == LongestToken(8, "bytes", b"\x06")
    assert longest.size_of("a\x06é\x06") == 3


UNBOUNDED = {
    "characters without a token": bpe(["a"]),
    "unknown tokens in one": of_pieces(byte_fallback=False),
    "an incomplete set of bytes": of_pieces(unk_token=None, byte_fallback=False),
    "bytes without a token, and NFC": of_bytes("Ć", normalizer=normalizers.NFC()),
    "a normalizer that deletes": of_pieces(normalizers.Replace("a", "")),
    "a normalizer of runs": of_pieces(normalizers.Replace(Regex(" +"), " ")),
    "strip": of_pieces(normalizers.Strip()),
    "a pre-tokenizer that deletes": of_pieces(pre_tokenizer=pre_tokenizers.WhitespaceSplit()),
    "a split that deletes": of_pieces(pre_tokenizer=pre_tokenizers.Split(" ", "removed")),
    "suffixes of words": bpe(["a</w>"], unk_token="a", end_of_word_suffix="</w>"),
    "unigram": Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0)], unk_id=0)),
    "words": Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>")),
}


@pytest.mark.parametrize("tokenizer", UNBOUNDED.values(), ids=UNBOUNDED)
def test_there_is_no_bound_where_text_may_get_lost(tokenizer: Tokenizer) -> None:
    assert LongestToken.of(wrapped(tokenizer)) is None


@pytest.mark.parametrize("side", ["lstrip", "rstrip"])
def test_there_is_no_bound_if_a_token_takes_white_space(side: str) -> None:
    tokenizer = of_bytes()
    assert LongestToken.of(wrapped(tokenizer)) is not None
    tokenizer.add_tokens([AddedToken("<mask>", **{side: True})])
    assert len(tokenizer.encode("  \n  <mask>" if side == "lstrip" else "<mask>  \n  ").ids) == 1
    assert LongestToken.of(wrapped(tokenizer)) is None


def test_there_is_no_bound_for_code_that_ships_with_a_model() -> None:
    class Own(PreTrainedTokenizerFast):
        """May drop what it likes."""

    assert LongestToken.of(Own(tokenizer_object=of_bytes())) is None


def test_a_long_added_token_counts_as_it_is_looked_for() -> None:
    tokenizer = of_bytes(normalizer=normalizers.Replace("b", "你好"))
    tokenizer.add_tokens([AddedToken("bbbb", normalized=True)])
    assert LongestToken.of(wrapped(tokenizer)) == LongestToken(24, "bytes")


def never(*_: Any, **__: Any) -> None:
    raise AssertionError("the text is tokenized")


def test_a_prompt_that_cannot_fit_is_refused_before_it_is_tokenized(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = PromptEncoder(wrapped(of_bytes()), max_model_len=3)
    assert len(encoder.encode("a" * 16)) == 2
    monkeypatch.setattr(PreTrainedTokenizerFast, "__call__", never)
    with pytest.raises(InvalidRequest) as refusal:
        encoder.encode("a" * 17)
    assert str(refusal.value) == (
        "prompt is 17 bytes long; it must be at most 16, as the context is 3 tokens of at most 8 bytes"
    )


def test_a_chat_that_cannot_fit_is_refused_before_it_is_tokenized(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = wrapped(of_bytes())
    tokenizer.chat_template = "{{ messages[0].content }}<end>"
    encoder = PromptEncoder(tokenizer, max_model_len=4)
    end = tokenizer.convert_tokens_to_ids("<end>")
    assert encoder.encode_chat(Chat([{"role": "user", "content": "a" * 16}]))[-1] == end
    monkeypatch.setattr(PreTrainedTokenizerFast, "__call__", never)
    with pytest.raises(
        InvalidRequest, match=r"^messages is 25 bytes long, chat template included; it must be at most 24"
    ):
        encoder.encode_chat(Chat([{"role": "user", "content": "a" * 20}]))


def test_a_prompt_whose_tokens_have_no_bound_is_tokenized_up_to_a_megabyte(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = PromptEncoder(wrapped(UNBOUNDED["unigram"]), max_model_len=3)
    assert len(encoder.encode("b" * 2**20)) == 1
    monkeypatch.setattr(PreTrainedTokenizerFast, "__call__", never)
    with pytest.raises(InvalidRequest) as refusal:
        encoder.encode("b" * (2**20 + 1))
    assert str(refusal.value) == (
        "prompt is 1048577 characters long; it must be at most 1048576, as the context is 3 tokens"
    )


def of_bytes_and_a_long_word() -> Any:
    tokenizer = of_bytes()
    tokenizer.add_tokens([AddedToken("b" * 100)])
    return wrapped(tokenizer)


def test_a_text_with_far_too_many_tokens_is_not_tokenized_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = PromptEncoder(of_bytes_and_a_long_word(), max_model_len=10_000)
    monkeypatch.setattr(PreTrainedTokenizerFast, "__call__", never)
    with pytest.raises(InvalidRequest) as refusal:
        encoder.encode("6" * 200_000)  # Each digit is a token, and the first piece has 80,000 of them.
    assert str(refusal.value) == ("prompt has over 79743 tokens; it must have at most 9999, as the context is 10000")


@pytest.mark.parametrize("letter", ["a", "6", "é", "b"])
def test_a_long_text_that_fits_is_tokenized(letter: str) -> None:
    """Cut into pieces as well as whole."""
    tokenizer = of_bytes_and_a_long_word()
    text = letter * 200_000
    length = len(tokenizer(text)["input_ids"])
    assert len(PromptEncoder(tokenizer, max_model_len=length + 1).encode(text)) == length
