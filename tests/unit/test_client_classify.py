"""A query and a document as the client sends them, with what the chat template gets besides."""

import json

from inflight_client import TextPair
from inflight_client.request import make_embedding_request


def test_a_pair_takes_its_instruction_along() -> None:
    pair = TextPair("q", "d", {"instruction": "i"})
    request = make_embedding_request("llm", pair, {"task": "classify"}, {"tenant": "ann"})
    assert json.loads(str(request.prompt)) == {
        "input": {"query": "q", "document": "d"},
        "pooling_params": {"task": "classify"},
    }
    assert request.parameters == {
        "tenant": "ann",
        "return_embedding": True,
        "chat_template_kwargs": {"instruction": "i"},
    }
