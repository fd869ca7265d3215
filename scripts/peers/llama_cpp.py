"""llama.cpp's server, compiled for this machine's processor, with the default model in its format."""

import os
import shutil
import tempfile
import venv
from pathlib import Path

from scripts.launch.cache import build_once, cache_root
from scripts.launch.default_model import default_gguf
from scripts.launch.server_process import ADDRESS
from scripts.launch.shell import run
from scripts.launch.wheels import fetch_source, pinned_all
from scripts.peers.peer import Peer

NAME = "llama.cpp"
# Prompt and answer together are shorter than this in all benchmarks.
CONTEXT_OF_USER = 1024
_MODEL = "model-bf16.gguf"
_SERVER, _QUANTIZE = "llama-server", "llama-quantize"
_OPTIONS = (
    *("-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=OFF", "-DGGML_NATIVE=ON"),
    *("-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF"),
)


def install() -> Path:
    """Return the folder with the server and the model. Both are created on first use.

    Raises LauncherError if there is no C++ compiler or pip fails.
    """
    return build_once(_folder(), _build)


def installed() -> bool:
    """Whether `install` has completed before."""
    return _folder().is_dir()


def _folder() -> Path:
    version = pinned_all("llama-cpp")[0].partition("==")[2]
    return cache_root() / f"llama-cpp-{version}"


def _build(folder: Path) -> None:
    source_requirement, cmake_requirement = pinned_all("llama-cpp")
    with tempfile.TemporaryDirectory(dir=folder) as name:
        scratch = Path(name)
        source = fetch_source(source_requirement, scratch / "source") / "llama.cpp"
        venv.create(scratch / "tools", with_pip=True)
        python = str(scratch / "tools" / "bin" / "python")
        run([python, "-m", "pip", "install", "--disable-pip-version-check", "--quiet", cmake_requirement])
        cmake, build = str(scratch / "tools" / "bin" / "cmake"), scratch / "build"
        run([cmake, "-S", str(source), "-B", str(build), *_OPTIONS])
        jobs = str(len(os.sched_getaffinity(0)))
        run([cmake, "--build", str(build), "--parallel", jobs, "--target", _SERVER, _QUANTIZE])
        shutil.copy(build / "bin" / _SERVER, folder / _SERVER)
        # The same weights as in the default model's folder, so that all servers compute with the same ones.
        quantize = [str(build / "bin" / _QUANTIZE), "--allow-requantize"]
        run([*quantize, str(default_gguf(scratch / "model")), str(folder / _MODEL), "BF16"])


def server(users: int) -> Peer:
    """Return the server with one slot for each user, each with enough context for a request.

    Start it with exactly as many slots as users: it computes neighbouring slots together, but others one after the
    other. Eight users on a server with 64 slots get half the speed of eight users on a server with eight slots.
    """
    folder = install()
    threads = len(os.sched_getaffinity(0))
    command = [
        *(str(folder / _SERVER), "--model", str(folder / _MODEL), "--host", ADDRESS),
        *("--parallel", str(users), "--ctx-size", str(CONTEXT_OF_USER * users), "--threads", str(threads)),
        *("--cache-type-k", "bf16", "--cache-type-v", "bf16", "--flash-attn", "on", "--no-webui", "--log-disable"),
    ]
    return Peer(NAME, command, dict(os.environ))
