"""The model that the gateway serves, and how requests are put to it."""

from dataclasses import dataclass
from typing import Annotated, Any, cast

from fastapi import Depends, Request
from starlette.types import Scope

from inflight_client import AsyncClient, Sampling, Usage
from inflight_gateway.errors import ApiError
from inflight_gateway.keys import KEY, ApiKey
from inflight_gateway.metrics import Metrics
from inflight_gateway.responses import Model, UsageCount
from inflight_gateway.schemas import Generation

# Fields that have the same name and meaning for the server.
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
)
_DEFAULT_TEMPERATURE = 1.0


@dataclass(frozen=True, kw_only=True)
class Service:
    """One model behind one client."""

    client: AsyncClient
    model_name: str
    """For clients of the gateway."""
    created: int
    """When the gateway started, in seconds since 1970: the server does not say when the model was made."""
    metrics: Metrics

    def describe(self, name: str) -> Model:
        """The model of that name. Raises ApiError, 404, for any but the one that is served."""
        if name != self.model_name:
            message = f"model is {name!a}; it must be {self.model_name}"
            raise ApiError(404, "model_not_found", message, param="model")
        return {"id": name, "object": "model", "created": self.created, "owned_by": "inflight"}


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


TheService = Annotated[Service, Depends(_service)]


def sampling(body: Generation, scope: Scope) -> Sampling:
    """What a request asks of the server, but for the fields that its endpoint alone has."""
    fields: dict[str, Any] = {name: value for name in _SAME if (value := getattr(body, name)) is not None}
    fields["temperature"] = _DEFAULT_TEMPERATURE if body.temperature is None else body.temperature
    if body.stop is not None:
        fields["stop"] = [body.stop] if isinstance(body.stop, str) else body.stop
    if body.seed is not None:
        fields["seed"] = body.seed % 2**64
    if body.logit_bias is not None:
        fields["logit_bias"] = {int(token): bias for token, bias in body.logit_bias.items()}
    return cast(Sampling, fields | _place(body, scope.get(KEY)))


def _place(body: Generation, key: ApiKey | None) -> dict[str, Any]:
    """Priority and tenant: the key's where there is one, and less urgent where the request says so."""
    tenant = body.user if key is None else key.tenant or key.name
    highest = None if key is None else key.priority
    # 1 is the highest, so the larger number is the lower priority.
    priority = max((level for level in (highest, body.priority) if level is not None), default=None)
    place = {"tenant": tenant, "priority": priority}
    return {name: value for name, value in place.items() if value is not None}


def usage_count(usage: Usage) -> UsageCount:
    """Tokens in OpenAI's form."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
    }


def total(usages: list[Usage]) -> Usage:
    """The tokens of several prompts together."""
    return Usage(sum(usage.prompt_tokens for usage in usages), sum(usage.completion_tokens for usage in usages))
