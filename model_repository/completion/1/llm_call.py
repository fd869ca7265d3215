"""What a call of `llm` asks for, and what its errors become."""

import json
from typing import Any

import triton_python_backend_utils as pb_utils

from context_call import kept_parameters

# Parameters with which a client would call another function of `llm`.
_NOT_PASSED_ON = ("cancel", "list_requests", "is_serving", "drain", "describe_model", "tokenize", "detokenize")
# The codes that `llm` puts before its messages, and those of Triton. Triton answers UNAVAILABLE to its own timeouts.
_ERROR_CODES = {
    **{name: name for name in ("INVALID_ARG", "UNAVAILABLE", "CANCELLED", "NOT_FOUND", "UNSUPPORTED", "INTERNAL")},
    "DEADLINE_EXCEEDED": "UNAVAILABLE",
}


def llm_request(model: str, request: Any, row: list[Any], cancel_key: str, outputs: list[str] | None = None) -> Any:
    """Return the call of `model` with the inputs `row` and the parameters of `request`.

    `outputs`: those of a call that computes a prompt; the request says which ones the other call has.
    """
    parameters = json.loads(request.parameters() or "{}")
    if outputs is not None:
        parameters = kept_parameters(parameters)
    for name in _NOT_PASSED_ON:
        parameters.pop(name, None)
    passed_on = {key: _passed_on(value) if isinstance(value, float) else value for key, value in parameters.items()}
    return pb_utils.InferenceRequest(
        model_name=model,
        request_id=request.request_id(),
        inputs=row,
        # The text is in every answer of `llm`. Without it, an answer that has none of the client's outputs would look
        # like the response that only marks the end.
        requested_output_names=outputs or [*{*request.requested_output_names(), "text_output"}],
        parameters={**passed_on, "code_in_error": True, "cancel_key": cancel_key},
        timeout=request.timeout(),
    )


def _passed_on(value: float) -> str:
    """Triton accepts no floating-point numbers as request parameters between models, but texts.

    Over HTTP, whole numbers of 2^63 or more arrive as such numbers, as seeds may be.
    """
    return str(int(value)) if value.is_integer() else repr(value)


def error_of_llm(error: Any, model: str) -> Any:
    """Return the error of a request whose call of `model` ended with `error`.

    Between models Triton 24.10 replaces every error code with INTERNAL. So `llm` puts the code before the message. If
    it is not loaded, the message is Triton's.
    """
    name, _, message = error.message().partition(": ")
    if name in _ERROR_CODES:
        return pb_utils.TritonError(message, getattr(pb_utils.TritonError, _ERROR_CODES[name]))
    if not pb_utils.is_model_ready(model_name=model):
        return pb_utils.TritonError(f"the model {model} is not ready", pb_utils.TritonError.UNAVAILABLE)
    return pb_utils.TritonError(error.message(), error.code())
