"""The outputs of a batch have a row for each of its rows, padded where a row has less than another one."""

import numpy as np

from joined_rows import joined


def texts(*values: bytes) -> np.ndarray:
    return np.array(values, dtype=np.object_)


def test_rows_that_are_alike_become_one_array() -> None:
    rows = [{"usage": np.array([3, 4], dtype=np.uint32)}, {"usage": np.array([5, 6], dtype=np.uint32)}]
    (array,) = joined(rows).values()
    assert array.tolist() == [[3, 4], [5, 6]]
    assert array.dtype == np.uint32


def test_tokens_are_padded_with_minus_one_and_other_numbers_with_zero() -> None:
    short = {"token_ids": np.array([[7]], dtype=np.int32), "output_log_probs": np.array([[-0.5]], dtype=np.float32)}
    long = {
        "token_ids": np.array([[8, 9], [10, -1]], dtype=np.int32),
        "output_log_probs": np.array([[-1, -2], [-3, 0]], dtype=np.float32),
    }
    found = joined([short, long])
    assert found["token_ids"].tolist() == [[[7, -1], [-1, -1]], [[8, 9], [10, -1]]]
    assert found["output_log_probs"].tolist() == [[[-0.5, 0], [0, 0]], [[-1, -2], [-3, 0]]]


def test_texts_of_fewer_samples_are_padded_with_empty_ones() -> None:
    found = joined([{"text_output": texts(b"a")}, {"text_output": texts(b"b", b"c")}])
    assert found["text_output"].tolist() == [[b"a", b""], [b"b", b"c"]]


def test_an_output_that_some_rows_lack_is_padding_there() -> None:
    first = {"text_output": texts(b"a"), "finish_reason": texts(b"stop")}
    second = {"text_output": texts(b"b"), "token_ids": np.array([[5, 6]], dtype=np.int32)}
    found = joined([first, second])
    assert found["finish_reason"].tolist() == [[b"stop"], [b""]]
    assert found["token_ids"].tolist() == [[[-1, -1]], [[5, 6]]]
