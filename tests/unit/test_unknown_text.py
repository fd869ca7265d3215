"""Tokenizers without a token for unknown text refuse it with a reason that a client understands."""

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from inflight.errors import InvalidRequest
from inflight.text.chat import Chat
from inflight.text.prompt_encoder import PromptEncoder

VOCABULARY = {"hello": 0, "world": 1}
NO_TOKEN = "has text for which the model's tokenizer has no token"


@pytest.fixture(params=["words", "pieces"])
def encoder(request: pytest.FixtureRequest) -> PromptEncoder:
    model = {
        "words": models.WordLevel(VOCABULARY, unk_token="<unk>"),
        "pieces": models.WordPiece(VOCABULARY, unk_token="<unk>"),
    }[request.param]
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    return PromptEncoder(PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=template), max_model_len=16)


def chat(text: str) -> Chat:
    return Chat([{"role": "user", "content": text}])


def test_unknown_text_is_refused(encoder: PromptEncoder) -> None:
    with pytest.raises(InvalidRequest, match=f"^prompt {NO_TOKEN}"):
        encoder.encode("hello zebra")
    with pytest.raises(InvalidRequest, match=f"^prompt {NO_TOKEN}"):
        encoder.encode_end("hello zebra", 4)
    with pytest.raises(InvalidRequest, match=f"^messages {NO_TOKEN}"):
        encoder.encode_chat(chat("hello zebra"))


def test_known_text_is_encoded(encoder: PromptEncoder) -> None:
    assert encoder.encode("hello world") == [0, 1]
    assert encoder.encode_end("hello world", 1) == [1]
    assert encoder.encode_chat(chat("hello world")) == [0, 1]
