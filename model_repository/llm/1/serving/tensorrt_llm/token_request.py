"""Reads a request in the format of TensorRT-LLM's model `tensorrt_llm` as one in our own."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inflight import InvalidRequest
from inflight.sampling_params import MAX_BIASES
from serving.tensorrt_llm.tensors import INPUTS, REFUSED

_FIELDS = {tensor.name: tensor.field for tensor in INPUTS}
# The engine's own bounds come too late: until then, long lists would keep the thread busy that accepts requests.
_MAX_WORD_TOKENS = 4096
_CHOICES = {"top_k", "top_p"}


@dataclass(frozen=True)
class InputTensor:
    """An input under the name of our field."""

    field: str
    array: NDArray[Any]

    def name(self) -> str:
        return self.field

    def as_numpy(self) -> NDArray[Any]:
        return self.array


class TokenRequest:
    """A request of such a client, as `serving.parse` reads requests.

    Our own fields can come with it as request parameters. A tensor counts more than a parameter.
    """

    def __init__(self, request: Any, text_of: Callable[[Sequence[int]], str], *, exclude_input: bool = False) -> None:
        """`text_of`: returns the text of tokens. `exclude_input`: whole outputs are without the prompt, unless the
        request says otherwise.

        Raises:
            InvalidRequest: the message names the tensor and what it must be.
        """
        self._request = request
        self._text_of = text_of
        self._exclude_input = exclude_input
        given = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        for name in REFUSED & given.keys():
            if given[name].size and (given[name].dtype != np.bool_ or given[name].any()):
                raise InvalidRequest(f"{name} is given; there is no such thing here, so it must be left out")
        self._inputs = list(self._translated(given))
        parameters = json.loads(request.parameters() or "{}")
        self._parameters = {**parameters, **self._further_fields(given)}
        if not _CHOICES & self._parameters.keys():
            self._parameters["top_k"] = 1  # As in TensorRT-LLM, the likeliest token is taken then.

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)

    def inputs(self) -> list[InputTensor]:
        """Return the tensors whose meaning is that of one of our fields."""
        return self._inputs

    def parameters(self) -> str:
        """Return the request parameters, with further fields, as JSON."""
        return json.dumps(self._parameters)

    def _translated(self, given: dict[str, NDArray[Any]]) -> Iterator[InputTensor]:
        for name, array in given.items():
            if (field := _FIELDS[name]) is not None:
                yield InputTensor(field, array)
        if "input_ids" in given:
            yield InputTensor("input_ids", _unpadded(given["input_ids"], given.get("input_lengths")))
        if "streaming" in given:
            yield InputTensor("stream", given["streaming"])

    def _further_fields(self, given: dict[str, NDArray[Any]]) -> dict[str, Any]:
        fields: dict[str, Any] = {"return_token_ids": True}
        excluded = _truth("exclude_input_in_output", given, or_else=self._exclude_input)
        if not (excluded or _truth("streaming", given)):
            if "prompt_embedding_table" in given:
                raise InvalidRequest(
                    "exclude_input_in_output is false; it must be true with prompt_embedding_table, as embeddings have "
                    "no token ids"
                )
            # The prompt is a part of whole outputs then.
            fields["return_prompt"] = "ids"
        if bad_words := _words("bad_words_list", given):
            fields["bad_words_ids"] = bad_words
        if stop_words := _words("stop_words_list", given):
            fields["stop_token_ids"] = [word[0] for word in stop_words if len(word) == 1]
            fields["stop"] = [self._text(word) for word in stop_words if len(word) > 1]
        if "embedding_bias" in given:
            fields["logit_bias"] = _biases(given["embedding_bias"].reshape(-1))
        for field, name in (("top_k", "runtime_top_k"), ("top_p", "runtime_top_p")):
            # As there, 0 counts as not given.
            if name in given and given[name].any():
                fields[field] = given[name].reshape(-1)[0].item()
        return fields

    def _text(self, word: list[int]) -> str:
        """Return the text at which the output stops, in whatever tokens it comes."""
        if not (text := self._text_of(word)):
            raise InvalidRequest(
                f"stop_words_list has the word {word}, which has no text here; it must have one, or be a single token"
            )
        return text


def _truth(name: str, given: dict[str, NDArray[Any]], *, or_else: bool = False) -> bool:
    return bool(given[name].any()) if name in given else or_else


def _unpadded(input_ids: NDArray[Any], lengths: NDArray[Any] | None) -> NDArray[Any]:
    """Return the tokens without those that fill up a row."""
    if lengths is None:
        return input_ids
    length, most = int(lengths.reshape(-1)[0]), input_ids.shape[-1]
    if not 1 <= length <= most:
        raise InvalidRequest(f"input_lengths is {length}; it must be at least 1 and at most {most}, as input_ids has")
    return input_ids[..., :length]


def _biases(bias: NDArray[Any]) -> dict[int, float]:
    """Return the numbers other than 0 by their tokens."""
    tokens = bias.nonzero()[0].tolist()
    if len(tokens) > MAX_BIASES:
        raise InvalidRequest(
            f"embedding_bias has {len(tokens)} numbers other than 0; it must have at most {MAX_BIASES}"
        )
    return {token: bias[token].item() for token in tokens}


def _words(name: str, given: dict[str, NDArray[Any]]) -> list[list[int]]:
    """Return the words in a tensor [2, length]: tokens of all words, and where each word ends; -1 fills the rows up."""
    array = given.get(name)
    if array is None or array.size == 0:
        return []
    if array.shape[-2] != 2 or array.size != 2 * array.shape[-1]:
        raise InvalidRequest(f"{name} has the shape {list(array.shape)}; it must be [1, 2, n]")
    if array.shape[-1] > _MAX_WORD_TOKENS:
        raise InvalidRequest(f"{name} has {array.shape[-1]} tokens; it must have at most {_MAX_WORD_TOKENS}")
    tokens, ends = array.reshape(2, -1).tolist()
    words, begin = [], 0
    for end in ends:
        if end == -1:
            continue
        if not begin < end <= len(tokens):
            raise InvalidRequest(
                f"{name} has a word that ends at {end}; it must be over {begin} and at most {len(tokens)}"
            )
        words.append(tokens[begin:end])
        begin = end
    return words
