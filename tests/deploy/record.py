"""`python -m tests.deploy.record` records the metrics that tests of alerts and the dashboard replay, in 16 minutes.

A real Prometheus scrapes a real gateway. The model behind it gets no load, a light one, more than it can bear, and none
again. Then its process is killed. The result is `recorded.yaml`, in promtool's notation.
"""

import asyncio
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path

import httpx
import openai
import yaml

from scripts.launch.default_model import default_model
from scripts.launch.model_repository import render_repository
from scripts.launch.server_process import ServerProcess, fill_ports
from tests.deploy.conftest import PROMETHEUS, RECORDED, SCRAPE_SECONDS
from tests.gateway.gateway_process import GatewayProcess
from tests.processes import children, is_model
from tests.running_server import running_server

TARGET = "gateway:9000"
# The load of each phase: its name, users, output tokens and seconds. While it is `killed`, there is no model.
PHASES = (
    ("idle", 0, 0, 30),
    ("light", 3, 48, 240),
    ("overload", 64, 256, 450),
    ("after", 0, 0, 30),
    ("killed", 1, 8, 180),
)
# Few blocks and a short queue, so that a small machine can have too many requests.
PARAMETERS = {"kv_cache_tokens": "3072", "max_num_seqs": "32", "max_queue_size": "16"}


class Prometheus(ServerProcess):
    """Prometheus with the configuration of `deploy/`, which scrapes the gateway at `address`."""

    name = "prometheus"

    def __init__(self, folder: Path, address: str) -> None:
        super().__init__(fill_ports(None)[0])
        self._folder = folder
        shutil.copytree(PROMETHEUS, folder, dirs_exist_ok=True)
        config = yaml.safe_load((folder / "prometheus.yml").read_text())
        (job,) = config["scrape_configs"]
        job["static_configs"] = [{"targets": [address], "labels": {"instance": TARGET}}]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))

    def _launch(self) -> tuple[list[str], Mapping[str, str]]:
        command = ["prometheus", f"--config.file={self._folder}/prometheus.yml"]
        command += [f"--storage.tsdb.path={self._folder}/data", f"--web.listen-address={self.http_url}"]
        return command, os.environ

    def query(self, expression: str) -> list[dict[str, object]]:
        reply = httpx.post(f"http://{self.http_url}/api/v1/query", data={"query": expression}, timeout=30)
        reply.raise_for_status()
        result: list[dict[str, object]] = reply.json()["data"]["result"]
        return result


async def load(url: str, users: int, tokens: int, seconds: float) -> None:
    """Let users chat with the gateway, one request after another, for some time."""
    end = time.monotonic() + seconds

    async def chat(user: int) -> None:
        choice = random.Random(user)
        while time.monotonic() < end:
            text = f"User {user} asks: " + "what is a river, and where does it end? " * choice.randint(1, 6)
            try:
                async with asyncio.timeout_at(asyncio.get_running_loop().time() + end - time.monotonic()):
                    stream = await client.chat.completions.create(
                        model="llm", messages=[{"role": "user", "content": text}], max_tokens=tokens, stream=True
                    )
                    async for _ in stream:
                        pass
            except (openai.APIError, TimeoutError):
                pass
            await asyncio.sleep(choice.uniform(0.2, 2))

    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        await asyncio.gather(*(chat(user) for user in range(users)))
    await asyncio.sleep(max(0.0, end - time.monotonic()))


def record(folder: Path) -> dict[str, object]:
    """Run all phases. Returns what `recorded.yaml` holds."""
    repository = render_repository(folder / "models", parameters={"model": str(default_model()), **PARAMETERS})
    with (
        running_server(repository, ["llm"]) as server,
        GatewayProcess(server.grpc_url, f"--metrics-url={server.metrics_url}") as gateway,
        Prometheus(folder / "prometheus", gateway.http_url) as prometheus,
    ):
        gateway.wait_for(["/health"], 30)
        prometheus.wait_for(["/-/ready"], 30)
        begun, ends = time.time(), {}
        for name, users, tokens, seconds in PHASES:
            print(f"{name}: {seconds} s", flush=True)
            if name == "killed":
                (model,) = [child for child in children(server.pid) if is_model(child, "llm")]
                model.send(signal.SIGKILL)
            asyncio.run(load(gateway.url, users, tokens, seconds))
            ends[name] = int((time.time() - begun) // SCRAPE_SECONDS)
        span = f"[{int(time.time() - begun) + SCRAPE_SECONDS}s]"
        for alert in prometheus.query(f'ALERTS{{alertstate="firing"}}{span}'):
            print(alert["metric"], len(alert["values"]), "samples", flush=True)  # type: ignore[arg-type]
        return {"last_samples": ends, "input_series": list(series(prometheus.query(f'{{job="inflight"}}{span}')))}


def series(found: Iterable[Mapping[str, object]]) -> Iterator[dict[str, str]]:
    """Convert what Prometheus has stored of Inflight to promtool's notation, from the first scrape on."""
    by_name = sorted(
        (
            (labels := dict(each["metric"])).pop("__name__"),  # type: ignore[call-overload]
            json.dumps(labels, sort_keys=True),
            {round(float(at) / SCRAPE_SECONDS): float(value) for at, value in each["values"]},  # type: ignore[attr-defined]
        )
        for each in found
    )
    scrapes = next(samples for name, _, samples in by_name if name == "up")
    for name, labels, samples in by_name:
        if not name.startswith(("inflight", "up")) or name.endswith("_created"):
            continue
        if name == "inflight:last_update_time_seconds":
            # promtool's clock begins at 0.
            samples = {at: value - min(scrapes) * SCRAPE_SECONDS for at, value in samples.items()}
        matchers = ",".join(f"{label}={json.dumps(value)}" for label, value in json.loads(labels).items())
        yield {"series": f"{name}{{{matchers}}}", "values": " ".join(notation(samples, sorted(scrapes)))}


def notation(samples: Mapping[int, float], scrapes: Iterable[int]) -> Iterator[str]:
    """Yield the values at the scrapes in promtool's notation. A series that ends becomes stale."""
    values, last = [], "_"
    for at in scrapes:
        value = f"{samples[at]:.9g}" if at in samples else ("stale" if last not in ("_", "stale") else "_")
        values.append(value)
        last = value
    for value, run in groupby(values):
        count = len(list(run))
        if count == 1 or value == "stale":
            yield value
        else:
            yield f"_x{count}" if value == "_" else f"{value}+0x{count - 1}"


def main() -> int:
    """Write the file and return 0."""
    with tempfile.TemporaryDirectory() as folder:
        found = record(Path(folder))
    heading = "# Written by `python -m tests.deploy.record`, by scrapes of a real server.\n"
    RECORDED.write_text(heading + yaml.safe_dump(found, sort_keys=False, width=10**6))
    return 0


if __name__ == "__main__":
    sys.exit(main())
