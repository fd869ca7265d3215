"""What a client takes as a prompt, before anything is sent."""

from typing import Any

import numpy as np
import pytest

from inflight_client import Client, InvalidRequest
from inflight_client.request import make_embedding_request, make_request

NOBODY = "127.0.0.1:1"


def token_ids(prompt: Any) -> Any:
    return make_request("llm", prompt, None, {}, stream=True).prompt


@pytest.mark.parametrize("prompt", [[3, 4], (3, 4), range(3, 5), np.array([3, 4]), [np.int32(3), np.int64(4)]])
def test_token_ids_become_plain_numbers(prompt: Any) -> None:
    ids = token_ids(prompt)
    assert ids == [3, 4]
    assert {type(token) for token in ids} == {int}


@pytest.mark.parametrize(
    "prompt", [b"one", bytearray(b"one"), [1.5], ["one", "two"], {"a": 1}, 5, np.ones((2, 2))], ids=repr
)
def test_what_is_neither_text_nor_token_ids_is_refused(prompt: Any) -> None:
    with pytest.raises(TypeError, match="it must be a text or a list of token ids"):
        token_ids(prompt)
    with pytest.raises(TypeError, match="it must be a text or a list of token ids"):
        make_embedding_request("llm", prompt, {}, {})


@pytest.mark.parametrize("token", [-1, 2**31, 2**70])
def test_a_token_id_that_no_model_has_is_refused_over_each_transport(token: int) -> None:
    for url in (NOBODY, f"http://{NOBODY}"):
        with (
            Client(url) as client,
            pytest.raises(InvalidRequest, match=f"has the token id {token}; it must be at least"),
        ):
            client.generate([1, token])


def test_one_prompt_in_place_of_several_is_refused() -> None:
    with Client(NOBODY) as client:
        for prompts in ("one", b"one"):
            with pytest.raises(TypeError, match="it must be a list of prompts"):
                client.generate_many(prompts)  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="it must be a list of prompts"):
                client.embed_many(prompts)  # type: ignore[arg-type]


def test_a_port_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="has the port 65536; it must be at most 65535"):
        Client("127.0.0.1:65536")
