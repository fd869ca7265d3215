"""How many threads torch's own operators use."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Compute torch's own operators in this thread.

    OpenMP's threads wait awake for the next operator, on the cores that the threads of the kernels need.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
