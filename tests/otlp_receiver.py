"""A receiver of OTLP over HTTP: it decodes spans with the protocol's own classes, and keeps them."""

import base64
import gzip
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Message
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from tests.eventually import eventually


@dataclass(frozen=True)
class Span:
    """A span as it was received. Times are nanoseconds since 1970."""

    service: str
    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    start: int
    end: int
    attributes: dict[str, Any]
    events: dict[str, int]
    failed: bool

    @property
    def traceparent(self) -> str:
        """The header that makes a span a child of this one."""
        return f"00-{self.trace_id}-{self.span_id}-01"


@dataclass
class Receiver:
    """What has been received."""

    url: str
    spans: list[Span] = field(default_factory=list)

    def trace(self, trace_id: str, complete: Callable[[list[Span]], bool]) -> list[Span]:
        """Wait until the spans of a trace are complete, and return them in the order of their starts."""
        assert eventually(lambda: complete(self._of(trace_id)), 30), f"only {self._of(trace_id)}"
        return self._of(trace_id)

    def _of(self, trace_id: str) -> list[Span]:
        return sorted((span for span in list(self.spans) if span.trace_id == trace_id), key=lambda span: span.start)


@contextmanager
def otlp_receiver() -> Iterator[Receiver]:
    """A receiver on a free port of loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            kind = self.headers["content-type"]
            if self.path != "/v1/traces" or kind not in _READERS:
                self.send_error(404)
                return
            receiver.spans += _spans(_READERS[kind](body))
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", "0")  # An empty message says that all went well.
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver = Receiver(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()


def _from_json(body: bytes) -> ExportTraceServiceRequest:
    """Triton sends JSON. Unlike in protobuf's own JSON, ids are hexadecimal there."""
    document = json.loads(body)
    for of_resource in document["resourceSpans"]:
        for of_scope in of_resource["scopeSpans"]:
            for span in of_scope["spans"]:
                for name in ("traceId", "spanId", "parentSpanId"):
                    span[name] = base64.b64encode(bytes.fromhex(span.get(name, ""))).decode()
    return json_format.ParseDict(document, ExportTraceServiceRequest(), ignore_unknown_fields=True)


_READERS: dict[str, Callable[[bytes], ExportTraceServiceRequest]] = {
    "application/x-protobuf": ExportTraceServiceRequest.FromString,
    "application/json": _from_json,
}


def _spans(request: ExportTraceServiceRequest) -> Iterator[Span]:
    for of_resource in request.resource_spans:
        resource = {each.key: _value(each.value) for each in of_resource.resource.attributes}
        for of_scope in of_resource.scope_spans:
            for span in of_scope.spans:
                yield Span(
                    service=str(resource["service.name"]),
                    name=span.name,
                    kind=Message.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
                    trace_id=span.trace_id.hex(),
                    span_id=span.span_id.hex(),
                    parent_id=span.parent_span_id.hex(),
                    start=span.start_time_unix_nano,
                    end=span.end_time_unix_nano,
                    attributes={each.key: _value(each.value) for each in span.attributes},
                    events={each.name: each.time_unix_nano for each in span.events},
                    failed=span.status.code == Status.STATUS_CODE_ERROR,
                )


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    return [_value(each) for each in value.array_value.values] if kind == "array_value" else getattr(value, kind or "")
