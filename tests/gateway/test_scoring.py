"""POST /classify, /v1/score and /v1/rerank.

The echo model has two classes for a text, and one for a query and a document: how many words both have.
"""

from typing import Any

import httpx
import pytest

from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.test_metrics import metrics

DOCUMENTS = ["a", "one two", {"text": "two b"}, "one two c"]


def post(gateway: GatewayProcess, path: str, **fields: Any) -> Any:
    # The gateway has a time limit for answers. That of httpx is too short for thousands of documents.
    reply = httpx.post(f"{gateway.url}{path}", json={"model": "llm", **fields}, timeout=None)
    assert reply.status_code == 200, reply.text
    return reply.json()


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_documents_are_ordered(gateway: GatewayProcess, path: str) -> None:
    answer = post(gateway, path, query="one two", documents=DOCUMENTS)
    assert answer["results"] == [
        {"index": 1, "relevance_score": 2, "document": {"text": "one two"}},
        {"index": 3, "relevance_score": 2, "document": {"text": "one two c"}},
        {"index": 2, "relevance_score": 1, "document": {"text": "two b"}},
        {"index": 0, "relevance_score": 0, "document": {"text": "a"}},
    ]
    assert (answer["model"], answer["usage"]) == ("llm", {"prompt_tokens": 16, "total_tokens": 16})
    best = post(gateway, path, query="one two", documents=DOCUMENTS, top_n=1, return_documents=False)
    assert best["results"] == [{"index": 1, "relevance_score": 2}]


def test_documents_are_ranked_as_by_text_embeddings_inference(gateway: GatewayProcess) -> None:
    texts = ["a", "one two", "two b"]

    def ranks(**fields: Any) -> Any:
        reply = httpx.post(f"{gateway.url}/rerank", json={"query": "one two", "texts": texts, **fields})
        assert reply.status_code == 200, reply.text
        return reply.json()

    best_first = [{"index": 1, "score": 2}, {"index": 2, "score": 1}, {"index": 0, "score": 0}]
    assert ranks() == ranks(raw_scores=False, return_text=False, truncate=False) == best_first
    assert ranks(raw_scores=True)[0] == {"index": 0, "score": 0}
    assert ranks(return_text=True)[0] == {"index": 1, "score": 2, "text": "one two"}
    assert ranks(truncate=True, truncation_direction="Right") == best_first


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
@pytest.mark.parametrize("names", [("text_1", "text_2"), ("queries", "documents")])
def test_scores(gateway: GatewayProcess, path: str, names: tuple[str, str]) -> None:
    for queries, documents, wanted in (
        ("one", "one two", [1]),
        ("one", ["two", "one"], [0, 1]),
        (["one"], ["two", "one"], [0, 1]),
        (["one", "two"], ["two", "two"], [0, 1]),
    ):
        answer = post(gateway, path, **dict(zip(names, (queries, documents), strict=True)))
        assert answer["data"] == [
            {"index": index, "object": "score", "score": score} for index, score in enumerate(wanted)
        ]
    assert post(gateway, path, text_1="one", text_2="one", use_activation=False)["data"][0]["score"] == -1


def test_they_are_counted(gateway: GatewayProcess) -> None:
    post(gateway, "/v1/score", text_1="one", text_2="two")
    before = metrics(gateway)
    post(gateway, "/v1/score", text_1="one two", text_2=["three", "four"])
    after = metrics(gateway)
    for name, labels, rise in (
        ("tokens", {"kind": "prompt"}, 6),
        ("requests", {"endpoint": "/v1/score", "status": "200"}, 1),
    ):
        counter = f"inflight_gateway_{name}_total"
        assert after.value(counter, **labels) - before.value(counter, **labels) == rise


def test_classes(gateway: GatewayProcess) -> None:
    answer = post(gateway, "/classify", input=["one two", "!request"])
    assert answer["data"] == [
        {"index": 0, "label": "long", "probs": [2, 1], "num_classes": 2},
        {"index": 1, "label": "long", "probs": [1, 1], "num_classes": 2},
    ]
    assert answer["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    assert post(gateway, "/classify", input=[5, 6], use_activation=False)["data"][0]["probs"] == [2, 0]
    chat = [{"role": "user", "content": "one"}]
    assert post(gateway, "/classify", messages=chat)["data"][0]["num_classes"] == 2


def test_as_many_documents_as_a_request_may_have(gateway: GatewayProcess) -> None:
    answer = post(gateway, "/v1/rerank", query="one", documents=["one"] * 2048)
    assert [result["index"] for result in answer["results"]] == list(range(2048))


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/rerank", {"query": "a", "documents": []}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": [{"title": "b"}]}, "documents[0].text"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "top_n": 0}, "top_n"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "max_tokens_per_doc": 5}, "max_tokens_per_doc"),
        ("/v1/rerank", {"query": "!error INVALID_ARG", "documents": ["b"]}, None),
        ("/v1/rerank", {"query": "a", "texts": ["b"]}, "documents"),
        ("/rerank", {"query": "a", "texts": []}, "texts"),
        ("/rerank", {"query": "a", "texts": ["b"], "documents": ["b"]}, "documents"),
        ("/rerank", {"query": "a"}, "documents"),
        ("/v1/score", {"queries": ["a", "b"], "documents": ["c"]}, "documents"),
        ("/v1/score", {"queries": ["a", "b"], "documents": "cd"}, "documents"),
        ("/v1/score", {"text_1": "a"}, "text_2"),
        ("/classify", {"input": ""}, "input"),
        ("/classify", {"messages": []}, "messages"),
        ("/classify", {}, "input"),
    ],
)
def test_what_is_refused(gateway: GatewayProcess, path: str, fields: Any, param: str | None) -> None:
    reply = httpx.post(f"{gateway.url}{path}", json={"model": "llm", **fields})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param
