"""The end of a prompt has the tokens that transformers keeps when it truncates on the left, and its beginning those
that it keeps on the right."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, normalizers, processors
from transformers import PreTrainedTokenizerFast

from inflight import InvalidRequest, TextPair
from inflight.text.prompt_encoder import PromptEncoder
from tests.unit.test_longest_token import TEXTS, UNBOUNDED, of_bytes


def wrapped(tokenizer: Tokenizer, template: str, side: str = "left") -> Any:
    """With the special token <end> where the template has it, such as in '<end> $A'."""
    if template != "$A":
        end = tokenizer.token_to_id("<end>")
        tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=[("<end>", end)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, truncation_side=side)


@pytest.mark.parametrize("template", ["$A", "<end> $A", "<end> $A <end>"])
@given(text=TEXTS, most=st.integers(3, 12))
def test_special_tokens_stay(template: str, text: str, most: int) -> None:
    tokenizer = wrapped(of_bytes(), template)
    kept = PromptEncoder(tokenizer, max_model_len=16).encode_end(text, most)
    assert kept == tokenizer(text, truncation=True, max_length=most)["input_ids"]


@pytest.mark.parametrize("template", ["$A", "$A <end>", "<end> $A <end>"])
@given(text=TEXTS, most=st.integers(3, 12))
def test_special_tokens_stay_after_the_beginning(template: str, text: str, most: int) -> None:
    tokenizer = wrapped(of_bytes(), template, "right")
    kept = PromptEncoder(tokenizer, max_model_len=16).encode_beginning(text, most)
    assert kept == tokenizer(text, truncation=True, max_length=most)["input_ids"]


def test_fewer_tokens_than_special_ones() -> None:
    tokenizer = wrapped(of_bytes(), "<end> $A")
    assert PromptEncoder(tokenizer, max_model_len=16).encode_end("6 7", 1) == [tokenizer.convert_tokens_to_ids("<end>")]


def test_token_ids() -> None:
    encoder = PromptEncoder(None, max_model_len=4)
    assert encoder.encode_end([1, 2, 3], 2) == [2, 3]
    assert encoder.encode_end([1, 2, 3], 4) == [1, 2, 3]
    assert encoder.encode_beginning([1, 2, 3], 2) == [1, 2]


@pytest.mark.parametrize("text", ["6" * 300_000, "a" * 300_000 + "6é aa " * 1000, "aaa 6 " * 60_000])
def test_only_the_end_of_a_long_text_is_tokenized(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    tokenizer = wrapped(of_bytes(), "<end> $A")
    expected = tokenizer(text)["input_ids"]
    lengths = []
    whole = PreTrainedTokenizerFast.__call__

    def noting(self: Any, text: str, **options: Any) -> Any:
        lengths.append(len(text))
        return whole(self, text, **options)

    monkeypatch.setattr(PreTrainedTokenizerFast, "__call__", noting)
    kept = PromptEncoder(tokenizer, max_model_len=2000).encode_end(text, 2000)
    assert kept == expected[:1] + expected[-1999:]
    assert lengths == [2**16]


def test_only_the_beginning_of_a_long_text_is_tokenized() -> None:
    tokenizer = wrapped(of_bytes(), "$A <end>", "right")
    text = "6é aa " * 1000 + "a" * 300_000
    kept = PromptEncoder(tokenizer, max_model_len=2000).encode_beginning(text, 2000)
    assert kept == tokenizer(text, truncation=True, max_length=2000)["input_ids"]


def test_a_text_with_very_long_tokens_is_cut_at_a_bound() -> None:
    """One token of this tokenizer stands for a run of any length."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=UNBOUNDED["unigram"])
    assert len(PromptEncoder(tokenizer, max_model_len=8).encode_end("b" * 2**21, 8)) == 1


def of_pairs(chat_template: str | None) -> Any:
    tokenizer = of_bytes()
    end = tokenizer.token_to_id("<end>")
    pair = {"single": "$A", "pair": "$A <end> $B <end>"}
    tokenizer.post_processor = processors.TemplateProcessing(**pair, special_tokens=[("<end>", end)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=chat_template)


BY_TEMPLATE = "{% for m in messages %}{{ {'query': '?', 'document': '!'}[m.role] }}{{ m.content }}{% endfor %}."


@pytest.mark.parametrize("chat_template", [None, BY_TEMPLATE])
@given(document=TEXTS, most=st.integers(8, 16))
def test_of_a_query_and_a_document_the_end_of_the_document_is_cut(
    chat_template: str | None, document: str, most: int
) -> None:
    encoder = PromptEncoder(of_pairs(chat_template), max_model_len=1000)
    kept = encoder.encode_beginning(TextPair("6", document), most)
    beginnings = [encoder.encode(TextPair("6", document[:length])) for length in range(len(document) + 1)]
    fitting = [each for each in beginnings if len(each) <= most]
    assert kept in fitting
    # Nearly all that fits stays: what is left of a token that was cut may be several. Of control tokens, more may go.
    assert "<end>" in document or len(kept) >= max(map(len, fitting)) - 4


@pytest.mark.parametrize("document", ["7", "", "\a"])
def test_a_query_is_not_cut(document: str) -> None:
    tokenizer = of_pairs(None)
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("\a", "")
    encoder = PromptEncoder(tokenizer, max_model_len=100)
    assert len(encoder.encode(TextPair("6666 6666", document))) > 8
    message = r"^truncate_prompt_tokens is 8; the prompt has \d+ tokens without the document, which alone can be cut"
    with pytest.raises(InvalidRequest, match=message):
        encoder.encode_beginning(TextPair("6666 6666", document), 8)


def test_a_long_document_is_cut_before_it_is_tokenized() -> None:
    encoder = PromptEncoder(of_pairs(None), max_model_len=100)
    assert len(encoder.encode_beginning(TextPair("6", "7" * 10_000_000), 50)) == 50


def test_the_length_at_which_a_tokenizer_cut_in_training_does_not_count() -> None:
    tokenizer = of_pairs(None)
    tokenizer.backend_tokenizer.enable_truncation(4)
    tokenizer.backend_tokenizer.enable_padding(length=30)
    assert len(PromptEncoder(tokenizer, max_model_len=100).encode_beginning(TextPair("6", "7" * 100), 50)) == 50
