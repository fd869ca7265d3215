"""Checks of docker/ that need no container runtime."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from inflight_gateway.__main__ import main
from scripts.launch.exposure import restrict

DOCKER = Path(__file__).parents[2] / "docker"


@pytest.fixture
def services() -> Any:
    return yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]


def test_ports_are_for_this_host_alone(services: Any) -> None:
    for service in services.values():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        assert service["healthcheck"]["test"][0] == "CMD"


def test_images_can_be_built_from_what_is_there(services: Any) -> None:
    for service in services.values():
        context = DOCKER / service["build"]["context"]
        dockerfile = context / service["build"]["dockerfile"]
        for source in re.findall(r"^COPY (\S+)", dockerfile.read_text(), re.MULTILINE):
            assert (context / source).exists()


def test_gateway_takes_its_command(services: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(services["gateway"]["command"]) == 1
    # Everything is valid. Only the container's file is missing here.
    assert "No such file or directory: '/run/secrets/api_keys'" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["Dockerfile", "gateway.Dockerfile"])
def test_no_image_runs_as_root(name: str) -> None:
    instructions = [line.split() for line in (DOCKER / name).read_text().splitlines()]
    users = [words[1] for words in instructions if words and words[0] == "USER"]
    assert users
    assert users[-1] not in ("root", "0")


def test_image_restricts_what_make_serve_restricts(tmp_path: Path) -> None:
    """The image's command runs here, with a tritonserver that prints its arguments."""
    (command,) = re.findall(r"^CMD (\[.*\])$", (DOCKER / "Dockerfile").read_text().replace("\\\n", ""), re.MULTILINE)
    printer = tmp_path / "tritonserver"
    printer.write_text('#!/bin/sh\nfor argument; do echo "$argument"; done\n')
    printer.chmod(0o755)

    def arguments(**environment: str) -> list[str]:
        path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
        run = subprocess.run(json.loads(command), env={"PATH": path, **environment}, capture_output=True, check=True)
        return run.stdout.decode().splitlines()

    assert set(restrict("chosen")) <= set(arguments(OPERATOR_KEY="chosen"))
    keys = [argument.rpartition("=")[2] for _ in range(2) for argument in arguments() if "restricted" in argument]
    assert [len(key) for key in keys] == [36] * 4
    assert len(set(keys)) == 2
