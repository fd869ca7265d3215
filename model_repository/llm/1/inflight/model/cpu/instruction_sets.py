"""The instruction sets that the C++ kernels support, and those that this processor has."""

from collections.abc import Set
from pathlib import Path

_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "fma")
_COMPILERS_NAMES = {
    "avx512_bf16": "avx512bf16",
    "amx_tile": "amx-tile",
    "amx_bf16": "amx-bf16",
}

INSTRUCTION_SETS: dict[str, tuple[str, ...]] = {
    "AMX": (*_AVX512, "avx512_bf16", "amx_tile", "amx_bf16"),
    "AVX512_BF16": (*_AVX512, "avx512_bf16"),
    "AVX512": _AVX512,
    "AVX2": ("avx2", "fma"),
}
"""The processor flags that each instruction set needs, in Linux's spelling. The fastest set comes first."""


def instruction_sets() -> list[str]:
    """The names of the instruction sets that this processor has, fastest first."""
    return sets_of(_cpu_flags())


def sets_of(flags: Set[str]) -> list[str]:
    """The names of the instruction sets that a processor with these flags has, fastest first."""
    return [name for name, needed in INSTRUCTION_SETS.items() if flags >= set(needed)]


def compiler_flags(name: str) -> list[str]:
    """The flags with which GCC and Clang use an instruction set."""
    return [f"-m{_COMPILERS_NAMES.get(flag, flag)}" for flag in INSTRUCTION_SETS[name]]


def _cpu_flags() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line for line in lines if line.startswith("flags")), "").split())
