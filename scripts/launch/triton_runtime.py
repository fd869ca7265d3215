"""Triton without a container: server and Python backend, unpacked from a pinned wheel into the cache.

The Python backend runs models in a stub process. The stub embeds the same Python as the one that runs this script, so
each minor version of Python has its own runtime.
"""

import ctypes
import os
import platform
import shutil
import sys
import sysconfig
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from scripts.launch.cache import build_once, cache_root
from scripts.launch.errors import LauncherError
from scripts.launch.wheels import fetch_wheel, pinned

_SERVER = "pytriton/tritonserver/bin/tritonserver"
_BACKEND = "pytriton/tritonserver/backends/python/"
_STUBS = "pytriton/tritonserver/python_backend_stubs/"
_STUB = "triton_python_backend_stub"
_LIBRARIES = "nvidia_pytriton.libs/"


@dataclass(frozen=True)
class TritonRuntime:
    """An unpacked tritonserver, and the libpython that its stub must load."""

    root: Path
    libpython_folder: Path

    @property
    def server(self) -> Path:
        """The tritonserver binary."""
        return self.root / "bin/tritonserver"

    @property
    def backends(self) -> Path:
        """The folder for `--backend-directory`."""
        return self.root / "backends"

    def environment(self) -> dict[str, str]:
        """Return the environment in which tritonserver and its stubs find this Python and these libraries."""
        # The embedded interpreter uses the packages of the first python3 on PATH.
        path = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
        # This folder comes first, because a libpython of another patch release cannot load this Python's extension
        # modules.
        libraries = [str(self.libpython_folder), str(self.root / "lib")]
        if inherited := os.environ.get("LD_LIBRARY_PATH"):
            libraries.append(inherited)
        return {**os.environ, "PATH": os.pathsep.join(path), "LD_LIBRARY_PATH": os.pathsep.join(libraries)}


def triton_runtime() -> TritonRuntime:
    """Return the runtime for this Python, downloaded and unpacked on first use.

    Raises LauncherError where the platform or this version of Python is not supported, libpython is missing,
    or the wheel cannot be downloaded.
    """
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise LauncherError(f"Triton's wheel is for linux x86_64, not {sys.platform} {platform.machine()}")
    libpython_folder = find_libpython()
    requirement = pinned("triton-runtime")
    name = f"{requirement.replace('==', '-')}-python{_minor_version()}"
    root = build_once(cache_root() / name, lambda folder: _build(requirement, folder))
    return TritonRuntime(root, libpython_folder)


def _minor_version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _build(requirement: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        wheel = fetch_wheel(requirement, Path(scratch))
        print("Unpacking Triton (about 140 MB, once)", flush=True)
        lay_out(wheel, folder)


def lay_out(wheel: Path, folder: Path) -> None:
    """Unpack the parts that a server for this Python needs into `folder`: `bin`, `lib` and `backends/python`.

    Raises LauncherError if the wheel has no stub for this version of Python.
    """
    stub = f"{_STUBS}{_minor_version()}/{_STUB}"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        if stub not in names:
            raise LauncherError(f"Triton's wheel has no Python backend stub for Python {_minor_version()}")
        _extract(archive, _SERVER, folder / "bin/tritonserver", executable=True)
        _extract(archive, stub, folder / "backends/python" / _STUB, executable=True)
        for name in names:
            if name.endswith("/"):
                continue
            if name.startswith(_LIBRARIES):
                _extract(archive, name, folder / "lib" / name.removeprefix(_LIBRARIES))
            elif name.startswith(_BACKEND):
                _extract(archive, name, folder / "backends/python" / name.removeprefix(_BACKEND))


def _extract(archive: zipfile.ZipFile, name: str, target: Path, *, executable: bool = False) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(name) as source, target.open("wb") as copy:
        shutil.copyfileobj(source, copy)
    if executable:
        target.chmod(0o755)


def find_libpython() -> Path:
    """Return the folder of the shared libpython that has exactly the version of the running Python.

    Raises LauncherError if there is none. The message names the libraries that were found instead.
    """
    soname = f"libpython{_minor_version()}.so.1.0"
    rejected = []
    for folder in _library_folders():
        candidate = folder / soname
        if not candidate.is_file():
            continue
        version = _version_of(candidate)
        if version == platform.python_version():
            return folder
        rejected.append(f"{candidate} is {version}")
    found = f" ({'; '.join(rejected)})" if rejected else ""
    raise LauncherError(
        f"no {soname} of version {platform.python_version()} for {sys.base_prefix}{found}; "
        f"on Debian or Ubuntu: apt install libpython{_minor_version()}; "
        "with pyenv: build Python with PYTHON_CONFIGURE_OPTS=--enable-shared"
    )


def _library_folders() -> list[Path]:
    own = Path(sys.base_prefix) / "lib"
    configured = Path(sysconfig.get_config_var("LIBDIR") or own)
    multiarch = str(sysconfig.get_config_var("MULTIARCH") or "")
    system = Path("/usr/lib")
    candidates = [
        configured,
        configured / multiarch,
        own,
        own / multiarch,
        system / multiarch,
        Path("/usr/lib64"),
    ]
    return list(dict.fromkeys(candidates))


def _version_of(libpython: Path) -> str:
    version = ctypes.CDLL(str(libpython)).Py_GetVersion
    version.restype = ctypes.c_char_p
    return str(version().decode()).split()[0]
