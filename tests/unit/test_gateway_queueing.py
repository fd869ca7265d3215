"""Which tenant, priority and class the gateway gives to a request."""

from typing import Any

import pytest

from inflight_gateway.keys import KEY, ApiKey
from inflight_gateway.sampling import queueing
from inflight_gateway.schemas import Authored

BATCH = ApiKey(name="night", sha256="0" * 64, request_class="batch")
ANY = ApiKey(name="any", sha256="0" * 64)


@pytest.mark.parametrize(
    ("key", "body", "headers", "expected"),
    [
        (None, {}, {}, {}),
        (None, {"user": "ann"}, {}, {"tenant": "ann"}),
        (None, {"user": ""}, {}, {}),
        (None, {"request_class": "chat"}, {}, {"request_class": "chat"}),
        (None, {}, {"x-request-class": "batch"}, {"request_class": "batch"}),
        (None, {"request_class": "chat"}, {"x-request-class": "batch"}, {"request_class": "chat"}),
        (ANY, {"request_class": "chat"}, {}, {"tenant": "any", "request_class": "chat"}),
        (BATCH, {}, {}, {"tenant": "night", "request_class": "batch"}),
        (BATCH, {"request_class": "chat"}, {"x-request-class": "chat"}, {"tenant": "night", "request_class": "batch"}),
    ],
)
def test_the_class_is_that_of_the_key_or_the_body_or_the_header(
    key: ApiKey | None, body: dict[str, Any], headers: dict[str, str], expected: dict[str, str]
) -> None:
    scope = {"type": "http", "headers": [(name.encode(), value.encode()) for name, value in headers.items()], KEY: key}
    assert queueing(Authored(**body), scope, None) == expected
