"""Locust users that stream over HTTP, as curl does."""

import json
from collections.abc import Iterator
from typing import Any

from load_tests.endpoints import sampling_of
from load_tests.failures import RequestFailed
from load_tests.locust.http_stream_user import HttpStreamUser
from load_tests.prompts import PlannedRequest


class HttpUser(HttpStreamUser):
    """Streams over Triton's `generate_stream`."""

    kind = "http"
    host = "http://127.0.0.1:8000"

    def answer(self, request: PlannedRequest, prompt: list[int]) -> Iterator[int]:
        """See `LoadUser`."""
        sampling = sampling_of(request)
        written = json.dumps(sampling)
        body: dict[str, object] = {"input_ids": prompt, "sampling_parameters": written, "stream": True}
        for line in self.lines("/v2/models/llm/generate_stream", body):
            if line.startswith("data:") and (new := _new_tokens(json.loads(line.removeprefix("data:")))):
                yield new


def _new_tokens(event: dict[str, Any]) -> int:
    """Number of new tokens in an event. Raises RequestFailed if the event is an error."""
    if "error" in event:
        raise RequestFailed("ErrorEvent", str(event["error"]))
    # Triton writes a list of one element as that element. -1 stands for an empty list.
    ids = event["token_ids"]
    return sum(token >= 0 for token in (ids if isinstance(ids, list) else [ids]))
