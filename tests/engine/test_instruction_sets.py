"""The kernels are built for what the processor has."""

import logging

import pytest

from inflight.model.cpu import kernels

OLD = {"sse4_2", "avx"}
AVX2 = OLD | {"avx2", "fma", "f16c"}
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}


@pytest.mark.parametrize(
    ("flags", "newest"),
    [(AVX2, "avx2"), (AVX512, "avx2"), (AVX512 | {"avx512_bf16"}, "avx512f"), (AVX2 - {"fma"}, None), (OLD, None)],
)
def test_the_first_set_that_is_there_as_a_whole(
    monkeypatch: pytest.MonkeyPatch, flags: set[str], newest: str | None
) -> None:
    monkeypatch.setattr(kernels, "_cpu_flags", lambda: frozenset(flags))
    names = kernels.instruction_set()
    assert (names and names[0]) == newest
    assert names is None or flags.issuperset(names)


def test_without_any_the_log_says_so(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(kernels, "_cpu_flags", lambda: frozenset(OLD))
    with caplog.at_level(logging.INFO):
        assert not kernels.load_kernels.__wrapped__()
    assert "this processor has no AVX2: torch's own operators serve" in caplog.text
