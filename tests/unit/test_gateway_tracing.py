"""The OpenTelemetry context that the gateway passes on to the model."""

import pytest

from inflight_gateway.tracing import context_for_model

PARENT = f"00-{'a' * 32}-{'b' * 16}-01"


@pytest.mark.parametrize(
    ("state", "passed_on"),
    [
        ("vendor=1", {"tracestate": "vendor=1"}),
        ("Vendor=1", {}),
        ("=", {}),
        (",".join(f"k{i}=1" for i in range(40)), {}),
    ],
)
def test_an_invalid_tracestate_is_dropped_without_a_line_in_the_log(
    state: str, passed_on: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    headers = [(b"traceparent", PARENT.encode()), (b"tracestate", state.encode())]
    assert context_for_model({"type": "http", "headers": headers}) == {"traceparent": PARENT, **passed_on}
    assert caplog.messages == []
