"""The library of C++ kernels: where it is built and kept, and what happens if it cannot be."""

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Sequence
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


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("exit 1", "returned non-zero exit status 1"),
        (
            'case "$1" in --version) echo c++;; *) echo "c++: fatal error: no space left" >&2; exit 1;; esac',
            "torch's own operators serve instead: c++: fatal error: no space left",
        ),
    ],
    ids=["broken", "fails"],
)
def test_what_is_wrong_with_the_compiler_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture, script: str, says: str
) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text(f"#!/bin/sh\n{script}\n")
    compiler.chmod(0o700)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("INFLIGHT_CACHE", str(tmp_path))
    assert not kernels.load_kernels_for(["AVX2"])
    assert says in caplog.text
    assert list((tmp_path / "kernels").iterdir()) == []


def test_the_reason_why_a_library_cannot_be_loaded_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as a folder on a file system whose programs may not be executed."""

    def build(library: Path, flags: Sequence[str]) -> None:
        content = b"no library"
        library.touch(mode=0o700)
        library.write_bytes(content + kernels._checksum(content))

    monkeypatch.setattr(kernels, "_build", build)
    monkeypatch.setenv("INFLIGHT_CACHE", str(tmp_path))
    assert not kernels.load_kernels_for(["AVX2"])
    assert "torch's own operators serve instead" in caplog.text
    assert "file too short" in caplog.text


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


LOAD = """
import shutil, sys
import torch
from inflight.model.cpu import kernels

# Compiling takes half a minute.
kernels._build = lambda library, flags: shutil.copy(sys.argv[1], library)
assert kernels.load_kernels()
assert torch.ops.inflight.linear
"""


def built_library() -> Path:
    assert load_kernels()
    return kernels._cache_folder() / f"kernels-{kernels._key(kernels._flags(instruction_sets()[0]))}.so"


def load_in_new_process(built: Path, **environment: str) -> str:
    """Load the kernels, where a build copies the library `built`, and return the log."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    command = [sys.executable, "-c", LOAD, str(built)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stderr


def test_a_user_without_a_home_builds_their_own(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_such_user(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    for name in ("INFLIGHT_CACHE", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", no_such_user)
    monkeypatch.setenv("CXX", "no-compiler")
    assert not kernels.load_kernels_for(["AVX2"])
    assert "this user has no home folder: the C++ kernels are built at each start; set INFLIGHT_CACHE" in caplog.text


@pytest.mark.skipif(not instruction_sets(), reason="this processor has no AVX2")
@pytest.mark.parametrize("size", [0, 100_000], ids=["empty", "cut"])
def test_a_library_that_a_power_failure_has_cut_is_built_again(tmp_path: Path, size: int) -> None:
    built = built_library()
    cut = tmp_path / "kernels" / built.name
    cut.parent.mkdir(mode=0o700)
    cut.write_bytes(built.read_bytes()[:size])
    cut.chmod(0o700)
    log = load_in_new_process(built, INFLIGHT_CACHE=str(tmp_path))
    assert f"{cut} is damaged, or of a version that wrote no checksum; it is built again" in log
    assert cut.read_bytes() == built.read_bytes()


SOURCE = """
static long answer = 42;
long *volatile place = &answer;  // The loader writes this address into the loaded library.
extern "C" long probe() { return *place; }
"""

BUILD = """
import ctypes, sys
from pathlib import Path
from inflight.model.cpu import kernels

folder = Path(sys.argv[1])
kernels._SOURCES = folder
kernels._build(folder / "kernels-test.so", [])
assert kernels._is_whole(folder / "kernels-test.so")
assert ctypes.CDLL(folder / "kernels-test.so").probe() == 42
"""


@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")
def test_the_process_that_builds_a_library_can_use_it(tmp_path: Path) -> None:
    """It has loaded the library before its checksum was added."""
    (tmp_path / "kernels.cpp").write_text(SOURCE)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", BUILD, str(tmp_path)], env=environment, check=True)


KILLED = """
import os, signal
from torch.utils import cpp_extension
from inflight.model.cpu import kernels

cpp_extension.load = lambda **settings: os.kill(os.getpid(), signal.SIGKILL)
kernels.load_kernels_for(["AVX2"])
"""


def test_the_next_build_removes_what_a_killed_one_has_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("INFLIGHT_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", "false")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", KILLED], env=environment, check=False)
    assert len(list((tmp_path / "kernels").iterdir())) == 1
    assert not kernels.load_kernels_for(["AVX2"])
    assert list((tmp_path / "kernels").iterdir()) == []


@pytest.mark.skipif(not instruction_sets(), reason="this processor has no AVX2")
def test_where_the_cache_cannot_be_written_each_process_builds_its_own(tmp_path: Path) -> None:
    # The home of many service users.
    log = load_in_new_process(built_library(), INFLIGHT_CACHE="/dev/null/cache", TMPDIR=str(tmp_path))
    assert "the C++ kernels are built at each start; set INFLIGHT_CACHE to a writable folder" in log
    assert list(tmp_path.iterdir()) == []
