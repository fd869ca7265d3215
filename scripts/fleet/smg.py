"""smg, SGLang's model gateway: a router with prefix affinity for OpenAI's API, in a virtual environment of its own."""

import os
import venv
from collections.abc import Sequence
from pathlib import Path

from scripts.launch.cache import build_once, cache_root
from scripts.launch.command_process import CommandProcess
from scripts.launch.server_process import ADDRESS
from scripts.launch.shell import run
from scripts.launch.wheels import pinned


def install() -> Path:
    """Return its virtual environment, which is created on first use. Raises LauncherError if pip fails."""
    return build_once(cache_root() / f"smg-{pinned('smg').partition('==')[2]}", _build)


def _build(folder: Path) -> None:
    venv.create(folder, with_pip=True)
    run([str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", pinned("smg")])


def router(urls: Sequence[str], port: int, metrics_port: int, policy: str = "cache_aware") -> CommandProcess:
    """Return the router in front of some gateways, given by their URLs."""
    command = [
        *(str(install() / "bin" / "python"), "-m", "smg.launch_router", "--worker-urls", *urls, "--policy", policy),
        *("--host", ADDRESS, "--port", str(port)),
        *("--prometheus-host", ADDRESS, "--prometheus-port", str(metrics_port)),
    ]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return CommandProcess("smg", command, environment, port)
