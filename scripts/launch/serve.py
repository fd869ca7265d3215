"""`make serve`: download what is missing, start Triton with this model repository, and stay in the foreground.

The settings come from environment variables, which make sets from its command line: HTTP_PORT, GRPC_PORT, METRICS_PORT,
MODEL (a folder or a hub id; by default the default model), ARGS (more tritonserver flags), OPERATOR_KEY (the value of
the header that opens the operator's interfaces; by default a random one) and ALLOW_EXPOSED_TRITON (any value: ARGS may
make other hosts reach Triton).
"""

import argparse
import contextlib
import itertools
import os
import re
import shlex
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from scripts.launch.cache import cache_root
from scripts.launch.default_model import default_model
from scripts.launch.errors import LauncherError
from scripts.launch.exposure import check_loopback
from scripts.launch.model_repository import MODEL_REPOSITORY, render_repository
from scripts.launch.output import say
from scripts.launch.port_locks import locked_ports
from scripts.launch.restarts import keep_running
from scripts.launch.scratch import scratch_folder
from scripts.launch.server_log import LogFilter
from scripts.launch.server_process import ADDRESS
from scripts.launch.signals import end_like_ctrl_c
from scripts.launch.triton_runtime import triton_runtime
from scripts.launch.triton_server import TritonServer

# Long enough to download a model of several gigabytes.
READY_SECONDS = 1800
# From SIGTERM on, Triton closes new HTTP connections without an answer. So first, load balancers see for so long that
# the health checks fail. A model that drains takes new requests for the same time.
_NOTICE_SECONDS = 3.0

_PORTS = {"HTTP_PORT": 8000, "GRPC_PORT": 8001, "METRICS_PORT": 8002}
_ADDRESSES_ASKED = (ADDRESS, "localhost", "0.0.0.0")
_SENDABLE = re.compile("[!-~]*")
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


@dataclass(frozen=True)
class ServeSettings:
    """The settings of `make serve`. `model` is None for the default model."""

    http_port: int
    grpc_port: int
    metrics_port: int
    model: str | None
    arguments: list[str]


def read_settings(environment: Mapping[str, str]) -> ServeSettings:
    """Return the settings in `environment`. An empty variable counts as absent.

    Raises LauncherError, which names the variable, if one is malformed, a port is in use or a folder is missing.
    """
    ports = {name: _port(name, environment.get(name) or str(default)) for name, default in _PORTS.items()}
    owners: dict[int, str] = {}
    for name, port in ports.items():
        if port in owners:
            raise LauncherError(f"{owners[port]} and {name} are both {port}")
        owners[port] = name
        _check_free(name, port)
    try:
        arguments = shlex.split(environment.get("ARGS", ""))
    except ValueError as error:
        raise LauncherError(f"ARGS={environment['ARGS']!r}: {error}") from error
    if not environment.get("ALLOW_EXPOSED_TRITON"):
        check_loopback(arguments)
    if not _SENDABLE.fullmatch(environment.get("OPERATOR_KEY", "")):
        raise LauncherError(
            "OPERATOR_KEY must consist of printable ASCII characters without spaces: it is sent in a header"
        )
    model = environment.get("MODEL")
    return ServeSettings(
        ports["HTTP_PORT"],
        ports["GRPC_PORT"],
        ports["METRICS_PORT"],
        resolve_model(model) if model else None,
        arguments,
    )


def _port(name: str, text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise LauncherError(f"{name} must be a whole number from 1 to 65535, not {text!r}")
    return int(text)


def _check_free(name: str, port: int) -> None:
    with socket.socket() as probe:
        # The server sets this option too: a connection that lingers from an earlier run does not block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ADDRESS, port))
        except OSError as error:
            raise LauncherError(
                f"cannot use port {port} on {ADDRESS} ({error.strerror}); set {name} to another"
            ) from error


def resolve_model(model: str) -> str:
    """Return the absolute path of a model folder. Return a hub id unchanged.

    Raises LauncherError if `model` is a path and there is no such folder, or the folder has no config.json.
    """
    folder = Path(model).expanduser()
    if not folder.is_dir():
        if model.startswith((".", "/", "~")) or not _HUB_ID.fullmatch(model):
            raise LauncherError(f"MODEL={model}: there is no such folder")
        return model
    if not (folder / "config.json").is_file():
        raise LauncherError(f"MODEL={model}: the folder has no config.json")
    return str(folder.absolute())  # Triton's Python may be unable to open what a link stands for by its own path.


def serve(settings: ServeSettings, repository: Path) -> int:
    """Serve `repository` until a signal arrives, and return the exit status. A server that dies is started again.

    Raises LauncherError if the arguments move HTTP elsewhere, the runtime or the model cannot be downloaded, another
    server is about to use a port, or the server does not become ready at first.
    """
    _check_can_be_asked(settings.arguments)
    runtime = triton_runtime()
    model = settings.model or str(default_model())
    shown = LogFilter()
    ports = {
        "HTTP_PORT": settings.http_port,
        "GRPC_PORT": settings.grpc_port,
        "METRICS_PORT": settings.metrics_port,
    }
    with locked_ports(cache_root() / "ports", ports), scratch_folder(cache_root() / "serving") as scratch:
        server = TritonServer(
            render_repository(scratch / "models", parameters={"model": model}, source=repository),
            http_port=settings.http_port,
            grpc_port=settings.grpc_port,
            metrics_port=settings.metrics_port,
            arguments=settings.arguments,
            log=lambda line: say(line, end="") if shown.shows(line) else None,
            runtime=runtime,
        )

        def start() -> None:
            say(f"Starting Triton with {model}")
            server.start()
            server.wait_ready(READY_SECONDS, ["llm"])
            say(_ready_line(server))

        try:
            keep_running(server, start)
        except KeyboardInterrupt:
            return _drain(server)
        finally:
            server.kill()


def _check_can_be_asked(arguments: list[str]) -> None:
    """Check that HTTP is not moved to where nobody would ask whether the server is ready."""
    for argument, following in itertools.pairwise([*arguments, ""]):
        option, separator, value = argument.partition("=")
        if option == "--http-port":
            raise LauncherError(f"ARGS has {argument}; set HTTP_PORT instead")
        address = value if separator else following
        if option == "--http-address" and address not in _ADDRESSES_ASKED:
            raise LauncherError(f"ARGS has --http-address {address}; it must be one of {', '.join(_ADDRESSES_ASKED)}")


def _drain(server: TritonServer) -> int:
    say(f"Finishing running requests, {server.drain_seconds} s at most (again to stop at once)")
    with contextlib.suppress(KeyboardInterrupt):
        if server.drain("llm"):
            time.sleep(_NOTICE_SECONDS)
        server.stop()
        return 0
    return 130


def _ready_line(server: TritonServer) -> str:
    body = '{"text_input": "The capital of France is", "stream": true, "max_tokens": 32}'
    return f"Ready: curl -N {server.http_url}/v2/models/llm/generate_stream -d '{body}'"


def main(repository: Path = MODEL_REPOSITORY) -> int:
    """Serve with the settings of the environment and return the exit status. If it is 1, a line says why."""
    end_like_ctrl_c()
    try:
        return serve(read_settings(os.environ), repository)
    except LauncherError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:  # Such as a full disk.
        print(f"error: a file in the cache folder, INFLIGHT_CACHE, cannot be used: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    # It takes no arguments, and only says so.
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    sys.exit(main())
