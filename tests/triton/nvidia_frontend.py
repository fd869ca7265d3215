"""Requests as Triton's OpenAI frontend makes them, in both of its forms, and what its users then see.

The names, types and shapes are those of releases 25.05 to 26.07 (python/openai/openai_frontend/engine/utils/triton.py).
`backend: python` gets TensorRT-LLM's form by default; with `--backend vllm` it gets vllm_backend's.
"""

import json
from collections.abc import Callable
from typing import Any

import jsonschema
import numpy as np

from tests.triton.wire import Answer, Fields, ask, together

PROMPT = "<|im_start|>user\nWhat is the weather in Ulm?<|im_end|>\n<|im_start|>assistant\n"
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
"""Of the tool that `tool_choice` names; None for a chat without tools."""
MAX_TOKENS = 24
# All attributes of vLLM's classes, as `dataclasses.asdict` gives them.
_UNSET = dict.fromkeys(("regex", "choice", "grammar", "json_object", "whitespace_pattern", "structural_tag"))
_OPTIONS = dict.fromkeys(("disable_any_whitespace", "disable_additional_properties"), False)
_NEW = {**_UNSET, **_OPTIONS, "_backend": None, "_backend_was_auto": False}
_OLD = {**_UNSET, **_OPTIONS, "backend": None, "backend_was_auto": False, "disable_fallback": False}


def vllm_form(seed: int, *, stream: bool, tool: dict[str, Any] | None) -> Fields:
    """Tensors of one dimension, and JSON within JSON. Some requests have the names of older releases."""
    sampling: dict[str, Any] = {"frequency_penalty": 0.0, "presence_penalty": 0.0, "n": 1, "top_p": 1.0}
    sampling |= {"seed": seed, "temperature": 1.5, "stop": ["<|im_end|>"], "max_tokens": MAX_TOKENS}
    is_old = seed % 8 < 4
    if is_old:
        sampling |= {"logprobs": False, "ignore_eos": False}
    if tool is not None:
        name, attributes = ("guided_decoding", _OLD) if is_old else ("structured_outputs", _NEW)
        sampling[name] = json.dumps({"json": json.dumps(tool), **attributes})
    flags = {"stream": stream, "exclude_input_in_output": True, "return_logprobs": False}
    counts = {"return_num_input_tokens": True, "return_num_output_tokens": True}
    return {"text_input": PROMPT, "sampling_parameters": json.dumps(sampling), **flags, **counts}


def tensorrt_llm_form(seed: int, *, stream: bool, tool: dict[str, Any] | None) -> Fields:
    """Tensors with a batch dimension in front. A chat does not say whether to leave out the prompt."""
    fields: Fields = {
        "text_input": np.array([[PROMPT.encode()]], dtype=np.object_),
        "stream": np.array([[stream]]),
        "max_tokens": np.array([[MAX_TOKENS]], dtype=np.int32),
        "stop_words": np.array([[b"<|im_end|>", b"\n\n\n"]], dtype=np.object_),
        "top_p": np.array([[1.0]], dtype=np.float32),
        "frequency_penalty": np.array([[0.0]], dtype=np.float32),
        "presence_penalty": np.array([[0.0]], dtype=np.float32),
        "seed": np.array([[seed]], dtype=np.uint64),
        "temperature": np.array([[1.5]], dtype=np.float32),
        "return_num_input_tokens": np.array([[True]]),
        "return_num_output_tokens": np.array([[True]]),
    }
    if tool is not None:
        fields["guided_decoding_guide_type"] = np.array([[b"json_schema"]], dtype=np.object_)
        fields["guided_decoding_guide"] = np.array([[json.dumps(tool).encode()]], dtype=np.object_)
    return fields


def check_32_chats_at_once(url: str, form: Callable[..., Fields]) -> None:
    """Half of them stream, and half of them must call a tool. Its arguments match its parameters."""
    asked = [{"stream": seed % 2 == 1, "tool": PARAMETERS if seed % 4 < 2 else None} for seed in range(32)]
    requests = [form(seed, **fields) for seed, fields in enumerate(asked)]
    batched = form is tensorrt_llm_form
    answers: list[Answer] = together(
        url, lambda client: [ask(client, fields, batched=batched) for fields in requests], timeout=240
    )
    assert {answer.error for answer in answers} == {None}
    for fields, answer in zip(asked, answers, strict=True):
        assert 1 <= answer.num_output_tokens <= MAX_TOKENS
        assert not answer.text.startswith(PROMPT)
        assert len(answer.pieces) == 1 or fields["stream"]
        if fields["tool"] is not None and answer.finish_reason == "stop":
            jsonschema.validate(json.loads(answer.text), PARAMETERS)
    assert sum(answer.finish_reason == "stop" for answer in answers) >= 16
