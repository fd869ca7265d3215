"""The shortest time of a step, and the limits of the machine that it is computed with."""

import subprocess
from functools import cache
from pathlib import Path

import pytest
from torch.profiler import ProfilerActivity, profile

from inflight import EngineConfig
from inflight.model.cpu.instruction_sets import INSTRUCTION_SETS, instruction_sets
from inflight.model.loading.loader import LoadedModel, load_model
from load_tests.bench.ceilings import Ceilings, ceilings, compiled
from load_tests.bench.engine_step import SETTINGS, Step, Work, products_of, step_of
from load_tests.bench.floor import bytes_of_a_step, floor_milliseconds, operations_of_a_step
from load_tests.bench.step_breakdown import LINEAR
from scripts.shapes import config_of, save

# The steps of the benchmark have token ids below 30,100.
HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, VOCABULARY = 64, 128, 2, 2, 1, 30_208
WIDTH = HIDDEN // HEADS
WEIGHTS = LAYERS * (HIDDEN * HIDDEN * 2 + 2 * HIDDEN * KV_HEADS * WIDTH + 3 * HIDDEN * INNER)
HEAD = HIDDEN * VOCABULARY

needs_avx2 = pytest.mark.skipif(not instruction_sets(), reason="this processor has no AVX2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = config_of(
        "llama-8b",
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
    )
    return save(config, tmp_path_factory.mktemp("model"))


@cache
def loaded(folder: Path, quantization: str | None = None) -> LoadedModel:
    return load_model(EngineConfig(str(folder), **SETTINGS, quantization=quantization))


@needs_avx2
def test_a_step_reads_all_weights_and_the_cached_tokens(folder: Path) -> None:
    token = LAYERS * 2 * KV_HEADS * WIDTH * 2
    assert bytes_of_a_step(loaded(folder), Work("", [(100, 1), (50, 1)])) == 2 * (WEIGHTS + HEAD) + 150 * token
    assert bytes_of_a_step(loaded(folder), Work("", [(0, 40)])) == 2 * (WEIGHTS + HEAD)


@needs_avx2
def test_int8_weights_are_half_of_the_bytes(folder: Path) -> None:
    assert bytes_of_a_step(loaded(folder, "int8"), Work("", [(0, 1)])) == WEIGHTS + HEAD


@needs_avx2
def test_the_head_computes_only_the_last_token_of_a_row(folder: Path) -> None:
    def attention(pairs: int) -> int:
        return LAYERS * pairs * HEADS * 2 * WIDTH

    model = loaded(folder)
    prompt = 2 * (3 * WEIGHTS + HEAD + attention(1 + 2 + 3))
    assert operations_of_a_step(model, Work("", [(0, 3)])) == prompt
    decodes = 2 * (2 * WEIGHTS + 2 * HEAD + attention(101 + 51))
    assert operations_of_a_step(model, Work("", [(100, 1), (50, 1)])) == decodes


@needs_avx2
def test_the_longer_of_bytes_and_operations_is_the_floor(folder: Path) -> None:
    model, work = loaded(folder), Work("", [(0, 3)])
    slow_memory, slow_products = Ceilings(1e6, 1e12, ""), Ceilings(1e12, 1e6, "")
    assert floor_milliseconds(model, work, slow_memory) == pytest.approx(bytes_of_a_step(model, work) / 1e3)
    assert floor_milliseconds(model, work, slow_products) == pytest.approx(operations_of_a_step(model, work) / 1e3)


def products_in(step: Step) -> set[str]:
    """The operators of matrix products that a step calls."""
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        step()
    return {event.key for event in seen.key_averages() if event.key.startswith("inflight::linear")}


@needs_avx2
@pytest.mark.parametrize(("quantization", "kinds"), [(None, {""}), ("int8", {"_int8"}), ("int4", {"_int4", "_int8"})])
def test_the_products_of_a_step_are_those_of_its_weights(
    folder: Path, quantization: str | None, kinds: set[str]
) -> None:
    """With int4 weights, the head has int8 ones."""
    model, work = loaded(folder, quantization), Work("", [(100, 1), (50, 1)])
    alone, in_step = products_in(products_of(model, work)), products_in(step_of(model, model.forward, work))
    assert alone == {f"inflight::linear{kind}" for kind in kinds}
    # A step has fused ones, too. Each of them counts as a product.
    assert alone < in_step <= set(LINEAR)


@needs_avx2
def test_this_machine_has_limits() -> None:
    found = ceilings()
    assert found.instructions == instruction_sets()[0]
    # Even one slow core reads a gigabyte in a second and computes a billion operations.
    assert found.bandwidth > 1e9
    assert found.products > 1e9


@pytest.mark.parametrize(
    ("instruction_set", "product", "count"),
    [("AMX", "tdpbf16ps", 4), ("AVX512_BF16", "vdpbf16ps", 24), ("AVX512", "vfmadd", 24), ("AVX2", "vfmadd", 12)],
)
def test_products_are_computed_in_registers(instruction_set: str, product: str, count: int) -> None:
    """If the compiler kept the sums in memory, their loads would limit the speed."""
    assert set(INSTRUCTION_SETS) == {"AMX", "AVX512_BF16", "AVX512", "AVX2"}
    command = ["objdump", "--disassemble", "--no-show-raw-insn", str(compiled(instruction_set))]
    code = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    found = [line.split("\t")[1] for line in code if product in line]
    assert len(found) == count
    assert not [line for line in found if "(" in line]
