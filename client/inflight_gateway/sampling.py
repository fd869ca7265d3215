"""The parameters of requests to the server."""

from typing import Any, cast

from starlette.datastructures import Headers
from starlette.types import Scope

from inflight_client import Queueing, Sampling
from inflight_gateway.errors import ApiError
from inflight_gateway.keys import KEY, ApiKey
from inflight_gateway.request_ids import REQUEST_ID
from inflight_gateway.schemas import Authored, Generation, Sampled
from inflight_gateway.tracing import context_for_model

# Fields with the same name and meaning in the gateway and in the server.
_SAME_IN_ALL = (
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "ignore_eos",
)
_SAME = (
    "n",
    "min_tokens",
    "stop_token_ids",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "bad_words",
    "allowed_token_ids",
    "logprob_token_ids",
    "prompt_logprobs",
    "length_penalty",
    "early_stopping",
    "num_speculative_tokens",
)
_DEFAULT_TEMPERATURE = 1.0


def sampling(body: Generation, scope: Scope, adapter: str | None) -> Sampling:
    """Return the sampling parameters for the server, except those from fields of only one endpoint.

    `adapter` is the name of the LoRA adapter that the request asks for, if any.

    Raises:
        ApiError: 400 if two fields do not fit together.
    """
    if body.logprob_token_ids is not None and not body.wants_logprobs:
        message = "logprob_token_ids is given; logprobs must be given, too"
        raise ApiError(400, "invalid_value", message, param="logprob_token_ids")
    fields = sampled(body)
    fields |= {name: value for name in _SAME if (value := getattr(body, name)) is not None}
    if body.logit_bias is not None:
        fields["logit_bias"] = {int(token): bias for token, bias in body.logit_bias.items()}
    if body.return_token_ids:
        fields["return_prompt"] = "ids"
    if body.return_token_ids or body.wants_running_usage:
        fields["return_token_ids"] = True
    if body.use_beam_search:
        if body.num_sequences == 1:
            message = "use_beam_search is true; n must be at least 2, or best_of in a completion"
            raise ApiError(400, "invalid_value", message, param="use_beam_search")
        fields |= {"beam_width": body.num_sequences, "n": body.n or 1}
    return cast(Sampling, fields | queueing(body, scope, adapter))


def sampled(body: Sampled) -> dict[str, Any]:
    """Return the sampling parameters for the server that completions, chats and responses have in common."""
    fields: dict[str, Any] = {name: value for name in _SAME_IN_ALL if (value := getattr(body, name)) is not None}
    fields["temperature"] = temperature(body.temperature)
    if body.stop is not None:
        fields["stop"] = [body.stop] if isinstance(body.stop, str) else body.stop
    if body.seed is not None:
        fields["seed"] = body.seed % 2**64
    return fields


def temperature(given: float | None) -> float:
    """Return the temperature to ask the server for. All APIs have the same default, unlike the server."""
    return _DEFAULT_TEMPERATURE if given is None else given


def queueing(body: Authored, scope: Scope, adapter: str | None) -> Queueing:
    """Return the priority, tenant and class, those of the API key if there is one, the cache salt, and the adapter.

    A request can lower its priority. Its class is that of the body, or else of the header. Its name and the context of
    its span are among what is returned.
    """
    key: ApiKey | None = scope.get(KEY)
    highest = None if key is None else key.priority
    # 1 is the highest priority, so the larger number is the lower one.
    priority = max((level for level in (highest, body.priority) if level is not None), default=None)
    own_class = body.request_class or Headers(scope=scope).get("x-request-class")
    request_class = own_class if key is None else key.request_class or own_class
    parameters = {"tenant": tenant_of(scope, body.user), "priority": priority, "request_class": request_class}
    parameters |= {"cache_salt": body.cache_salt, "lora_name": adapter, "client_request_id": scope.get(REQUEST_ID)}
    parameters |= context_for_model(scope)
    return cast(Queueing, {name: value for name, value in parameters.items() if value is not None})


def tenant_of(scope: Scope, user: str | None = None) -> str | None:
    """Return the tenant of a request: that of the API key, or without keys the user that the request names."""
    key: ApiKey | None = scope.get(KEY)
    return (user or None) if key is None else key.tenant_name
