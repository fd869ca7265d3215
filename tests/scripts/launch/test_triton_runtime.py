"""The unpacked runtime has the files that the server and its stub need."""

import os
import sys
import zipfile
from pathlib import Path

import pytest

from scripts.launch import triton_runtime as module
from scripts.launch.errors import LauncherError
from scripts.launch.triton_runtime import find_libpython, lay_out, triton_runtime

MINOR = f"{sys.version_info.major}.{sys.version_info.minor}"


def test_the_runtime_is_laid_out_for_this_python() -> None:
    runtime = triton_runtime()
    backend = runtime.backends / "python"
    stub = backend / "triton_python_backend_stub"
    assert f"libpython{MINOR}.so.1.0".encode() in stub.read_bytes()
    assert (backend / "libtriton_python.so").is_file()
    assert (backend / "triton_python_backend_utils.py").is_file()
    for program in (runtime.server, stub):
        assert os.access(program, os.X_OK)
    assert list((runtime.root / "lib").glob("libtritonserver*.so"))


def test_the_environment_puts_this_python_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/from/outside")
    runtime = triton_runtime()
    environment = runtime.environment()
    assert environment["PATH"].split(":")[0] == str(Path(sys.executable).parent)
    libraries = [str(runtime.libpython_folder), str(runtime.root / "lib"), "/from/outside"]
    assert environment["LD_LIBRARY_PATH"].split(":") == libraries


def test_libpython_is_that_of_this_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (find_libpython() / f"libpython{MINOR}.so.1.0").is_file()
    monkeypatch.setattr(module, "_version_of", lambda library: "3.11.999")
    with pytest.raises(LauncherError, match=r"is 3\.11\.999.*apt install libpython"):
        find_libpython()


def test_a_missing_libpython_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "_library_folders", lambda: [tmp_path])
    with pytest.raises(LauncherError, match=rf"no libpython{MINOR}\.so\.1\.0 .*apt install libpython{MINOR}"):
        triton_runtime()


def test_a_python_without_a_stub_is_reported(tmp_path: Path) -> None:
    wheel = tmp_path / "triton.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("pytriton/tritonserver/python_backend_stubs/3.8/triton_python_backend_stub", "")
    with pytest.raises(LauncherError, match=f"no Python backend stub for Python {MINOR}"):
        lay_out(wheel, tmp_path / "runtime")


def test_another_platform_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(LauncherError, match="linux x86_64, not linux aarch64"):
        triton_runtime()
