"""Embeddings as the SDK sends them."""

import numpy as np
import pytest

from inflight_client.embeds import Embeds
from inflight_client.fleet.prefixes import prefix_hashes
from inflight_client.request import make_request


@pytest.mark.parametrize(
    ("dtype", "name", "data_type"), [("f4", "prompt_embeds", "FP32"), ("f2", "prompt_embedding_table", "FP16")]
)
def test_an_array_is_sent_in_order(dtype: str, name: str, data_type: str) -> None:
    rows = np.arange(6, dtype=dtype).reshape(3, 2).T  # Its memory is in another order.
    embeds = Embeds.of(rows)
    assert (embeds.input_name, embeds.data_type, embeds.shape) == (name, data_type, (2, 3))
    assert embeds.content == np.ascontiguousarray(rows).tobytes()


@pytest.mark.parametrize(
    "given", [np.zeros(3, np.float32), np.zeros((1, 2, 3), np.float32), np.zeros((2, 3)), np.zeros((2, 3), ">f4")]
)
def test_other_arrays_are_refused(given: object) -> None:
    with pytest.raises(TypeError, match=r"it must be an array \[rows, width\] of float32 or float16"):
        Embeds.of(given)


def test_lists_are_refused() -> None:
    with pytest.raises(TypeError, match="memoryview: a bytes-like object is required"):
        Embeds.of([[0.0]])


def test_other_embeddings_are_another_prefix() -> None:
    one, other = np.zeros((2, 3), np.float32), np.ones((2, 3), np.float32)
    hashes = [
        prefix_hashes(make_request("llm", None, None, {"prompt_embeds": rows}, stream=False))
        for rows in (one, other, one)
    ]
    assert hashes[0] == hashes[2] != hashes[1]
