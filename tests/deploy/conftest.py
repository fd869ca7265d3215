"""The Helm chart, rendered by Helm itself, and tests of Prometheus' rules, run by promtool."""

import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.helm import helm

DEPLOY = Path(__file__).parents[2] / "deploy"
CHART = DEPLOY / "helm/inflight"
PROMETHEUS = DEPLOY / "prometheus"
RECORDED = Path(__file__).with_name("recorded.yaml")
SCRAPE_SECONDS = 15

Manifest = dict[str, Any]
Render = Callable[..., dict[str, Manifest]]
Promtool = Callable[..., str]


@pytest.fixture(scope="session")
def helm_run() -> Callable[..., "subprocess.CompletedProcess[str]"]:
    binary = helm()

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([binary, *arguments], capture_output=True, text=True, check=False, timeout=60)

    return run


@pytest.fixture(scope="session")
def render(helm_run: Callable[..., "subprocess.CompletedProcess[str]"]) -> Render:
    """Returns the chart's manifests by kind; arguments are those of `helm template`."""

    def run(*arguments: str) -> dict[str, Manifest]:
        result = helm_run("template", "release", str(CHART), "--namespace=models", *arguments)
        assert result.returncode == 0, result.stderr
        documents = [document for document in yaml.safe_load_all(result.stdout) if document]
        by_kind = {document["kind"]: document for document in documents}
        assert len(by_kind) == len(documents)
        return by_kind

    return run


@pytest.fixture(scope="session")
def promtool() -> Promtool:
    binary = shutil.which("promtool")
    if binary is None:
        pytest.skip("promtool is not installed; on Debian: apt install prometheus")

    def run(*arguments: str | Path) -> str:
        result = subprocess.run([binary, *arguments], capture_output=True, text=True, check=False, timeout=120)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    return run


def promtool_test(folder: Path, series: Mapping[str, str], tests: list[dict[str, Any]]) -> Path:
    """Write a file for `promtool test rules`."""
    path = folder / "test.yaml"
    test = {
        "interval": f"{SCRAPE_SECONDS}s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": tests,
    }
    files = [str(PROMETHEUS / name) for name in ("rules.yaml", "alerts.yaml")]
    path.write_text(yaml.safe_dump({"rule_files": files, "evaluation_interval": f"{SCRAPE_SECONDS}s", "tests": [test]}))
    return path


def recorded() -> tuple[dict[str, str], dict[str, int]]:
    """The series of a real server, and the last sample of each phase."""
    found = yaml.safe_load(RECORDED.read_text())
    return {each["series"]: each["values"] for each in found["input_series"]}, found["last_samples"]
