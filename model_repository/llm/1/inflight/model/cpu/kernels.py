"""Builds the C++ kernels once, caches the library and loads it."""

import errno
import hashlib
import logging
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch

from inflight.locked_folder import LockedFolder
from inflight.model.cpu.instruction_sets import compiler_flags, instruction_sets
from inflight.private_files import check_private, private_folder

logger = logging.getLogger(__name__)

# What the system says of a folder in which this user cannot make files. `private_folder` has no such numbers.
_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)
_COMPILERS_ERROR = re.compile(r"^.*\berror:.*$", re.MULTILINE | re.IGNORECASE)
_SOURCES = Path(__file__).with_name("cpp")


@cache
def load_kernels() -> bool:
    """Load the kernels for the fastest instruction set of this processor into `torch.ops.inflight`.

    Returns False, with the reason in the log, if that is not possible. The library is cached in the folder `kernels` of
    `$INFLIGHT_CACHE` or ~/.cache/inflight, which nobody else may write to. Its file name has a hash of everything that
    the build depends on, and its last bytes are a checksum. Where this user cannot write there, each process builds its
    own.
    """
    return load_kernels_for(instruction_sets())


def load_kernels_for(found: Sequence[str]) -> bool:
    """Like `load_kernels`, for a processor with the instruction sets `found`, fastest first."""
    if not found:
        logger.info("this processor has no AVX2: torch's own operators serve")
        return False
    flags = _flags(found[0])
    name = f"kernels-{_key(flags)}.so"
    try:
        try:
            _load(private_folder(_cache_folder()) / name, flags)
        except OSError as error:
            if error.errno not in _NOT_WRITABLE:
                raise
            logger.warning(
                "%s: the C++ kernels are built at each start; set INFLIGHT_CACHE to a writable folder", error
            )
            with tempfile.TemporaryDirectory(prefix="inflight-kernels-") as folder:
                _load(Path(folder) / name, flags)
    except (ImportError, OSError, RuntimeError, subprocess.SubprocessError) as error:
        logger.warning("the C++ kernels cannot be used, torch's own operators serve instead: %s", _main_line(error))
        return False
    return True


def _load(library: Path, flags: Sequence[str]) -> None:
    if not library.exists():
        _build(library, flags)
    check_private(library)
    if not _is_whole(library):
        logger.warning("%s is damaged, or of a version that wrote no checksum; it is built again", library)
        _build(library, flags)
    torch.ops.load_library(library)  # type: ignore[no-untyped-call]


def _cache_folder() -> Path:
    try:
        return Path(os.environ.get("INFLIGHT_CACHE") or "~/.cache/inflight").expanduser().resolve() / "kernels"
    except RuntimeError:  # HOME is not set, and the system does not know the user, as in some containers.
        raise PermissionError(errno.EACCES, "this user has no home folder") from None


def _flags(instruction_set: str) -> list[str]:
    return ["-O3", "-pthread", "-DNDEBUG", *compiler_flags(instruction_set)]


def _key(flags: Sequence[str]) -> str:
    sources = (path.read_text() for path in sorted(_SOURCES.iterdir()))
    parts = (*sources, torch.__version__, str(torch.compiled_with_cxx11_abi()), *flags)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _build(library: Path, flags: Sequence[str]) -> None:
    """Build in a temporary folder, then move the library, so that a second process or a crash does no harm."""
    # It imports setuptools, which takes time that most starts need not spend.
    from torch.utils import cpp_extension

    compiler = os.environ.get("CXX", "c++")
    if shutil.which(compiler) is None:
        raise FileNotFoundError(f"there is no C++ compiler {compiler}; install g++")
    logger.info("building the C++ kernels, once")
    if shutil.which("ninja") is None:
        _add_ninja_to_path()
    folder = LockedFolder(library.parent, "build-")
    try:
        cpp_extension.load(
            name=library.stem.replace("-", "_"),
            sources=[str(_SOURCES / "kernels.cpp")],
            extra_cflags=flags,
            build_directory=str(folder.path),
            is_python_module=False,
            is_standalone=False,
        )
        (built,) = folder.path.glob("*.so")
        built.chmod(0o700)
        # The call above has also loaded it. What is loaded must stay as it is, so that the file may only become longer.
        with built.open("ab") as file:
            file.write(_checksum(built.read_bytes()))
        built.replace(library)
    finally:
        folder.remove()


def _is_whole(library: Path) -> bool:
    """Whether a library is as it was built. Half of one, as a power failure leaves it, would end the process."""
    content = memoryview(library.read_bytes())
    size = len(content) - hashlib.sha256().digest_size
    return size >= 0 and content[size:] == _checksum(content[:size])


def _checksum(content: bytes | memoryview) -> bytes:
    return hashlib.sha256(content).digest()


def _add_ninja_to_path() -> None:
    import ninja  # The package includes the program, but the PATH of a server may lack its folder.

    os.environ["PATH"] = f"{ninja.BIN_DIR}{os.pathsep}{os.environ.get('PATH', '')}"


def _main_line(error: Exception) -> str:
    """The compiler's first error, if there is one in the text, or its last line."""
    # torch says only that it cannot load a library. The reason, such as a file system without execution, is the cause.
    if isinstance(error.__cause__, OSError):
        error = error.__cause__
    text = str(error).strip() or type(error).__name__
    found = _COMPILERS_ERROR.search(text)
    return found[0] if found else text.splitlines()[-1]
