"""POST /tokenize and POST /detokenize."""

from fastapi import APIRouter, Request

from inflight_gateway.field_names import naming_fields
from inflight_gateway.json_route import JsonRoute
from inflight_gateway.messages import sent_messages
from inflight_gateway.responses import Detokenization, Tokenization
from inflight_gateway.sampling import tenant_of
from inflight_gateway.service import TheService
from inflight_gateway.shown_chat import shown_chat
from inflight_gateway.tokenize_request import DetokenizeRequest, TokenizeRequest, TokenizeText
from inflight_gateway.tool_use import tools_by_name

router = APIRouter(route_class=JsonRoute)


@router.post("/tokenize")
async def tokenize(body: TokenizeRequest, service: TheService, request: Request) -> Tokenization:
    """Return the tokens of a prompt, or of a chat as the model would get them."""
    await service.adapter(service.name_of(body.model))
    wants_strs, tenant = bool(body.return_token_strs), tenant_of(request.scope)
    if isinstance(body, TokenizeText):
        found = await service.client.tokenize(
            body.prompt,
            add_special_tokens=body.add_special_tokens,
            return_token_strs=wants_strs,
            tenant=tenant,
        )
    else:
        tools = list(tools_by_name(body.tools or ()).values())
        kwargs = body.chat_template_kwargs or {}
        chat = shown_chat(sent_messages(body.messages), tools, kwargs, await service.model.formats())
        found = await service.client.tokenize(
            **chat.arguments(), **body.chat_end, return_token_strs=wants_strs, tenant=tenant
        )
    return {
        "count": len(found.token_ids),
        "max_model_len": found.max_model_len,
        "tokens": list(found.token_ids),
        "token_strs": None if found.token_strs is None else list(found.token_strs),
    }


@router.post("/detokenize")
async def detokenize(body: DetokenizeRequest, service: TheService, request: Request) -> Detokenization:
    """Return the text of tokens."""
    await service.adapter(service.name_of(body.model))
    with naming_fields({"input_ids": "tokens"}):
        return {"prompt": await service.client.detokenize(body.tokens, tenant=tenant_of(request.scope))}
