"""The kernels for GPUs compile without a GPU, for every variant that the engine can ask for.

The machine code uses tensor cores, needs no more shared memory than a card has, and spills no registers.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.compile_kernels import variants
from scripts.compile_kernels.card import CARDS
from scripts.compile_kernels.compilation import Compiled
from scripts.compile_kernels.variants import Tile, Variant

ROOT = Path(__file__).parents[2]
PROMPT = Variant(variants.LAYERS["Llama 3 8B"], Tile.PROMPT)
TOKEN = Variant(variants.LAYERS["Llama 3 8B"], Tile.TOKEN)
GOOD = Compiled(registers=128, spilled_bytes=0, shared_bytes=80 << 10, instructions={"HGMMA": 20}, seconds=1.0)


# All variants for all cards take minutes, so each is compiled for one card. One process, as others use the other cores.
IN_TURN = """
import sys
from scripts.compile_kernels import __main__ as command

compile_all, command.usable_cpus = command.compile_all, lambda: 1

def in_turn(chosen):
    for number, card in enumerate(command.CARDS):
        yield from compile_all(chosen[number :: len(command.CARDS)], (card,))

command.compile_all = in_turn
sys.exit(command.main())
"""


@pytest.mark.slow
def test_the_critical_variants_compile_well_for_the_cards_in_turn() -> None:
    environment = {**os.environ, "PYTHONPATH": f".:{ROOT / 'model_repository' / 'llm' / '1'}"}
    # The other tests interpret the kernels.
    del environment["TRITON_INTERPRET"]
    command = [sys.executable, "-c", IN_TURN]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert f"{len(variants.critical())} compiled, 0 with a problem" in done.stdout
    for card in CARDS:
        prompts = [line for line in done.stdout.splitlines() if "tokens of a prompt" in line and card.name in line]
        assert any(card.instruction in line for line in prompts), done.stdout


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
