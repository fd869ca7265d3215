"""Options of the load tests."""

import argparse
from pathlib import Path

import pytest

from load_tests.option_types import results_folder


def test_a_folder_for_results_may_be_made_later(tmp_path: Path) -> None:
    assert results_folder("results") == Path("results")
    assert results_folder(str(tmp_path / "a" / "b")) == tmp_path / "a" / "b"
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(argparse.ArgumentTypeError, match=r"file/results': nothing can be written to .*/file$"):
        results_folder(str(tmp_path / "file" / "results"))
