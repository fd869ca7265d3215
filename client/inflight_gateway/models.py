"""GET /v1/models."""

from fastapi import APIRouter

from inflight_gateway.responses import Model, ModelList
from inflight_gateway.service import TheService

router = APIRouter()


@router.get("/v1/models")
async def list_models(service: TheService) -> ModelList:
    """List the model that the gateway serves, and its LoRA adapters as far as the server has told them."""
    names = [service.model_name, *(name for name in service.model.known_adapters if name != service.model_name)]
    models = [await service.describe(name) for name in names]
    return {"object": "list", "data": models, "has_more": False, "first_id": names[0], "last_id": names[-1]}


# A path, because model names can contain slashes.
@router.get("/v1/models/{model:path}")
async def retrieve_model(model: str, service: TheService) -> Model:
    """Describe a model by its name."""
    return await service.describe(model)
