"""GET /v1/models."""

from fastapi import APIRouter

from inflight_gateway.responses import Model, ModelList
from inflight_gateway.service import TheService

router = APIRouter()


@router.get("/v1/models")
async def list_models(service: TheService) -> ModelList:
    """List the model that the gateway serves."""
    return {"object": "list", "data": [service.describe(service.model_name)]}


# A path, because model names can contain slashes.
@router.get("/v1/models/{model:path}")
async def retrieve_model(model: str, service: TheService) -> Model:
    """Describe a model by its name."""
    return service.describe(model)
