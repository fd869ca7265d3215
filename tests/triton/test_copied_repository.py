"""The model repository as a stock Triton has it: a copy, with the packages that pyproject.toml names for it, and
without the project itself."""

import os
import shutil
import subprocess
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import httpx
import pytest
from packaging.requirements import Requirement

from scripts.launch.default_model import default_model
from scripts.launch.model_repository import MODEL_REPOSITORY, write_variant
from scripts.launch.triton_server import TritonServer
from tests.running_server import READY_SECONDS

MODELS = ["llm", "completion"]


def with_dependencies(project: str) -> dict[str, Distribution]:
    """Return the installed distributions that a project needs, without its extras, by name."""
    found: dict[str, Distribution] = {}
    waiting = [(text, "") for text in distribution(project).requires or []]
    while waiting:
        text, extra = waiting.pop()
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        try:
            package = distribution(requirement.name)
        except PackageNotFoundError:
            # A build of torch for processors is installed without the packages for cards that another one needs.
            continue
        if requirement.name not in found:
            waiting += [(each, "") for each in package.requires or []]
        found[requirement.name] = package
        waiting += [(each, name) for each in package.requires or [] for name in requirement.extras]
    return found


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has the dependencies of the model repository, and nothing else."""
    environment = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    [site_packages] = environment.glob("lib/python*/site-packages")
    for package in with_dependencies("inflight").values():
        entries = {path.parts[0] for path in package.files or []} - {"..", "__pycache__"}
        for entry in entries:
            link = site_packages / entry
            if not link.is_symlink():
                link.symlink_to(Path(str(package.locate_file(entry))))
    return environment / "bin/python3"


@pytest.mark.parametrize(
    "links", [pytest.param(True, id="cp -a", marks=pytest.mark.slow), pytest.param(False, id="cp -rL")]
)
def test_a_copy_of_the_repository_is_served(tmp_path: Path, python: Path, links: bool) -> None:
    path = os.pathsep.join([str(python.parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": ""}
    for name in ["inflight", "tritonclient"]:
        command = [python, "-c", f"import {name}"]
        found = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert f"No module named '{name}'" in found.stderr
    copied = Path(shutil.copytree(MODEL_REPOSITORY, tmp_path / "models", symlinks=links))
    (copied / "llm/config.pbtxt").unlink()
    write_variant(copied / "llm/config.pbtxt", {"model": str(default_model())}, "")
    with TritonServer(copied, environment=environment) as server:
        server.wait_ready(READY_SECONDS, ["llm", "completion"])
        url = f"http://{server.http_url}/v2/models/completion/generate"
        fields = {"text_input": "The capital of France is", "max_tokens": 4, "temperature": 0.0}
        assert "Paris" in httpx.post(url, json=fields, timeout=60).json()["text_output"]
        server.kill()
