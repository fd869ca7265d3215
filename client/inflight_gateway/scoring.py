"""POST /classify, /v1/score and /v1/rerank: the probabilities of classes, or how similar embeddings are."""

import asyncio
import time
import uuid
from collections.abc import Sequence
from operator import mul
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from inflight_client import AnyPrompt, Embedding, Queueing, TextPair, Usage
from inflight_gateway.embeddings import AT_ONCE
from inflight_gateway.errors import ApiError
from inflight_gateway.field_names import naming_fields
from inflight_gateway.json_route import JsonRoute
from inflight_gateway.limits import take_samples
from inflight_gateway.messages import images_of, sent_messages
from inflight_gateway.responses import Classification, PromptCount, Reranking, Scores
from inflight_gateway.sampling import queueing
from inflight_gateway.scoring_requests import (
    AnyRerankRequest,
    ClassifyRequest,
    ClassifyText,
    OfPairs,
    RerankRequest,
    ScoreRequest,
    Scoring,
)
from inflight_gateway.service import Service, TheService
from inflight_gateway.tracing import note_answer, note_request

router = APIRouter(route_class=JsonRoute)

# A field of the server, with the one that it comes from.
_OF_INPUTS, _OF_PAIRS = {"prompt": "input"}, {"prompt": "documents", "query": "documents"}


@router.post("/classify", response_model=None, responses={200: {"model": Classification}})
async def classify(body: ClassifyRequest, service: TheService, request: Request) -> Response:
    """Say how likely each class is for one or several inputs, or for a chat. As in vLLM."""
    prompts: Sequence[AnyPrompt]
    if isinstance(body, ClassifyText):
        prompts = body.inputs
    elif images_of(body.messages):
        raise ApiError(400, "unsupported_field", "messages has an image; only texts are classified", param="messages")
    else:
        prompts = [sent_messages(body.messages)]
    with naming_fields(_OF_INPUTS):
        found = await _classified(prompts, body, service, request)
    labels = (await service.client.describe_model()).labels
    return _answer(
        "classify",
        service.name_of(body.model),
        found,
        data=[
            {
                "index": index,
                "label": labels[each.values.index(max(each.values))],
                "probs": list(each.values),
                "num_classes": len(each.values),
            }
            for index, each in enumerate(found)
        ],
    )


@router.post("/score", include_in_schema=False, response_model=None)
@router.post("/v1/score", response_model=None, responses={200: {"model": Scores}})
async def score(body: ScoreRequest, service: TheService, request: Request) -> Response:
    """Say how well documents answer queries. As in vLLM."""
    scores, found = await _scores(body.pairs, body, service, request)
    data = [{"index": index, "object": "score", "score": each} for index, each in enumerate(scores)]
    return _answer("score", service.name_of(body.model), found, data=data)


@router.post("/v2/rerank", include_in_schema=False, response_model=None)
@router.post("/v1/rerank", response_model=None, responses={200: {"model": Reranking}})
async def rerank(body: RerankRequest, service: TheService, request: Request) -> Response:
    """Order documents by how well they answer a query, the best first. As of Cohere and Jina."""
    texts = body.texts
    scores, found = await _scores([(body.query, text) for text in texts], body, service, request)
    best = _best_first(scores)[: body.top_n]
    results: list[dict[str, Any]] = [{"index": index, "relevance_score": scores[index]} for index in best]
    if body.return_documents is not False:
        for result in results:
            result["document"] = {"text": texts[result["index"]]}
    return _answer("rerank", service.name_of(body.model), found, results=results)


@router.post("/rerank", include_in_schema=False, response_model=None)
async def rerank_or_rank(body: AnyRerankRequest, service: TheService, request: Request) -> Response:
    """As `rerank`, or with `texts` in place of `documents`, as of Text Embeddings Inference."""
    if isinstance(body, RerankRequest):
        return await rerank(body, service, request)
    scores, _ = await _scores([(body.query, text) for text in body.texts], body, service, request)
    ranks: list[dict[str, Any]] = [{"index": index, "score": scores[index]} for index in _best_first(scores)]
    if body.return_text:
        for rank in ranks:
            rank["text"] = body.texts[rank["index"]]
    return JSONResponse(ranks)


def _best_first(scores: Sequence[float]) -> list[int]:
    return sorted(range(len(scores)), key=lambda index: -scores[index])


async def _scores(
    pairs: Sequence[tuple[str, str]], body: OfPairs, service: Service, request: Request
) -> tuple[list[float], list[Embedding]]:
    """Return the score of each query with its document."""
    if not await service.model.classifies():
        with naming_fields(_OF_PAIRS):
            return await _similarities(pairs, body, service, request)
    with naming_fields(_OF_PAIRS):
        found = await _classified([TextPair(*pair, body.template_kwargs) for pair in pairs], body, service, request)
    if (count := len(found[0].values)) != 1:
        name = service.name_of(body.model)
        message = f"model is {name!a}, which has {count} classes; a score needs a model with 1. Use /classify"
        raise ApiError(400, "invalid_value", message, param="model")
    return [each.values[0] for each in found], found


async def _similarities(
    pairs: Sequence[tuple[str, str]], body: OfPairs, service: Service, request: Request
) -> tuple[list[float], list[Embedding]]:
    """Return the cosine of the embeddings of each query and its document, as vLLM does for models without classes."""
    for name in ("chat_template_kwargs", "instruction"):
        if getattr(body, name):
            message = f"{name} is given; it must be absent, as the model has no classes and embeds plain texts"
            raise ApiError(400, "invalid_value", message, param=name)
    texts = list(dict.fromkeys(text for pair in pairs for text in pair))
    concurrency, options = await _begin("embeddings", len(texts), body, service, request)
    found = await service.client.embed_many(texts, concurrency=concurrency, **options)
    _count(found, service)
    vectors = dict(zip(texts, (each.values for each in found), strict=True))

    def cosines() -> list[float]:
        return [sum(map(mul, vectors[query], vectors[document])) for query, document in pairs]

    # In a thread: there can be millions of numbers.
    return await asyncio.to_thread(cosines), found


async def _classified(
    prompts: Sequence[AnyPrompt], body: Scoring, service: Service, request: Request
) -> list[Embedding]:
    concurrency, options = await _begin("classify", len(prompts), body, service, request)
    found = await service.client.classify_many(
        prompts, use_activation=body.is_activated, concurrency=concurrency, **options
    )
    _count(found, service)
    return found


async def _begin(kind: str, count: int, body: Scoring, service: Service, request: Request) -> tuple[int, Queueing]:
    """Return how many of the prompts are on the server at once, and what the server is told of each."""
    name = service.name_of(body.model)
    adapter = await service.adapter(name)
    note_request(kind, name)
    concurrency = min(AT_ONCE, count)
    take_samples(request.scope, concurrency)
    return concurrency, {**queueing(body, request.scope, adapter), **body.truncation}


def _count(found: Sequence[Embedding], service: Service) -> None:
    tokens = _tokens(found)
    service.metrics.count_prompt_tokens(tokens)
    note_answer(Usage(tokens, 0))


def _answer(kind: str, model: str, found: Sequence[Embedding], **content: Any) -> Response:
    usage: PromptCount = {"prompt_tokens": _tokens(found), "total_tokens": _tokens(found)}
    head = {"id": f"{kind}-{uuid.uuid4().hex}", "object": "list", "created": int(time.time()), "model": model}
    return JSONResponse({**head, **content, "usage": usage})


def _tokens(found: Sequence[Embedding]) -> int:
    return sum(each.usage.prompt_tokens for each in found)
