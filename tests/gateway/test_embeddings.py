"""POST /v1/embeddings with OpenAI's own client. The echo model embeds a prompt as what was asked for."""

import base64
import struct
from typing import Any

import httpx
import pytest
from openai import BadRequestError, OpenAI

from tests.gateway.gateway_process import GatewayProcess


@pytest.mark.parametrize(
    ("given", "words"),
    [("one two", [2]), (["one two", "three"], [2, 1]), ([5, 6, 7], [3]), ([[5, 6, 7], [8]], [3, 1])],
)
def test_inputs(client: OpenAI, given: Any, words: list[int]) -> None:
    answer = client.embeddings.create(model="llm", input=given)  # The package asks for base64.
    assert (answer.object, answer.model) == ("list", "llm")
    assert [item.embedding for item in answer.data] == [[count, 0, 0, 1] for count in words]
    assert [(item.object, item.index) for item in answer.data] == [("embedding", index) for index in range(len(words))]
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (sum(words), sum(words))


def test_encodings(gateway: GatewayProcess) -> None:
    found = []
    for encoding in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
        body = {"model": "llm", "input": "one", **encoding}
        response = httpx.post(f"{gateway.url}/v1/embeddings", json=body)
        found.append(response.json()["data"][0]["embedding"])
    assert found[0] == found[1] == [1, 0, 0, 1]
    assert struct.unpack("<4f", base64.b64decode(found[2])) == (1, 0, 0, 1)


def test_fields_reach_the_server(client: OpenAI) -> None:
    ours = {"pooling": "mean", "normalize": False, "priority": 2}
    answer = client.embeddings.create(model="llm", input="one", dimensions=7, user="ann", extra_body=ours)
    assert answer.data[0].embedding == [1, 7, 1, 0]


def test_vllms_names_of_fields(client: OpenAI) -> None:
    plain = {"use_activation": False, "embed_dtype": "float32", "endianness": "little", "add_special_tokens": True}
    assert client.embeddings.create(model="llm", input="one", extra_body=plain).data[0].embedding == [1, 0, 0, 0]
    with pytest.raises(BadRequestError, match="use_activation is True: it must be normalize, False, or absent"):
        client.embeddings.create(model="llm", input="one", extra_body={"normalize": False, "use_activation": True})


def test_as_many_inputs_as_openai_takes(client: OpenAI) -> None:
    answer = client.embeddings.create(model="llm", input=["one"] * 2048)
    assert [item.index for item in answer.data] == list(range(2048))


@pytest.mark.parametrize(("count", "in_pieces"), [(32, False), (33, True)])
def test_many_are_written_in_pieces(gateway: GatewayProcess, count: int, in_pieces: bool) -> None:
    # Others are served between the pieces.
    response = httpx.post(f"{gateway.url}/v1/embeddings", json={"model": "llm", "input": ["one"] * count})
    assert ("content-length" not in response.headers) == in_pieces
    assert [item["index"] for item in response.json()["data"]] == list(range(count))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ["one"] * 2049}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"dimensions": 0}, "dimensions"),
        ({"encoding_format": "int8"}, "encoding_format"),
        ({"extra_body": {"pooling": "max"}}, "pooling"),
        ({"extra_body": {"truncate_prompt_tokens": -2}}, "truncate_prompt_tokens"),
        ({"extra_body": {"late_chunking": True}}, "late_chunking"),
    ],
)
def test_what_is_refused(client: OpenAI, fields: Any, param: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        client.embeddings.create(**{"model": "llm", "input": "one", **fields})
    assert caught.value.param == param
