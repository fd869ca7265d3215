"""The model that the gateway serves, and the parameters of requests to it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, cast

from fastapi import Depends, Request
from starlette.datastructures import Headers
from starlette.types import Scope

from inflight_client import AsyncClient, PerfMetrics, Queueing, Sampling, Usage
from inflight_gateway.errors import ApiError
from inflight_gateway.health_check import HealthCheck
from inflight_gateway.keys import KEY, ApiKey
from inflight_gateway.metrics import Metrics
from inflight_gateway.model_metrics import ModelMetrics
from inflight_gateway.request_ids import REQUEST_ID
from inflight_gateway.responses import Model, UsageCount
from inflight_gateway.schemas import Authored, Generation
from inflight_gateway.served_model import ServedModel
from inflight_gateway.tracing import context_for_model, note_answer
from inflight_gateway.ui.observer import Observer

# Fields with the same name and meaning in the gateway and in the server.
_SAME = (
    "n",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "top_k",
    "min_p",
    "repetition_penalty",
    "min_tokens",
    "ignore_eos",
    "stop_token_ids",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "bad_words",
    "allowed_token_ids",
    "logprob_token_ids",
    "length_penalty",
    "early_stopping",
    "num_speculative_tokens",
)
# A message should fit on a screen.
_MAX_NAMED = 20
_DEFAULT_TEMPERATURE = 1.0


@dataclass(frozen=True, kw_only=True)
class Service:
    """The served model, and the client that reaches it."""

    client: AsyncClient
    model_name: str
    """The model's name for clients of the gateway."""
    triton_model_name: str
    created: int
    """Start time of the gateway as Unix time. The server does not know when the model was created."""
    metrics: Metrics
    model_metrics: ModelMetrics
    health: HealthCheck
    model: ServedModel
    observer: Observer

    async def adapter(self, name: str) -> str | None:
        """Return the name of a LoRA adapter, and None for that of the model itself.

        Raises:
            ApiError: 404 if the gateway serves no such model.
            InflightError: the server must be asked, and does not answer.
        """
        if name == self.model_name:
            return None
        if await self.model.has_adapter(name):
            return name
        adapters = self.model.known_adapters
        more = f" and {len(adapters) - _MAX_NAMED} more" if len(adapters) > _MAX_NAMED else ""
        others = f", or one of its adapters {', '.join(adapters[:_MAX_NAMED])}{more}" if adapters else ""
        message = f"model is {name!a}; it must be {self.model_name}{others}"
        raise ApiError(404, "model_not_found", message, param="model")

    async def describe(self, name: str) -> Model:
        """Describe the model or the LoRA adapter with this name. Raises what `adapter` raises."""
        model: Model = {
            "id": name,
            "object": "model",
            "created": self.created,
            "owned_by": "inflight",
            "root": self.model_name,
        }
        if await self.adapter(name) is not None:
            model["parent"] = self.model_name
        if (context := self.model.max_model_len) is not None:
            model["max_model_len"] = context
        return model

    def answered(self, usage: Usage, finish_reasons: Sequence[str]) -> None:
        """Count the tokens of a finished answer, in the metrics and in the request's span."""
        self.metrics.count_tokens(usage)
        note_answer(usage, finish_reasons)


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


TheService = Annotated[Service, Depends(_service)]


def sampling(body: Generation, scope: Scope, adapter: str | None) -> Sampling:
    """Return the sampling parameters for the server, except those from fields of only one endpoint.

    `adapter` is the name of the LoRA adapter that the request asks for, if any.

    Raises:
        ApiError: 400 if two fields do not fit together.
    """
    if body.logprob_token_ids is not None and not body.wants_logprobs:
        message = "logprob_token_ids is given; logprobs must be given, too"
        raise ApiError(400, "invalid_value", message, param="logprob_token_ids")
    fields: dict[str, Any] = {name: value for name in _SAME if (value := getattr(body, name)) is not None}
    fields["temperature"] = _DEFAULT_TEMPERATURE if body.temperature is None else body.temperature
    if body.stop is not None:
        fields["stop"] = [body.stop] if isinstance(body.stop, str) else body.stop
    if body.seed is not None:
        fields["seed"] = body.seed % 2**64
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


def queueing(body: Authored, scope: Scope, adapter: str | None) -> Queueing:
    """Return the priority, tenant and class, those of the API key if there is one, the cache salt, and the adapter.

    A request can lower its priority. Its class is that of the body, or else of the header. Its name and the context of
    its span are among what is returned.
    """
    key: ApiKey | None = scope.get(KEY)
    tenant = body.user if key is None else key.tenant_name
    highest = None if key is None else key.priority
    # 1 is the highest priority, so the larger number is the lower one.
    priority = max((level for level in (highest, body.priority) if level is not None), default=None)
    own_class = body.request_class or Headers(scope=scope).get("x-request-class")
    request_class = own_class if key is None else key.request_class or own_class
    parameters = {"tenant": tenant, "priority": priority, "request_class": request_class}
    parameters |= {"cache_salt": body.cache_salt, "lora_name": adapter, "client_request_id": scope.get(REQUEST_ID)}
    parameters |= context_for_model(scope)
    return cast(Queueing, {name: value for name, value in parameters.items() if value is not None})


def usage_count(usage: Usage, perf: Sequence[PerfMetrics] | None = None) -> UsageCount:
    """Return the usage in OpenAI's format. `perf`: what the server did for the answers, if they were predicted."""
    count: UsageCount = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
    if perf is not None:
        drafted = sum(answer.total_draft_tokens for answer in perf)
        accepted = sum(answer.total_accepted_draft_tokens for answer in perf)
        count["completion_tokens_details"] = {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": drafted - accepted,
        }
    return count


def total(usages: list[Usage]) -> Usage:
    """Return the sum of the usage of several prompts."""
    return Usage(
        sum(usage.prompt_tokens for usage in usages),
        sum(usage.completion_tokens for usage in usages),
        sum(usage.cached_tokens for usage in usages),
    )
