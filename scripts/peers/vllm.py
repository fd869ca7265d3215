"""vLLM's server on the CPU, in a virtual environment of its own."""

import ctypes.util
import json
import os
import venv
from pathlib import Path

from scripts.launch.cache import build_once, cache_root
from scripts.launch.server_process import ADDRESS
from scripts.launch.shell import run
from scripts.launch.wheels import pinned
from scripts.peers.dtype import best_dtype
from scripts.peers.peer import CONTEXT, MODEL, Peer

NAME = "vLLM"
_SERVER = "vllm.entrypoints.openai.api_server"
_KV_CACHE_GIB = 4
_NGRAM = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}
_ALLOCATORS = ("tcmalloc_minimal", "tcmalloc")


def install() -> Path:
    """Return its virtual environment, which is created on first use. Raises LauncherError if pip fails."""
    return build_once(_folder(), _build)


def installed() -> bool:
    """Whether `install` has completed before."""
    return _folder().is_dir()


def _folder() -> Path:
    version = pinned("vllm").partition("==")[2]
    return cache_root() / f"vllm-{version}"


def _build(folder: Path) -> None:
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    run([*pip, "install", pinned("vllm")])
    # pip may find only CUDA builds of these packages, which fail with the CPU build of torch. Text models do not need
    # them.
    run([*pip, "uninstall", "--yes", "torchvision", "torchaudio", "torchcodec"])
    run([python, "-c", f"import {_SERVER}"])


def allocator() -> str | None:
    """The library of the memory allocator that vLLM's documentation recommends, if the system has it."""
    return next(filter(None, map(ctypes.util.find_library, _ALLOCATORS)), None)


def server(folder: Path, users: int, *, drafts: bool = False) -> Peer:
    """Return the server in the configuration that its documentation recommends for CPUs, with a slot for each user.

    With `drafts` it has speculative decoding by n-gram look-up, with the numbers of the example in its documentation.
    """
    python = install() / "bin" / "python"
    command = [
        # Its `vllm` command fails if the package for CPUs is installed.
        *(str(python), "-m", _SERVER, f"--model={folder}"),
        *(f"--served-model-name={MODEL}", f"--dtype={best_dtype()}"),
        *(f"--host={ADDRESS}", f"--max-model-len={CONTEXT}", f"--max-num-seqs={users}"),
        # Nothing that a request leaves out comes from the model's generation_config.json.
        "--generation-config=vllm",
        *("--disable-uvicorn-access-log", "--no-enable-log-requests"),
        *([f"--speculative-config={json.dumps(_NGRAM)}"] if drafts else []),
    ]
    # On x86 vLLM comes with Intel's OpenMP.
    preloaded = [*map(str, (python.parents[1] / "lib").glob("libiomp5.so")), *filter(None, [allocator()])]
    # PATH starts with vLLM's own Python and tools, and nothing of this project is in the environment.
    environment = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "PATH": f"{python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "LD_PRELOAD": ":".join(preloaded),
        # Use all processors. By default vLLM keeps one free, which is half of two.
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, sorted(os.sched_getaffinity(0)))),
        "VLLM_CPU_KVCACHE_SPACE": str(_KV_CACHE_GIB),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    return Peer(NAME, command, environment)
