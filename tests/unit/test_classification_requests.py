"""What a request to classify may hold, and how a query and a document become one prompt."""

import json
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from inflight import InvalidRequest, PoolingParams, TextPair
from inflight.text.prompt_encoder import PromptEncoder
from inflight.text.text_pair import reads_pairs
from tests.unit.test_longest_token import of_bytes

Parse = Callable[..., Any]
PAIR = {"query": "q", "document": "d"}
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'query' %}<{{ m.content }}>{% elif m.role == \"document\" %}"
    "[{{ m.content }}]{% endif %}{% endfor %}{{ instruction }}"
)


@pytest.fixture
def parse(monkeypatch: pytest.MonkeyPatch) -> Parse:
    """Reads a request with this `embedding_request`, and with other parameters."""
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", ModuleType("triton_python_backend_utils"))
    from serving.parse import parse

    def of(asked: Any, **parameters: Any) -> Any:
        written = json.dumps({"embedding_request": json.dumps(asked), **parameters})
        request = SimpleNamespace(inputs=list, parameters=lambda: written, timeout=int, request_id=str)
        return parse(request, 100, 1000)

    return of


def test_a_pair_to_classify(parse: Parse) -> None:
    asked = parse({"input": PAIR, "pooling_params": {"task": "classify", "use_activation": False}})
    assert asked.prompt == TextPair("q", "d")
    assert asked.pooling == PoolingParams(task="classify", use_activation=False)
    instructed = parse({"input": PAIR}, sampling_parameters='{"chat_template_kwargs": {"instruction": "i"}}')
    assert instructed.prompt == TextPair("q", "d", {"instruction": "i"})


def test_a_chat_to_classify_ends_with_its_last_message(parse: Parse) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    chat = parse({"input": messages}).chat
    assert (chat.messages, chat.add_generation_prompt) == (messages, False)
    assert parse({"input": messages}, add_generation_prompt=True).chat.add_generation_prompt is True


@pytest.mark.parametrize(
    ("asked", "others", "message"),
    [
        ({"query": "q"}, {}, "document in input of embedding_request is None; it must be a text"),
        ({**PAIR, "title": "t"}, {}, "input of embedding_request has the unknown key 'title'"),
        (PAIR, {"add_generation_prompt": True}, "add_generation_prompt is given with embedding_request; it needs mess"),
        ("a", {"sampling_parameters": '{"chat_template_kwargs": {}}'}, "chat_template_kwargs is given with embedding_"),
        ([{"role": "user", "content": "a"}], {"truncate_prompt_tokens": 5}, "truncate_prompt_tokens is given with mes"),
    ],
)
def test_what_is_refused(parse: Parse, asked: Any, others: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        parse({"input": asked}, **others)


def test_a_pair_is_written_by_a_template_that_reads_pairs() -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=of_bytes())
    encoder = PromptEncoder(tokenizer, max_model_len=100)
    assert encoder.encode(TextPair("5", "6")) == tokenizer("5", "6")["input_ids"]
    with pytest.raises(InvalidRequest, match="chat_template_kwargs is given, but the chat template knows no query"):
        encoder.encode(TextPair("5", "6", {"instruction": "7"}))
    with pytest.raises(InvalidRequest, match="truncate_prompt_tokens is given with a query and a document"):
        encoder.encode_end(TextPair("5", "6"), 1)
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"
    assert encoder.encode(TextPair("5", "6")) == tokenizer("5", "6")["input_ids"]
    tokenizer.chat_template = TEMPLATE
    assert encoder.encode(TextPair("5", "6", {"instruction": "7"})) == tokenizer("<5>[6]7")["input_ids"]


@pytest.mark.parametrize(
    ("template", "reads"),
    [(TEMPLATE, True), (None, False), ({"default": TEMPLATE}, False), ("{{ query }}{{ document }}", False)],
)
def test_templates_that_read_pairs(template: object, reads: bool) -> None:
    assert reads_pairs(template) is reads
