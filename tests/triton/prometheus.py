"""Reads Triton's /metrics."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import httpx

from inflight_client.metrics import parse_metrics
from scripts.launch.triton_server import TritonServer


@dataclass(frozen=True)
class Scrape:
    """All metrics at one time, by name and labels."""

    values: dict[tuple[str, frozenset[tuple[str, str]]], float]

    def get(self, name: str, **labels: str) -> float:
        """Return the value of the only series with these labels. `name` is a full name, or lacks `inflight:`."""
        full = name if ":" in name or name.startswith("nv_") else f"inflight:{name}"
        found = [v for (n, have), v in self.values.items() if n == full and labels.items() <= set(have)]
        assert len(found) == 1, f"{len(found)} series of {full} with {labels}"
        return found[0]

    def by(self, name: str, label: str) -> dict[str, float]:
        """Return the values of a family, by the value of one of its labels."""
        return {dict(have)[label]: v for (n, have), v in self.values.items() if n == f"inflight:{name}"}


def scrape(server: TritonServer) -> Scrape:
    """Read Inflight's metrics from /metrics now."""
    samples = parse_metrics(httpx.get(server.metrics_url).text).samples
    ours = (sample for sample in samples if sample.name.startswith(("inflight:", "nv_trt_llm_")))
    return Scrape({(sample.name, frozenset(sample.labels.items())): sample.value for sample in ours})


def scrape_when(server: TritonServer, reached: Callable[[Scrape], bool], seconds: float = 20) -> Scrape:
    """Scrape until `reached` holds, and the metrics of all models have been updated since then and since this call.

    Those that routers read are updated before the others, so the first time they may not agree yet.
    """
    began, end = time.time(), time.monotonic() + seconds
    seen = False
    while time.monotonic() < end:
        found = scrape(server)
        updates = [value for (name, _), value in found.values.items() if name == "inflight:last_update_time_seconds"]
        if updates and min(updates) > began and reached(found):
            if seen:
                return found
            began, seen = time.time(), True
        time.sleep(0.05)
    raise AssertionError(f"not reached after {seconds} s: {found}")


def at_rest(found: Scrape) -> bool:
    """Whether no request is waiting or running."""
    return found.get("num_requests_running") == found.get("num_requests_waiting") == 0
