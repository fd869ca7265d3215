"""GET /v1/loads for several servers, of which some do not answer or load their model."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from inflight_gateway.errors import ApiError
from inflight_gateway.model_metrics import ModelMetrics
from inflight_gateway.router_info import read_loads

LABELS = 'model="llm",version="1",instance="llm_0_0"'
NO_MODEL = "nv_gpu_utilization 0.5\n"


def page(running: int) -> str:
    blocks = {"max": 100, "used": 40, "tokens_per": 16}
    lines = [
        f"inflight:num_requests_running{{{LABELS}}} {running}",
        f"inflight:num_requests_waiting{{{LABELS}}} 2",
        f"inflight:kv_cache_usage_perc{{{LABELS}}} 0.4",
        *(
            f'nv_trt_llm_kv_cache_block_metrics{{{LABELS},kv_cache_block_type="{kind}"}} {count}'
            for kind, count in blocks.items()
        ),
    ]
    return "\n".join([*lines, ""])


@contextmanager
def serving(text: str) -> Iterator[str]:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/metrics"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def loads_of(*urls: str) -> dict[str, Any]:
    async def read() -> dict[str, Any]:
        async with ModelMetrics(urls) as metrics:
            service: Any = SimpleNamespace(model_metrics=metrics, triton_model_name="llm")
            return dict(await read_loads(service))

    return asyncio.run(read())


def test_a_server_keeps_its_rank_while_others_are_away() -> None:
    gone = "http://127.0.0.1:1/metrics"
    with serving(page(3)) as one, serving(NO_MODEL) as loading, serving(page(50)) as four:
        loads = loads_of(one, gone, loading, four)
        assert [(load["dp_rank"], load["num_running_reqs"]) for load in loads["loads"]] == [(0, 3), (3, 50)]
        assert loads["dp_rank_count"] == 4
        assert loads["aggregate"]["num_running_reqs"] == 53
        assert loads["aggregate"]["num_used_tokens"] == 2 * 16 * 40
        with pytest.raises(ApiError, match="the model has no such metrics: the server has no metric"):
            loads_of(loading, gone)
