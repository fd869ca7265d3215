"""The kernels are built for an instruction set that the processor has."""

import logging

import pytest

from inflight.model.cpu import instruction_sets, kernels

OLD = {"sse4_2", "avx"}
AVX2 = OLD | {"avx2", "fma", "f16c"}
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
BF16 = AVX512 | {"avx512_bf16"}
AMX = BF16 | {"amx_tile", "amx_bf16", "amx_int8"}


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        (AMX, ["AMX", "AVX512_BF16", "AVX512", "AVX2"]),
        (BF16, ["AVX512_BF16", "AVX512", "AVX2"]),
        (AVX512, ["AVX512", "AVX2"]),
        (AVX512 - {"avx512bw"}, ["AVX2"]),
        (AVX2, ["AVX2"]),
        (AVX2 - {"fma"}, []),
        (OLD, []),
    ],
)
def test_an_instruction_set_counts_only_if_all_of_its_flags_are_there(flags: set[str], names: list[str]) -> None:
    assert instruction_sets.sets_of(flags) == names


def test_the_compiler_flags_name_the_instruction_set() -> None:
    amx = instruction_sets.compiler_flags("AMX")
    assert {"-mavx512f", "-mavx512bf16", "-mamx-tile", "-mamx-bf16"} <= set(amx)
    assert instruction_sets.compiler_flags("AVX2") == ["-mavx2", "-mfma"]


def test_without_an_instruction_set_the_log_says_that_torch_serves(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert not kernels.load_kernels_for([])
    assert "this processor has no AVX2: torch's own operators serve" in caplog.text
