"""Answers the lines of a batch."""

from dataclasses import dataclass
from typing import Any

from inflight_cli.batch_gateway import Gateway, is_for_gateway
from inflight_cli.batch_input import InputLine, parse_object, parse_request, take_id
from inflight_cli.generate import usage_json
from inflight_client import AsyncClient, DeadlineExceeded, InflightError, InvalidRequest, Sampling, ServerFault

# Errors that concern one request only. Any other error would also fail the next request, so it ends the batch.
_OF_ONE_LINE = (InvalidRequest, DeadlineExceeded, ServerFault)


@dataclass(frozen=True)
class Answerer:
    """Answers lines of both forms. `defaults` are the sampling parameters of lines of our own form."""

    client: AsyncClient
    gateway: Gateway
    defaults: Sampling

    async def answer(self, line: InputLine) -> dict[str, object]:
        """Return the fields of the output line. Raises an `InflightError` only if it concerns other requests too."""
        try:
            document = parse_object(line.text)
        except InvalidRequest as error:
            return {"id": None, "error": _told(error)}
        return await (self._passed_on(line, document) if is_for_gateway(document) else self._generated(document))

    async def _generated(self, document: dict[str, Any]) -> dict[str, object]:
        identifier = None
        try:
            identifier = take_id(document)
            prompt, messages, sampling = parse_request(document, self.defaults)
            completion = await self.client.generate(prompt, messages=messages, **sampling)
        except _OF_ONE_LINE as error:
            return {"id": identifier, "error": _told(error)}
        usage = usage_json(completion.usage)
        return {"id": identifier, "text": completion.text, "finish_reason": completion.finish_reason, "usage": usage}

    async def _passed_on(self, line: InputLine, document: dict[str, Any]) -> dict[str, object]:
        named = {"id": f"batch_req_{line.index}", "custom_id": document.get("custom_id")}
        try:
            if self.defaults:
                names = ", ".join(self.defaults)
                raise InvalidRequest(f"a line of OpenAI's Batch API takes {names} from its body; leave the options out")
            return {**named, **await self.gateway.answer(document)}
        except _OF_ONE_LINE as error:
            return {**named, "response": None, "error": _told(error)}


def _told(error: InflightError) -> dict[str, str]:
    return {"type": type(error).__name__, "message": str(error)}
