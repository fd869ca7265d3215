"""Manifests for Gateway API, KEDA and the Prometheus operator fit their schemas, which come from npm.

No package has the schema of InferencePool; test_chart.py compares that manifest as a whole.
"""

import copy
import json
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from scripts.launch.cache import build_once, cache_root
from tests.deploy.conftest import Manifest, Render

PACKAGES = {
    "@kubernetes-models/gateway-api": "2.0.0",
    "@kubernetes-models/keda": "2.0.0",
    "@kubernetes-models/prometheus-operator": "6.0.0",
}
KINDS = ("HTTPRoute", "ScaledObject", "PodMonitor", "PrometheusRule")
SCRIPT = Path(__file__).with_name("validate.mjs")

Validate = Callable[[Sequence[Manifest]], dict[str, str]]


@pytest.fixture(scope="module")
def validate() -> Validate:
    """Returns what the schemas say, by kind."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")

    def install(folder: Path) -> None:
        (folder / "package.json").write_text(json.dumps({"private": True, "dependencies": PACKAGES}))
        command = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=180)
        assert result.returncode == 0, result.stderr

    folder = build_once(cache_root() / "kubernetes-models-1", install)

    def run(manifests: Sequence[Manifest]) -> dict[str, str]:
        # Imports of a program on the command line are looked up from the working directory.
        command = ["node", "--input-type=module", "--eval", SCRIPT.read_text()]
        given = json.dumps(manifests)
        result = subprocess.run(
            command, cwd=folder, input=given, capture_output=True, text=True, check=False, timeout=60
        )
        assert result.returncode == 0, result.stderr
        return dict(json.loads(result.stdout))

    return run


@pytest.fixture(scope="module")
def custom(render: Render) -> dict[str, Manifest]:
    everything = render(
        "--set=route.enabled=true,route.parentRefs[0].name=edge,route.hostnames={llm.example}",
        "--set=inferencePool.enabled=true,autoscaling.enabled=true,prometheusOperator.enabled=true",
    )
    return {kind: everything[kind] for kind in KINDS}


def test_they_fit(custom: dict[str, Manifest], validate: Validate) -> None:
    assert validate(list(custom.values())) == dict.fromkeys(KINDS, "")


def test_the_schemas_notice_mistakes(custom: dict[str, Manifest], validate: Validate) -> None:
    wrong: dict[str, Any] = copy.deepcopy(custom)
    wrong["HTTPRoute"]["spec"]["rules"][0]["matches"][0]["path"]["type"] = "Prefix"
    wrong["ScaledObject"]["spec"]["triggers"][0]["metadata"]["threshold"] = 8
    wrong["PodMonitor"]["spec"]["podMetricsEndpoints"][0]["interval"] = "often"
    del wrong["PrometheusRule"]["spec"]["groups"][0]["rules"][0]["expr"]
    assert all(validate(list(wrong.values())).values())
