"""Answers what a request can ask besides text: what the model is, the tokens of a prompt, and the text of tokens."""

import json
from collections.abc import Mapping
from typing import Any

from inflight import InvalidRequest
from inflight.engine import Engine
from inflight.request_options import MAX_GIVEN_DRAFT
from inflight.text.template_variables import template_variables
from serving import values
from serving.prompt_fields import read_prompt
from serving.read_request import read_request

# Long enough for the end of any generation prompt.
_END_TOKENS = 16


class Questions:
    """Answers the questions of clients, each asked by a request parameter that is true, with JSON."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._answers = {"describe_model": self._describe, "tokenize": self._tokenize, "detokenize": self._detokenize}

    def asked(self, parameters: Mapping[str, Any]) -> str | None:
        """Return which question a request asks, if it asks one.

        Raises:
            InvalidRequest: the message names the field and what it must be.
        """
        return next((name for name in self._answers if values.truth(name, parameters.get(name, False))), None)

    def answer(self, request: Any, question: str) -> str:
        """Answer a question as JSON. Raises what `asked` raises."""
        return json.dumps(self._answers[question](request))

    def _describe(self, _: Any) -> dict[str, Any]:
        engine, tokenizer = self._engine, self._engine.model.tokenizer
        template = _chat_template(tokenizer)
        added = {} if tokenizer is None else tokenizer.added_tokens_decoder
        return {
            "model": engine.config.model,
            "vocab_size": engine.model.vocab_size,
            "max_model_len": engine.max_model_len,
            "chat_template": template,
            "template_variables": [] if template is None else template_variables(template),
            "special_tokens": {token_id: token.content for token_id, token in added.items() if token.special},
            "labels": [] if engine.model.classifier is None else list(engine.model.classifier.labels),
            "eos_token_ids": sorted(engine.model.eos_token_ids),
            "lora_modules": [] if engine.model.adapters is None else engine.model.adapters.names(),
            "image_placeholder": None if engine.model.images is None else engine.model.images.placeholder,
            "max_draft_input_ids": MAX_GIVEN_DRAFT if engine.maker.takes_drafts else 0,
        }

    def _tokenize(self, request: Any) -> dict[str, Any]:
        fields, parameters = read_request(request, self._engine.max_model_len)
        prompt, chat, pooling = read_prompt(fields)
        if chat is not None:
            token_ids = self._engine.encoder.encode_chat(chat)
        elif isinstance(prompt, str) and pooling is None:
            add = values.truth("add_special_tokens", parameters.get("add_special_tokens", True))
            token_ids = self._engine.encoder.encode(prompt, add_special_tokens=add)
        else:
            raise InvalidRequest("a request with tokenize must have text_input or messages, and no other prompt")
        answer: dict[str, Any] = {
            "token_ids": token_ids,
            "max_model_len": self._engine.max_model_len,
            "end": self._engine.model.text_of(token_ids[-_END_TOKENS:]),
        }
        if values.truth("return_token_strs", parameters.get("return_token_strs", False)):
            backend = self._engine.model.backend_tokenizer
            answer["token_strs"] = [backend.id_to_token(token) for token in token_ids] if backend else []
        return answer

    def _detokenize(self, request: Any) -> dict[str, Any]:
        fields, _ = read_request(request, self._engine.max_model_len)
        if "input_ids" not in fields:
            raise InvalidRequest("input_ids is missing; a request with detokenize must have it")
        return {"text": self._engine.maker.prompts.decode(fields["input_ids"])}


def _chat_template(tokenizer: Any | None) -> str | None:
    """The template that chats with tools get, where a tokenizer has several."""
    if tokenizer is None or tokenizer.chat_template is None:
        return None
    try:
        return str(tokenizer.get_chat_template(tools=[{}]))
    except ValueError:  # Several templates, and none of them is the default.
        return None
