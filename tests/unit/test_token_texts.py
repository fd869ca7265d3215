"""The texts of single tokens, which log-probabilities have, make up the text."""

import sys
from collections.abc import Callable, Sequence
from types import ModuleType

import pytest
from tokenizers import Tokenizer

from tests.unit.tiny_tokenizers import byte_fallback, byte_level, from_names, metaspace


@pytest.fixture
def text_within(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Sequence[int]], str], int], str]:
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", ModuleType("triton_python_backend_utils"))
    from serving.response import text_within

    return text_within


WORDS = ["▁the", "▁a", "b", ".", "▁", "▁b"]
CONTROL = ["▁a", "<end>", "▁b"]
OTHERS = ["a", "é", "▁你", "你", "b", "b"]


@pytest.mark.parametrize(
    ("make", "names"),
    [
        *((byte_fallback, names) for names in (WORDS, CONTROL, OTHERS)),
        *((metaspace, names) for names in (WORDS, CONTROL, OTHERS)),
        (byte_level, ["t", "h", "e", " ", " ", "a", "<end>", "a"]),
    ],
)
def test_texts_of_tokens_make_up_the_text(
    text_within: Callable[[Callable[[Sequence[int]], str], int], str], make: Callable[[], Tokenizer], names: list[str]
) -> None:
    tokenizer = make()

    def decode(token_ids: Sequence[int]) -> str:
        return str(tokenizer.decode(token_ids, skip_special_tokens=False))

    ids = from_names(tokenizer, names)
    assert decode(ids[:1]) + "".join(text_within(decode, token) for token in ids[1:]) == decode(ids)
