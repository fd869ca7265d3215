"""Lets another model compute a prompt before `llm` continues it, as TensorRT-LLM's `disaggregated_serving_bls` does."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

KV_TRANSFER = "kv_transfer_params"
_ASKED = {"do_remote_decode": True, "do_remote_prefill": False}
# What decides about the prompt and its place in the queue, by all names. All else concerns the answer.
_KEPT = frozenset(
    (
        *("text_input", "messages", "input_ids", "tools", "chat_template_kwargs", "priority", "tenant", "cache_salt"),
        *("request_class", "x-request-class", "client_request_id", "x-request-id", "timeout", "deadline_ms"),
        *("target_ttft_ms", "traceparent", "tracestate", "add_generation_prompt", "continue_final_message"),
    )
)
_JSON = "sampling_parameters"
_PROMPTS = frozenset(("text_input", "messages", "input_ids"))
# With these, `llm` cannot use what another model has computed: the prompt is another one there, or `llm` must read it.
_NOT_ELSEWHERE = frozenset(
    (
        *(KV_TRANSFER, "image", "prompt_embeds", "prompt_embedding_table", "truncate_prompt_tokens"),
        *("prompt_logprobs", "embedding_request"),
    )
)


def context_inputs(row: Iterable[Any], parameters: Mapping[str, Any], *, batched: bool) -> list[Any] | None:
    """Return the inputs of the call that computes the prompt of `row`. None: it is left to `llm`.

    `parameters`: those of the request. They are passed on by themselves.

    Raises:
        ValueError: the JSON of a field is none; `llm` will say so.
    """
    inputs = {tensor.name(): tensor for tensor in row}
    inline = _decoded(inputs[_JSON].as_numpy().reshape(-1)[0] if _JSON in inputs else parameters.get(_JSON, "{}"))
    given = inputs.keys() | inline.keys() | parameters.keys()
    if not _PROMPTS & given or _NOT_ELSEWHERE & given:
        return None
    kept = [tensor for name, tensor in inputs.items() if name in _KEPT]
    asked = {**kept_parameters(inline), "max_tokens": 1, "temperature": 0, KV_TRANSFER: _ASKED}
    return [*kept, _text(_JSON, json.dumps(asked), batched=batched)]


def kept_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request parameters, or fields in JSON, that the call that computes the prompt has too."""
    return {name: value for name, value in parameters.items() if name in _KEPT}


def with_offer(row: list[Any], offer: str, *, batched: bool) -> list[Any]:
    """Return the inputs of the call that continues the prompt. `offer` is the output of the other call, in JSON."""
    return row if offer == "null" else [*row, _text(KV_TRANSFER, offer, batched=batched)]


def offer_in(response: Any) -> str | None:
    """Return what a response offers; None if it says nothing of it."""
    for tensor in response.output_tensors():
        if tensor.name() == KV_TRANSFER:
            return str(tensor.as_numpy().reshape(-1)[0].decode())
    return None


def _decoded(text: Any) -> dict[str, Any]:
    try:
        decoded = json.loads(text)
    except (TypeError, RecursionError) as error:  # It is no text, or nested too deeply.
        raise ValueError(f"{_JSON} is no JSON") from error
    if not isinstance(decoded, dict):
        raise ValueError(f"{_JSON} is no object")
    return decoded


def _text(name: str, text: str, *, batched: bool) -> Any:
    array = np.array([text.encode()], dtype=np.object_)
    return pb_utils.Tensor(name, array[np.newaxis] if batched else array)
