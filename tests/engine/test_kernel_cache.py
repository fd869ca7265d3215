"""The library of C++ kernels: where it is built and kept, and what happens if it cannot be."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from inflight.model.cpu import kernels
from inflight.model.cpu.instruction_sets import instruction_sets
from inflight.model.cpu.kernels import load_kernels


@pytest.mark.parametrize(
    ("missing", "says"), [("c++", "there is no C++ compiler c++; install g++"), ("ninja", "import of ninja halted")]
)
def test_loading_returns_false_and_logs_why_if_the_kernels_cannot_be_built(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture, missing: str, says: str
) -> None:
    monkeypatch.setenv("INFLIGHT_CACHE", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None if name == missing else f"/usr/bin/{name}")
    monkeypatch.setitem(sys.modules, "ninja", None)
    assert not load_kernels.__wrapped__()
    assert "the C++ kernels cannot be used" in caplog.text
    assert says in caplog.text
    assert list((tmp_path / "kernels").iterdir()) == []


@pytest.mark.parametrize("path", ["kernels", "library"])
def test_kernels_that_others_may_have_written_are_not_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    folder = tmp_path / "kernels"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("INFLIGHT_CACHE", str(tmp_path))
    monkeypatch.setattr(kernels, "_key", lambda flags: "test")
    planted = folder / "kernels-test.so"
    planted.touch()
    (folder if path == "kernels" else planted).chmod(0o777)
    assert not load_kernels.__wrapped__()
    assert "can be written by other users" in caplog.text


WITHOUT_A_CACHE = """
import shutil, sys
import torch
from inflight.model.cpu import kernels

# Compiling takes half a minute.
kernels._build = lambda library, flags: shutil.copy(sys.argv[1], library)
assert kernels.load_kernels()
assert torch.ops.inflight.linear
"""


@pytest.mark.skipif(not instruction_sets(), reason="this processor has no AVX2")
def test_where_the_cache_cannot_be_written_each_process_builds_its_own(tmp_path: Path) -> None:
    assert load_kernels()
    built = kernels._cache_folder() / f"kernels-{kernels._key(kernels._flags(instruction_sets()[0]))}.so"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        # The home of many service users.
        "INFLIGHT_CACHE": "/dev/null/cache",
        "TMPDIR": str(tmp_path),
    }
    found = subprocess.run(
        [sys.executable, "-c", WITHOUT_A_CACHE, built], env=environment, capture_output=True, text=True, check=True
    )
    assert "the C++ kernels are built at each start; set INFLIGHT_CACHE to a writable folder" in found.stderr
    assert list(tmp_path.iterdir()) == []
