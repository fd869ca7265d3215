"""The processes of a fleet on one machine."""

import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from scripts.fleet import envoy, smg
from scripts.fleet.haproxy import haproxy_config
from scripts.fleet.member import Member
from scripts.fleet.nginx import nginx_config
from scripts.fleet.prometheus import prometheus_config
from scripts.launch.command_process import CommandProcess
from scripts.launch.errors import LauncherError
from scripts.launch.model_repository import render_repository
from scripts.launch.server_process import ADDRESS, fill_ports
from scripts.launch.triton_server import TritonServer

BALANCERS = ("haproxy", "nginx", "envoy", "smg", "none")
_READY_SECONDS = 300.0
_PACKAGES = {"haproxy": "haproxy", "nginx": "nginx-light", "prometheus": "prometheus"}


class Fleet:
    """N servers, each with a gateway, behind a load balancer. A context manager: it starts and stops all of them.

    Raises:
        LauncherError: there are no servers, or a program is missing or does not start.
    """

    def __init__(self, model: Path, count: int, balancer: str, *, kv_cache_tokens: int, prometheus: bool) -> None:
        """Each server gets its share of the processors, at least one, and a KV cache of so many tokens."""
        if count < 1:
            raise LauncherError(f"the number of servers is {count}; it must be at least 1")
        self._stack = contextlib.ExitStack()
        # A server is ended with the thread that started it.
        self._starter = self._stack.enter_context(ThreadPoolExecutor(1))
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="inflight-fleet-")))
        threads = max(1, len(os.sched_getaffinity(0)) // count)
        parameters = {"model": str(model), "num_threads": str(threads), "kv_cache_tokens": str(kv_cache_tokens)}
        repository = render_repository(self._folder / "models", parameters=parameters)
        self.servers = [TritonServer(repository) for _ in range(count)]
        ports = iter(fill_ports(*[None] * (2 * count + 5)))
        self.members = [
            Member(
                f"llm-{number}",
                ADDRESS,
                server.http_port,
                server.grpc_port,
                server.metrics_port,
                next(ports),
                next(ports),
            )
            for number, server in enumerate(self.servers, start=1)
        ]
        grpc_port, http_port, self.prometheus_port, smg_port, smg_metrics = ports
        self.grpc_url = f"{ADDRESS}:{grpc_port}" if balancer in ("haproxy", "nginx", "envoy") else None
        """Of KServe's protocol, through the load balancer."""
        self.openai_url = (
            None if balancer == "none" else f"http://{ADDRESS}:{smg_port if balancer == 'smg' else http_port}"
        )
        """Of OpenAI's API, through the load balancer."""
        self._gateways = [_gateway(member) for member in self.members]
        self._agents = [_agent(member) for member in self.members] if balancer == "haproxy" else []
        binds = {"grpc_bind": f"{ADDRESS}:{grpc_port}", "http_bind": f"{ADDRESS}:{http_port}"}
        self._behind: list[CommandProcess] = []
        self._nginx: Callable[[list[Member]], str] | None = None
        """Makes nginx's configuration, if it is the load balancer."""
        if balancer == "haproxy":
            file = self._write("haproxy.cfg", haproxy_config(self.members, **binds))
            self._behind.append(_program("haproxy", ["-f", str(file)], http_port, "/health"))
        elif balancer == "nginx":
            self._nginx = lambda leaving: nginx_config(self.members, leaving, **binds)
            file = self._write("nginx.conf", self._nginx([]))
            prefix = ["-p", str(self._folder), "-e", "stderr", "-g", f"daemon off; pid {self._folder}/nginx.pid;"]
            self._behind.append(_program("nginx", [*prefix, "-c", str(file)], http_port, "/health"))
        elif balancer == "envoy":
            file = self._write("envoy.yaml", envoy.envoy_config(self.members, **binds))
            self._behind.append(envoy.balancer(file, http_port))
        elif balancer == "smg":
            self._behind.append(smg.router(self.gateway_urls, smg_port, smg_metrics))
        if prometheus:
            self._behind.append(self._prometheus())

    @property
    def grpc_urls(self) -> str:
        """The servers themselves, for our client."""
        return ",".join(server.grpc_url for server in self.servers)

    @property
    def gateway_urls(self) -> list[str]:
        """The gateways themselves."""
        return [f"http://{ADDRESS}:{member.gateway_port}" for member in self.members]

    def announce(self, *leaving: int) -> None:
        """Tell nginx, which does not ask for itself, which servers are about to be restarted. Do nothing for others."""
        if self._nginx is None:
            return
        self._write("nginx.conf", self._nginx([self.members[index] for index in leaving]))
        (nginx,) = self._behind[:1]
        os.kill(nginx.pid, signal.SIGHUP)

    def restart(self, index: int) -> None:
        """Start a server that has ended again, on its ports."""
        self._starter.submit(self.servers[index].start).result()
        self.servers[index].wait_ready(_READY_SECONDS, ["llm"])

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as starting:
            starting.push(self.__exit__)
            for process in (*self.servers, *self._gateways, *self._agents):
                self._stack.enter_context(process)
            # All have been started. Not on threads: whoever interrupts the start would wait for them.
            for server in self.servers:
                server.wait_ready(_READY_SECONDS, ["llm"])
            for gateway in self._gateways:
                gateway.wait_ready(_READY_SECONDS)
            for process in self._behind:
                self._stack.enter_context(process).wait_ready(_READY_SECONDS)
            starting.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._stack:
            self._stop_servers()

    def _stop_servers(self) -> None:
        """Let all finish their requests at the same time. If a signal comes meanwhile, end them at once."""
        try:
            for server in self.servers:
                server.drain("llm")
            for server in self.servers:
                server.stop()
        except KeyboardInterrupt:
            for server in self.servers:
                server.kill()
            raise

    def _prometheus(self) -> CommandProcess:
        file = self._write("prometheus.yml", prometheus_config(self.members))
        arguments = [
            f"--config.file={file}",
            f"--storage.tsdb.path={self._folder / 'prometheus'}",
            f"--web.listen-address={ADDRESS}:{self.prometheus_port}",
        ]
        return _program("prometheus", arguments, self.prometheus_port, "/-/ready")

    def _write(self, name: str, text: str) -> Path:
        file = self._folder / name
        file.write_text(text)
        return file


def _gateway(member: Member) -> CommandProcess:
    command = [
        *(sys.executable, "-m", "inflight_gateway", f"--server={member.host}:{member.grpc_port}"),
        *(f"--metrics-url=http://{member.host}:{member.metrics_port}/metrics", f"--port={member.gateway_port}"),
    ]
    return CommandProcess(f"the gateway of {member.name}", command, dict(os.environ), member.gateway_port)


def _agent(member: Member) -> CommandProcess:
    command = [
        *(sys.executable, "-m", "inflight_cli", "agent-check", f"--url={member.host}:{member.grpc_port}"),
        *(f"--metrics-url=http://{member.host}:{member.metrics_port}/metrics", f"--port={member.agent_port}"),
    ]
    return CommandProcess(f"the agent of {member.name}", command, dict(os.environ), member.agent_port)


def _program(name: str, arguments: Sequence[str], port: int, health: str) -> CommandProcess:
    path = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
    if path is None:
        raise LauncherError(f"{name} is not installed; on Debian: apt-get install {_PACKAGES[name]}")
    return CommandProcess(name, [path, *arguments], dict(os.environ), port, health=health)
