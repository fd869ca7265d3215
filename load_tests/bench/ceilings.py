"""Measures the limits of this processor and its memory, with all threads together. See ceilings.cpp.

Both are what programs can attain. The bandwidth is that of reading memory from the first byte to the last. The products
are the processor's best instruction for them on registers; on AMX, tile products whose operands come from the second
cache, because a few tiles are all registers that there are.
"""

import ctypes
import hashlib
import os
import shlex
from dataclasses import dataclass
from pathlib import Path

import torch

from inflight.model.cpu.instruction_sets import compiler_flags, instruction_sets
from scripts.launch.cache import build_once, cache_root
from scripts.launch.errors import LauncherError
from scripts.launch.shell import run

SOURCE = Path(__file__).with_name("ceilings.cpp")
LIBRARY = "ceilings.so"
# The work of a round, which takes about a millisecond. All threads read from sixteen times as many bytes.
_BYTES, _MIN_BYTES_OF_THREAD, _MULTIPLE = 2**26, 2**22, 2**9
_OPERATIONS_OF_THREAD = 400_000_000
_ROUNDS = 200


@dataclass(frozen=True)
class Ceilings:
    """The limits of this machine."""

    bandwidth: float
    """Bytes per second that all threads together read from memory."""
    products: float
    """Operations per second of all threads together; a multiplication and an addition are two."""
    instructions: str
    """The instruction set of the products."""

    def __str__(self) -> str:
        return (
            f"memory bandwidth {self.bandwidth / 1e9:.1f} GB/s, "
            f"products with {self.instructions} {self.products / 1e9:.0f} GFLOP/s"
        )


def ceilings() -> Ceilings:
    """Measure the limits. Other work on the machine makes them lower.

    Raises LauncherError if this processor has no AVX2, there is no compiler, or the system does not permit AMX.
    """
    found = instruction_sets()
    if not found:
        raise LauncherError("this processor has no AVX2")
    library = ctypes.CDLL(str(compiled(found[0])))
    threads = torch.get_num_threads()
    for function in (library.bandwidth, library.products):
        function.argtypes, function.restype = [ctypes.c_int, ctypes.c_int64, ctypes.c_int], ctypes.c_double
    products = library.products(threads, _OPERATIONS_OF_THREAD, _ROUNDS)
    if products < 0:
        raise LauncherError(f"the system does not permit {found[0]}")
    bytes_of_thread = max(_BYTES // threads, _MIN_BYTES_OF_THREAD) // _MULTIPLE * _MULTIPLE
    return Ceilings(library.bandwidth(threads, bytes_of_thread, _ROUNDS), products, found[0])


def compiled(instruction_set: str) -> Path:
    """Return the library for an instruction set. It is compiled on first use. Raises LauncherError if that fails."""
    flags = ["-std=c++20", "-O3", "-shared", "-fPIC", "-pthread", *compiler_flags(instruction_set)]
    command = [*shlex.split(os.environ.get("CXX", "c++")), *flags]
    key = hashlib.sha256("\n".join([SOURCE.read_text(), *command]).encode()).hexdigest()[:16]

    def build(folder: Path) -> None:
        run([*command, str(SOURCE), "-o", str(folder / LIBRARY)])

    return build_once(cache_root() / f"ceilings-{key}", build) / LIBRARY
