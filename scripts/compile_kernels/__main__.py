"""`python -m scripts.compile_kernels`: compile the kernels for GPUs and check the machine code.

It needs the package triton, but no GPU. For each variant and card, it prints registers, shared memory and instructions
of tensor cores. A variant fails if it spills registers, needs more shared memory than the card has, or does not use
tensor cores in half precision. Without `--all`, a few critical variants are compiled, which takes half a minute.
"""

import argparse
import itertools
import multiprocessing
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from inflight.cpu_count import usable_cpus
from scripts.compile_kernels import variants
from scripts.compile_kernels.card import CARDS, Card
from scripts.compile_kernels.compilation import Compiled, compile_variant
from scripts.compile_kernels.variants import Variant


@dataclass(frozen=True)
class Row:
    """A variant that was compiled for a card."""

    variant: Variant
    card: Card
    compiled: Compiled

    @property
    def problems(self) -> list[str]:
        return self.compiled.problems(self.variant, self.card)


def compile_all(chosen: list[Variant], cards: tuple[Card, ...] = CARDS) -> Iterator[Row]:
    """Compile variants for cards, on all processors of this process, and yield the results as they come."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(usable_cpus(), mp_context=context) as pool:
        jobs = {
            pool.submit(compile_variant, variant, card): (variant, card)
            for variant, card in itertools.product(chosen, cards)
        }
        for job in as_completed(jobs):
            yield Row(*jobs[job], job.result())


def table(rows: list[Row]) -> Table:
    """All results, a row for each variant and card."""
    found = Table()
    for column in ("variant", "card", "registers", "spilled", "shared, KB", "tensor cores", "s", "problem"):
        found.add_column(column)
    for row in rows:
        made = row.compiled
        found.add_row(
            str(row.variant),
            row.card.name,
            f"{made.registers}",
            f"{made.spilled_bytes}",
            f"{made.shared_bytes / 1024:.0f}",
            ", ".join(f"{count} {name}" for name, count in made.instructions.items()),
            f"{made.seconds:.1f}",
            "; ".join(row.problems),
        )
    return found


def main() -> int:
    """Compile, print the table and return the exit status: 1 if a variant has a problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="compile every variant; takes 15 minutes")
    chosen = variants.every() if parser.parse_args().all else variants.critical()
    rows = list(tqdm(compile_all(chosen), total=len(chosen) * len(CARDS), unit="variant"))
    order = {variant: number for number, variant in enumerate(chosen)}
    rows.sort(key=lambda row: (order[row.variant], row.card.capability))
    Console(width=160).print(table(rows))
    failed = [row for row in rows if row.problems]
    print(f"{len(rows)} compiled, {len(failed)} with a problem")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
