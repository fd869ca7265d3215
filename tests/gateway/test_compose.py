"""Checks of docker/compose.yaml that need no container runtime."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from inflight_gateway.__main__ import main

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
