"""Loads what makes OpenTelemetry spans where a setting asks for it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inflight.request_spans import RequestSpans


def make_spans(endpoint: str | None) -> "RequestSpans | None":
    """Return what makes spans for a receiver, or None if no `endpoint` is given.

    Raises:
        ValueError: the packages of OpenTelemetry are not installed.
    """
    if endpoint is None:
        return None
    try:  # Only here: most servers have no use for these packages, and need not have them.
        from inflight.request_spans import RequestSpans
    except ImportError as error:
        raise ValueError(
            f"otlp_traces_endpoint is {endpoint!r}, but {error.name} is not installed; it needs the packages "
            "opentelemetry-sdk and opentelemetry-exporter-otlp-proto-http"
        ) from None
    return RequestSpans(endpoint)
