"""Runs the gateway as its operators do: as a separate process."""

import os
import sys
from pathlib import Path

from openai import AsyncOpenAI, OpenAI

from scripts.launch.server_process import ServerProcess, fill_ports

CLIENT = Path(__file__).parents[2] / "client"


class GatewayProcess(ServerProcess):
    """A gateway on a free port, with additional command-line arguments."""

    name = "inflight-gateway"

    def __init__(self, server_url: str, *arguments: str) -> None:
        super().__init__(fill_ports(None)[0], drain_seconds=10)
        self._arguments = ["--server", server_url, "--port", str(self.http_port), *arguments]

    @property
    def url(self) -> str:
        return f"http://{self.http_url}"

    def openai(self, api_key: str = "none") -> OpenAI:
        return OpenAI(base_url=f"{self.url}/v1", api_key=api_key, max_retries=0)

    def async_openai(self) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    def _launch(self) -> tuple[list[str], dict[str, str]]:
        command = [sys.executable, "-m", "inflight_gateway", *self._arguments]
        return command, {**os.environ, "PYTHONPATH": str(CLIENT)}
