"""Compiles a variant of a kernel and reads from the machine code what it needs."""

import re
import subprocess
import tempfile
import time
from dataclasses import dataclass
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from inflight.model.cuda import attention_kernel
from scripts.compile_kernels.card import Card
from scripts.compile_kernels.variants import DTYPES, Tile, Variant

_TENSOR_CORE = re.compile(r"\b(HMMA|HGMMA|UTCHMMA)\b")
# Without tensor cores, the compiler lets a few values spill where more thread blocks then run at once.
_MAX_SPILLED_FLOAT32 = 16
_OPTIONS = ("num_warps", "num_stages")


@dataclass(frozen=True)
class Compiled:
    """What a compiled variant needs on a card."""

    registers: int
    """Per thread."""
    spilled_bytes: int
    """Data per thread for which there was no register."""
    shared_bytes: int
    instructions: dict[str, int]
    """How often each instruction of tensor cores occurs."""
    seconds: float

    def problems(self, variant: Variant, card: Card) -> list[str]:
        """What is wrong with the variant on the card."""
        found = []
        if self.spilled_bytes > (_MAX_SPILLED_FLOAT32 if variant.layer.dtype == torch.float32 else 0):
            found.append(f"{self.spilled_bytes} bytes spilled")
        if self.shared_bytes > card.shared_bytes:
            found.append(f"{self.shared_bytes} bytes of shared memory; the card has {card.shared_bytes}")
        wanted = {card.instruction} if variant.tile is Tile.PROMPT else {card.instruction, "HMMA"}
        if variant.uses_tensor_cores and not self.instructions.keys() & wanted:
            found.append(f"no {card.instruction} instruction")
        return found


def compile_variant(variant: Variant, card: Card) -> Compiled:
    """Compile a variant for a card, which this machine need not have.

    Raises:
        RuntimeError: the compiler's tool cannot read the machine code.
    """
    started = time.perf_counter()
    kernel = kernel_of(variant)
    constants = dict(variant.constants)
    options = {name: constants.pop(name) for name in _OPTIONS}
    types = signature(variant)
    missing = {name: None for name, kind in types.items() if kind == "constexpr" and name not in constants}
    source = ASTSource(kernel, types, {**constants, **missing}, _aligned(kernel, types))
    compiled = triton.compile(source, target=GPUTarget("cuda", card.capability, 32), options=options)
    usage = _read(compiled.asm["cubin"], "--dump-resource-usage")
    numbers = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", usage)
    if numbers is None:
        raise RuntimeError(f"cuobjdump shows no resource usage: {usage!r}")
    registers, stack, local = map(int, numbers.groups())
    found = _TENSOR_CORE.findall(_read(compiled.asm["cubin"], "--dump-sass"))
    return Compiled(
        registers=registers,
        spilled_bytes=stack + local,
        shared_bytes=compiled.metadata.shared,
        instructions={name: found.count(name) for name in sorted(set(found))},
        seconds=time.perf_counter() - started,
    )


def kernel_of(variant: Variant) -> Any:
    """The kernel in the Triton language."""
    return attention_kernel._combine_parts if variant.tile is Tile.COMBINE else attention_kernel._attend


def signature(variant: Variant) -> dict[str, str]:
    """The compiler's type of each argument, in order."""
    of_model = "*" + DTYPES[variant.layer.dtype]
    known = {
        **dict.fromkeys(("query", "keys", "values", "output"), of_model),
        "sinks": of_model if variant.layer.sinks else "constexpr",
        **dict.fromkeys(("partial", "statistics"), "*fp32"),
        **dict.fromkeys(("block_tables", "tiles"), "*i64"),
        **dict.fromkeys(("scaling", "softcap"), "fp32"),
        **dict.fromkeys(variant.constants, "constexpr"),
    }
    return {name: known.get(name, "i32") for name in kernel_of(variant).arg_names}


def _aligned(kernel: Any, types: dict[str, str]) -> dict[tuple[int], list[list[Any]]]:
    """The arguments that are divisible by 16: all addresses and strides, unless the kernel ignores this."""
    special = {"scaling", "softcap", *kernel.do_not_specialize}
    return {
        (index,): [["tt.divisibility", 16]]
        for index, (name, kind) in enumerate(types.items())
        if kind != "constexpr" and name not in special
    }


def _read(cubin: bytes, option: str) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        tool = triton.knobs.nvidia.cuobjdump.path
        done = subprocess.run([tool, option, file.name], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"cuobjdump {option} failed: {done.stderr.strip()}")
    return done.stdout
