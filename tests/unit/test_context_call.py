"""Which prompts another model computes before `llm` continues them."""

import json
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest


class Tensor(NamedTuple):
    """Stands for Triton's."""

    label: str
    array: Any

    def name(self) -> str:
        return self.label

    def as_numpy(self) -> Any:
        return self.array


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str] | None]:
    """Returns the names of the inputs of the other call, for inputs of a request and fields in its parameters."""
    module = ModuleType("triton_python_backend_utils")
    module.Tensor = Tensor  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", module)
    from context_call import context_inputs

    def names(*inputs: str, **parameters: Any) -> list[str] | None:
        row = [Tensor(name, np.array([b"1"], dtype=np.object_)) for name in inputs]
        found = context_inputs(row, parameters, batched=False)
        return None if found is None else [tensor.name() for tensor in found]

    return names


def test_the_other_call_has_the_prompt(asked: Callable[..., list[str] | None]) -> None:
    assert asked("text_input", "max_tokens") == ["text_input", "sampling_parameters"]


@pytest.mark.parametrize(
    "field", ["prompt_logprobs", "truncate_prompt_tokens", "embedding_request", "image", "prompt_embeds"]
)
def test_what_the_other_call_cannot_do_is_left_to_one(field: str, asked: Callable[..., list[str] | None]) -> None:
    assert asked("text_input", field) is None
    assert asked("text_input", **{field: 1}) is None
    assert asked("text_input", sampling_parameters=json.dumps({field: 1})) is None
