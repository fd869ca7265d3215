"""The model that the gateway serves."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

from fastapi import Depends, Request

from inflight_client import AsyncClient, Usage
from inflight_gateway.errors import ApiError
from inflight_gateway.health_check import HealthCheck
from inflight_gateway.metrics import Metrics
from inflight_gateway.model_metrics import ModelMetrics
from inflight_gateway.responses import Model
from inflight_gateway.served_model import ServedModel
from inflight_gateway.tracing import note_answer
from inflight_gateway.ui.observer import Observer

# A message should fit on a screen.
_MAX_NAMED = 20


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

    def name_of(self, given: str | None) -> str:
        """Return the name of the model that a request is for: the model itself, if the request names none."""
        return self.model_name if given is None else given

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
            "type": "model",
            "display_name": name,
            "created": self.created,
            "created_at": datetime.fromtimestamp(self.created, UTC).isoformat(),
            "lifecycle": "active",
            "owned_by": "inflight",
            "root": self.model_name,
        }
        if await self.adapter(name) is not None:
            model["parent"] = self.model_name
        if (context := self.model.max_model_len) is not None:
            model["max_model_len"] = model["max_input_tokens"] = context
        return model

    def answered(self, usage: Usage, finish_reasons: Sequence[str]) -> None:
        """Count the tokens of a finished answer, in the metrics and in the request's span."""
        self.metrics.count_tokens(usage)
        note_answer(usage, finish_reasons)


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


TheService = Annotated[Service, Depends(_service)]
