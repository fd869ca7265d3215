"""`bad_words` forbids exactly the tokens that would complete one of its sequences."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers
from transformers import PreTrainedTokenizerFast

from inflight.logits_processors.bad_words import BadWords
from inflight.logits_processors.edits import LogitEdits
from inflight.text.bad_words import token_sequences

TOKENS = st.integers(0, 3)


def forbidden(processor: BadWords) -> set[int]:
    edits = LogitEdits()
    edits.begin_row(0)
    processor.edit(edits)
    return {token for each in edits.edits for token in each.tokens.tolist()}


@settings(deadline=None)
@given(
    sequences=st.lists(st.lists(TOKENS, min_size=1, max_size=4), max_size=6),
    output=st.lists(TOKENS, max_size=20),
)
def test_a_token_is_forbidden_if_the_output_would_end_with_a_sequence(
    sequences: list[list[int]], output: list[int]
) -> None:
    processor = BadWords(sequences)
    for count in range(len(output) + 1):
        so_far = output[:count]
        completing = {token for token in range(4) if any([*so_far, token][-len(each) :] == each for each in sequences)}
        assert forbidden(processor) == completing
        if count < len(output):
            processor.accept(output[count])


def by_character(text: str, *, add_special_tokens: bool) -> dict[str, list[int]]:
    assert not add_special_tokens
    return {"input_ids": [ord(character) for character in text]}


def test_a_word_is_matched_with_and_without_a_leading_space() -> None:
    assert token_sequences(by_character, [" ab"]) == ((97, 98), (32, 97, 98))


@pytest.mark.parametrize("word", ["\n", "\n\n", " ", "  ", " \n", "\nUser:", "\tx"])
def test_white_space_is_matched_as_it_is(word: str) -> None:
    assert token_sequences(by_character, [word]) == (tuple(map(ord, word)),)


def test_a_word_is_also_forbidden_where_no_space_comes_before_it() -> None:
    """Llama 2's tokenizer puts a space before every text, but not before what stands after a bracket or a line."""
    names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"damn(", "da", "mn", "damn", "▁damn"]
    merges = [("d", "a"), ("m", "n"), ("da", "mn"), ("▁", "damn")]
    vocabulary = {name: index for index, name in enumerate(names)}
    backend = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)

    def forbidden(word: str) -> set[tuple[str, ...]]:
        return {tuple(tokenizer.convert_ids_to_tokens(ids)) for ids in token_sequences(tokenizer, [word])}

    assert {("damn",), ("▁damn",)} <= forbidden("damn")
    assert ("<0x0A>",) in forbidden("\n")


def test_a_tokenizer_without_a_token_for_line_breaks_is_asked_for_the_words_alone() -> None:
    backend = Tokenizer(models.Unigram([("a", -1.0), ("b", -1.0), (" ", -1.0)], unk_id=None))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    assert token_sequences(tokenizer, ["ab"]) == ((0, 1), (2, 0, 1))
    with pytest.raises(Exception, match="unk_id"):
        token_sequences(tokenizer, ["\n"])
