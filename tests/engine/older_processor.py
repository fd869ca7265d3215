"""A pytest plugin that builds the C++ kernels for a processor whose newest instruction set is `$NEWEST`."""

import os

from load_tests.bench.instruction_sets import as_if_newest

as_if_newest(os.environ["NEWEST"])
