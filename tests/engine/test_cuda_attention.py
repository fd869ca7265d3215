"""The attention kernels for GPUs agree with float64, and the engine launches only variants that are compiled and
checked for each card. The tests run in the Triton language's interpreter on the CPU.

They cannot show that the compiled kernels are right, too. `make gpu-check` shows this on a machine with a GPU.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from inflight.model.attention import tiles
from inflight.model.attention.backend import CUDA_KERNELS
from inflight.model.cuda import attention_kernel
from inflight.model.cuda.graphed_forward import CudaGraphs
from inflight.model.cuda.tiling import Layer
from scripts.compile_kernels import variants
from scripts.compile_kernels.compilation import kernel_of, signature
from scripts.reference.dense_attention import CASES, IMAGE_CASES, Case, worst_error
from scripts.reference.dense_attention import Layer as Dense


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


ERRORS = {torch.float32: 1e-5, torch.float16: 5e-3}


@pytest.mark.parametrize("dtype", ERRORS)
@pytest.mark.parametrize("name", CASES)
def test_attention_agrees_with_dense_attention_and_launches_only_what_is_compiled(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorders = {kernel: Recorder(getattr(attention_kernel, kernel)) for kernel in ("_attend", "_combine_parts")}
    for kernel, recorder in recorders.items():
        monkeypatch.setattr(attention_kernel, kernel, recorder)
    case = CASES[name]
    assert worst_error(case, dtype, CUDA_KERNELS.attend) < ERRORS[dtype]
    named = [(kernel_of(v), v.constants, signature(v)) for v in variants.of_layer(layer_of(case, dtype))]
    seen = [(r, constants, arguments) for r in recorders.values() for arguments, constants in r.launches]
    assert seen
    for recorder, constants, arguments in seen:
        types = {
            **{argument: type_of(value) for argument, value in arguments.items()},
            **dict.fromkeys((c for c in constants if c in recorder.arg_names), "constexpr"),
        }
        assert (recorder, constants, types) in named


def test_kernels_are_launched_while_the_device_of_their_tensors_is_the_current_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With KIND_GPU, that device need not be the first GPU, which is the current one of every new thread."""
    current: list[torch.Tensor] = []
    launched: list[int] = []

    @contextmanager
    def device_of(tensor: torch.Tensor) -> Iterator[None]:
        current.append(tensor)
        yield
        current.clear()

    class Kernel:
        def __getitem__(self, grid: Any) -> Any:
            return lambda *arguments, **constants: launched.append(len(current))

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    for kernel in ("_attend", "_combine_parts"):
        monkeypatch.setattr(attention_kernel, kernel, Kernel())
    Dense(CASES["keys in parts"], torch.float32, CUDA_KERNELS.attend).paged()
    # Single tokens, their parts, and the prompts.
    assert launched == [1, 1, 1]


def test_graphs_are_captured_on_the_device_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    devices: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
    monkeypatch.setattr(torch.cuda, "Stream", devices.append)
    CudaGraphs(torch.device("cuda:1"))
    assert devices == [torch.device("cuda:1")]


@pytest.mark.parametrize("name", IMAGE_CASES)
def test_batches_whose_images_are_seen_whole_are_computed_by_torch(name: str) -> None:
    assert worst_error(IMAGE_CASES[name], torch.float32, CUDA_KERNELS.attend) < ERRORS[torch.float32]


def test_keys_are_cut_into_more_parts_for_long_contexts_and_few_rows() -> None:
    from inflight.model.cuda.kernel_attention import parts_for

    assert [parts_for(longest, 1) for longest in (0, 255, 511, 512, 2048, 10**6)] == [1, 1, 1, 2, 8, 32]
    assert [parts_for(10**6, rows) for rows in (1, 16, 17, 100, 512, 1000)] == [32, 32, 30, 5, 1, 1]


def test_tiles_cover_the_given_rows_and_no_others() -> None:
    cut = tiles.make_tiles([0, 1, 2, 9], [5, 1, 10], range(3), 3)
    assert cut.tolist() == [[0, 0, 1, 4], [1, 1, 1, 0], [2, 2, 3, 3], [2, 5, 3, 6], [2, 8, 1, 9]]
    assert tiles.make_tiles([0, 1, 2, 9], [5, 1, 10], range(1, 2), 3).tolist() == [[1, 1, 1, 0]]
    assert tiles.make_tiles([0, 1], [5], range(1, 1), 3).shape == (0, 4)


def test_tiles_have_tokens_of_one_image_or_of_none() -> None:
    sees_to = np.array([0, 0, 6, 6, 6, 6, 0, 0, 0, 4])
    cut = tiles.make_image_tiles([0, 1, 9, 10], [5, 9, 4], sees_to, 3)
    assert cut.tolist() == [
        [0, 0, 1, 4, 0],
        [1, 1, 1, 1, 0],
        [1, 2, 3, 2, 6],
        [1, 5, 1, 5, 6],
        [1, 6, 3, 6, 0],
        [2, 9, 1, 3, 4],
    ]
