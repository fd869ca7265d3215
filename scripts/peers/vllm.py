"""vLLM's server on the CPU, in a virtual environment of its own."""

import ctypes.util
import os
import venv
from pathlib import Path

from scripts.launch.cache import build_once, cache_root
from scripts.launch.server_process import ADDRESS
from scripts.launch.shell import run
from scripts.launch.wheels import pinned
from scripts.peers.dtype import best_dtype
from scripts.peers.peer import MODEL, Peer

NAME = "vLLM"
CONTEXT = 2048
_SERVER = "vllm.entrypoints.openai.api_server"
_KV_CACHE_GIB = 2
_ALLOCATORS = ("tcmalloc_minimal", "tcmalloc")


def install() -> Path:
    """Return its virtual environment, made on first use; raises LauncherError where pip fails."""
    return build_once(_folder(), _build)


def installed() -> bool:
    """Whether `install` was run."""
    return _folder().is_dir()


def _folder() -> Path:
    version = pinned("vllm").partition("==")[2]
    return cache_root() / f"vllm-{version}"


def _build(folder: Path) -> None:
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    run([*pip, "install", pinned("vllm")])
    # Where pip knows no other builds these are for CUDA and fail beside torch for the CPU; text needs none of them.
    run([*pip, "uninstall", "--yes", "torchvision", "torchaudio", "torchcodec"])
    run([python, "-c", f"import {_SERVER}"])


def allocator() -> str | None:
    """The library of the memory allocator that its documentation recommends, where the system has it."""
    return next(filter(None, map(ctypes.util.find_library, _ALLOCATORS)), None)


def server(folder: Path, users: int) -> Peer:
    """Return the server, as its documentation sets it up for a CPU, with a slot for each user."""
    python = install() / "bin" / "python"
    command = [
        # Not its `vllm` command, which fails where the CPU's package is installed.
        *(str(python), "-m", _SERVER, f"--model={folder}"),
        *(f"--served-model-name={MODEL}", f"--dtype={best_dtype()}"),
        *(f"--host={ADDRESS}", f"--max-model-len={CONTEXT}", f"--max-num-seqs={users}"),
        *("--disable-uvicorn-access-log", "--no-enable-log-requests"),
    ]
    # Intel's OpenMP comes with it for x86.
    preloaded = [*map(str, (python.parents[1] / "lib").glob("libiomp5.so")), *filter(None, [allocator()])]
    # Its own Python and tools first, and none of this project's.
    environment = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "PATH": f"{python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "LD_PRELOAD": ":".join(preloaded),
        # All of them: left alone it keeps one free, which of two is half.
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, sorted(os.sched_getaffinity(0)))),
        "VLLM_CPU_KVCACHE_SPACE": str(_KV_CACHE_GIB),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    return Peer(NAME, command, environment)
