"""Checks of docker/compose.monitoring.yaml that need no container runtime."""

import re
from typing import Any

import pytest
import yaml

from scripts.launch.exposure import restrict
from tests.deploy.conftest import DEPLOY, PROMETHEUS

DOCKER = DEPLOY.parent / "docker"


@pytest.fixture
def compose() -> Any:
    return yaml.safe_load((DOCKER / "compose.monitoring.yaml").read_text())


def test_ports_are_for_this_host_alone(compose: Any) -> None:
    ports = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert len(ports) == 2
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_images_have_versions_and_files_exist(compose: Any) -> None:
    base = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]
    for name, service in compose["services"].items():
        assert name in base or re.fullmatch(r"[\w/-]+:v?\d+\.\d+\.\d+", service["image"])
        sources = [volume.split(":")[0] for volume in service.get("volumes", [])]
        for source in sources:
            assert source in compose["volumes"] or (DOCKER / source).exists()


def test_only_the_gateway_and_the_collector_share_tritons_network(compose: Any) -> None:
    away = {name for name, service in compose["services"].items() if service.get("networks") == ["monitoring"]}
    assert away == {"prometheus", "grafana"}
    assert compose["services"]["gateway"]["networks"] == ["default", "monitoring"]


def test_triton_stays_restricted(compose: Any) -> None:
    assert set(restrict("${OPERATOR_KEY:?}")) <= set(compose["services"]["triton"]["command"])


def test_prometheus_grafana_and_the_collector_are_where_others_look(compose: Any) -> None:
    services = compose["services"]
    (job,) = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["gateway:9000"]}]
    (source,) = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert "prometheus" in services
    (url,) = re.findall(r"opentelemetry,url=(\S+)", " ".join(services["triton"]["command"]))
    receiver = yaml.safe_load((DEPLOY / "otel/collector.yaml").read_text())["receivers"]["otlp"]["protocols"]["http"]
    assert url == f"http://collector:{receiver['endpoint'].rpartition(':')[2]}/v1/traces"
