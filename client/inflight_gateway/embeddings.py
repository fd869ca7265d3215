"""POST /v1/embeddings."""

import array
import base64

from fastapi import APIRouter, Request
from starlette.responses import Response

from inflight_client import Embedding, Queueing, Usage
from inflight_gateway.embedding_request import EmbeddingRequest
from inflight_gateway.field_names import naming_fields
from inflight_gateway.json_pieces import json_response
from inflight_gateway.json_route import JsonRoute
from inflight_gateway.limits import take_samples
from inflight_gateway.responses import EmbeddingItem, EmbeddingList
from inflight_gateway.sampling import queueing
from inflight_gateway.service import TheService
from inflight_gateway.tracing import note_answer, note_request

router = APIRouter(route_class=JsonRoute)

# A field of the server, with the one that it comes from.
_FIELDS = {"prompt": "input"}
AT_ONCE = 32
"""How many inputs of one request are on the server at once. The others wait here, so that they don't fill its queue."""


@router.post(
    "/v1/embeddings",
    response_model=None,
    responses={200: {"model": EmbeddingList, "description": "The embeddings"}},
)
async def create_embeddings(body: EmbeddingRequest, service: TheService, request: Request) -> Response:
    """Embed one or several inputs."""
    name = service.name_of(body.model)
    adapter = await service.adapter(name)
    note_request("embeddings", name)
    concurrency = min(AT_ONCE, len(body.inputs))
    take_samples(request.scope, concurrency)
    options: Queueing = {**queueing(body, request.scope, adapter), **body.truncation}
    with naming_fields(_FIELDS):
        embeddings = await service.client.embed_many(
            body.inputs,
            pooling=body.pooling or "last",
            normalize=body.is_normalized,
            dimensions=body.dimensions,
            concurrency=concurrency,
            **options,
        )
    tokens = sum(embedding.usage.prompt_tokens for embedding in embeddings)
    service.metrics.count_prompt_tokens(tokens)
    note_answer(Usage(tokens, 0))
    document = {
        "object": "list",
        "data": (_item(index, embedding, body) for index, embedding in enumerate(embeddings)),
        "model": name,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
    return json_response(document, in_pieces=len(embeddings) > AT_ONCE)


def _item(index: int, embedding: Embedding, body: EmbeddingRequest) -> EmbeddingItem:
    values: list[float] | str = list(embedding.values)
    if body.encoding_format == "base64":  # The default of the openai package, which decodes it.
        values = base64.b64encode(array.array("f", embedding.values).tobytes()).decode()
    return {"object": "embedding", "index": index, "embedding": values}
