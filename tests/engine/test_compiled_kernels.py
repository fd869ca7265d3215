"""The kernels for GPUs compile without a GPU, for every variant that the engine can ask for.

The machine code uses tensor cores, needs no more shared memory than a card has, and spills no registers.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from inflight.model.attention.backend import CUDA_KERNELS
from inflight.model.cuda import attention_kernel
from inflight.model.cuda.tiling import Layer
from scripts.compile_kernels import variants
from scripts.compile_kernels.card import CARDS
from scripts.compile_kernels.compilation import Compiled, kernel_of, signature
from scripts.compile_kernels.variants import Tile, Variant
from scripts.reference.dense_attention import CASES, Case, worst_error

ROOT = Path(__file__).parents[2]
CHECKED = [case for case in CASES if case != "plain"]
PROMPT = Variant(variants.LAYERS["Llama 3 8B"], Tile.PROMPT)
TOKEN = Variant(variants.LAYERS["Llama 3 8B"], Tile.TOKEN)
GOOD = Compiled(registers=128, spilled_bytes=0, shared_bytes=80 << 10, instructions={"HGMMA": 20}, seconds=1.0)


@pytest.mark.slow
def test_the_critical_variants_compile_well_for_each_card() -> None:
    environment = {**os.environ, "PYTHONPATH": f".:{ROOT / 'model_repository' / 'llm' / '1'}"}
    # The other tests interpret the kernels.
    del environment["TRITON_INTERPRET"]
    command = [sys.executable, "-m", "scripts.compile_kernels"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert f"{len(variants.critical()) * len(CARDS)} compiled, 0 with a problem" in done.stdout


class Recorder:
    """Notes the arguments of each launch of a kernel, which then runs in the interpreter."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self.arg_names = kernel.arg_names
        self.launches: list[tuple[dict[str, Any], dict[str, Any]]] = []
        """The arguments by name, and the constants."""

    def __getitem__(self, grid: Any) -> Any:
        def launch(*arguments: Any, **constants: Any) -> None:
            self.launches.append((dict(zip(self.arg_names, arguments, strict=False)), constants))
            self._kernel[grid](*arguments, **constants)

        return launch


def layer_of(case: Case, dtype: torch.dtype) -> Layer:
    group = case.query_heads // case.shape.num_kv_heads
    widths = case.shape.key_width, case.shape.value_width
    switches = case.window is not None, case.softcap is not None, case.sinks
    return Layer(dtype, group, case.block_size, *widths, *switches)


def type_of(argument: Any) -> str:
    if isinstance(argument, torch.Tensor):
        return "*" + {**variants.DTYPES, torch.int64: "i64"}[argument.dtype]
    if isinstance(argument, float):
        return "fp32"
    if argument is None:
        return "constexpr"
    assert isinstance(argument, int)
    assert abs(argument) < 2**31
    return "i32"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", CHECKED)
def test_the_engine_launches_only_variants_that_the_check_names(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorders = {kernel: Recorder(getattr(attention_kernel, kernel)) for kernel in ("_attend", "_combine_parts")}
    for kernel, recorder in recorders.items():
        monkeypatch.setattr(attention_kernel, kernel, recorder)
    case = CASES[name]
    worst_error(case, dtype, CUDA_KERNELS.attend)
    named = [(kernel_of(v), v.constants, signature(v)) for v in variants.of_layer(layer_of(case, dtype))]
    seen = [(r, constants, arguments) for r in recorders.values() for arguments, constants in r.launches]
    assert seen
    for recorder, constants, arguments in seen:
        types = {
            **{argument: type_of(value) for argument, value in arguments.items()},
            **dict.fromkeys((c for c in constants if c in recorder.arg_names), "constexpr"),
        }
        assert (recorder, constants, types) in named


def test_the_critical_variants_have_every_switch_type_and_tile() -> None:
    chosen = variants.critical()
    assert {variant.tile for variant in chosen} == set(Tile)
    assert {variant.layer.dtype for variant in chosen} == set(variants.DTYPES)
    for switch in ("windowed", "capped", "sinks"):
        assert {getattr(variant.layer, switch) for variant in chosen} == {False, True}
    for dtype in variants.DTYPES:
        assert any(v.layer.dtype == dtype and v.layer.key_width == v.layer.value_width == 256 for v in chosen)
    assert set(map(variants.code, chosen)) <= set(map(variants.code, variants.every()))


def test_bad_machine_code_is_named() -> None:
    a100, h100, _ = CARDS
    assert GOOD.problems(PROMPT, h100) == []
    assert GOOD.problems(PROMPT, a100) == ["no HMMA instruction"]
    bad = Compiled(registers=255, spilled_bytes=8, shared_bytes=228 << 10, instructions={"HMMA": 9}, seconds=1.0)
    assert bad.problems(PROMPT, h100) == [
        "8 bytes spilled",
        "233472 bytes of shared memory; the card has 232448",
        "no HGMMA instruction",
    ]
    # Tiles of one token are too small for it.
    assert bad.problems(TOKEN, h100)[2:] == []
    assert bad.problems(PROMPT, a100)[1:] == ["233472 bytes of shared memory; the card has 166912"]
