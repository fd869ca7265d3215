"""The kernels' thread pool: results do not depend on the number of threads, on who else computes, or on a fork."""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch


@pytest.fixture(autouse=True)
def usual_threads(cpu_kernels: None) -> Iterator[None]:
    yield
    torch.ops.inflight.set_num_threads(torch.get_num_threads())


def products(rows: int = 40) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, 192, generator=generator).bfloat16()
    weight = torch.randn(32 * 50, 192, generator=generator).bfloat16()
    product: torch.Tensor = torch.ops.inflight.linear(x, torch.ops.inflight.pack_weight(weight))
    return product


def test_any_number_of_threads_gives_the_same_result() -> None:
    torch.ops.inflight.set_num_threads(1)
    expected = products()
    for threads in (2, 7, 3, 1, 2):
        torch.ops.inflight.set_num_threads(threads)
        assert all(torch.equal(products(), expected) for _ in range(20)), threads


def test_a_number_of_threads_below_one_is_refused() -> None:
    with pytest.raises(RuntimeError, match="the number of threads is 0, not at least 1"):
        torch.ops.inflight.set_num_threads(0)


def test_python_threads_that_compute_at_once_get_their_own_results() -> None:
    sizes = [1, 3, 16, 40, 65, 130]
    expected = {rows: products(rows) for rows in sizes}
    with ThreadPoolExecutor(4) as pool:
        for rows, result in zip(sizes * 20, pool.map(products, sizes * 20), strict=True):
            assert torch.equal(result, expected[rows])


def test_more_threads_than_processors_beside_a_busy_process() -> None:
    expected = products()
    torch.ops.inflight.set_num_threads(3 * (os.cpu_count() or 1))
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            assert all(torch.equal(products(), expected) for _ in range(200))
        finally:
            busy.kill()


def test_a_forked_process_computes_without_helpers() -> None:
    expected = products()
    child = os.fork()
    if child == 0:
        os._exit(0 if torch.equal(products(), expected) else 1)
    assert os.waitpid(child, 0)[1] == 0


WITHOUT_HELPERS = """
import signal
import torch
from inflight.model.cpu.kernels import load_kernels
assert load_kernels()
torch.ops.inflight.set_num_threads(2)
ones = torch.ones(64, 64).bfloat16()
try:
    torch.ops.inflight.linear(ones, torch.ops.inflight.pack_weight(ones))
except RuntimeError as error:
    print(error, signal.pthread_sigmask(signal.SIG_BLOCK, []))
"""


def test_signals_still_reach_a_thread_that_could_not_start_helpers() -> None:
    no_room_for_stacks = f'ulimit -S -s {1 << 38} && exec "$0" -c "$1"'
    found = subprocess.run(
        ["sh", "-c", no_room_for_stacks, sys.executable, WITHOUT_HELPERS], capture_output=True, text=True
    )
    assert found.stdout.endswith("set()\n"), found.stderr
