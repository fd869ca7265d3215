"""GET /v1/models."""

from fastapi import APIRouter

from inflight_gateway.responses import Model, ModelList
from inflight_gateway.service import TheService

router = APIRouter()


@router.get("/v1/models")
async def list_models(service: TheService) -> ModelList:
    """The one model that is served."""
    return {"object": "list", "data": [service.describe(service.model_name)]}


# A path, as names of models have slashes.
@router.get("/v1/models/{model:path}")
async def retrieve_model(model: str, service: TheService) -> Model:
    """A model by its name."""
    return service.describe(model)
