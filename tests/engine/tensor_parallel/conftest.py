"""Processes of ranks, which the tests of a file share: each takes seconds to start."""

from collections.abc import Iterator

import pytest
import transformers

from inflight.model.parallel.workers import Workers

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


@pytest.fixture(scope="package")
def one_worker() -> Iterator[Workers]:
    """Rank 1 of two."""
    workers = Workers(2)
    yield workers
    workers.close()
