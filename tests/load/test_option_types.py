"""Options of the load tests."""

import argparse
import re
from pathlib import Path

import pytest

from load_tests.option_types import (
    MOST,
    count,
    count_or_none,
    positive,
    read_levels,
    results_file,
    results_folder,
    seed,
)


def test_a_folder_for_results_may_be_made_later(tmp_path: Path) -> None:
    assert results_folder("results") == Path("results")
    assert results_folder(str(tmp_path / "a" / "b")) == tmp_path / "a" / "b"
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(argparse.ArgumentTypeError, match=r"file/results': nothing can be written to .*/file$"):
        results_folder(str(tmp_path / "file" / "results"))


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert results_file(str(tmp_path / "file")) == tmp_path / "file"
    assert results_file(str(tmp_path / "new" / "file.json")) == tmp_path / "new" / "file.json"
    with pytest.raises(argparse.ArgumentTypeError, match=r"nothing can be written to .*/file$"):
        results_file(str(tmp_path / "file" / "file.json"))
    with pytest.raises(argparse.ArgumentTypeError, match=r"is a folder; it must be a file"):
        results_file(str(tmp_path))


@pytest.mark.parametrize("text", ["0", "-1", "", "x", "1.5", "1_000", "nan"])
def test_a_count_is_at_least_one(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=f"must be a whole number of at least 1, not '{text}'"):
        count(text)


@pytest.mark.parametrize("text", [str(MOST + 1), "1" + 20 * "0", 5000 * "9"], ids=["one more", "1e20", "long"])
def test_a_count_fits_into_memory(text: str) -> None:
    assert (count(str(MOST)), count_or_none("0"), seed(str(2**32 - 1))) == (MOST, 0, 2**32 - 1)
    with pytest.raises(argparse.ArgumentTypeError, match=f"must be a whole number of at most {MOST}, not '{text}'"):
        count(text)
    with pytest.raises(argparse.ArgumentTypeError, match=f"of at most {2**32 - 1}, not '{2**32}'"):
        seed(str(2**32))


@pytest.mark.parametrize("text", ["0", "-1", "-inf", "nan", "x", "", "1e-308"])
def test_a_positive_number_is_not_too_small(text: str) -> None:
    assert (positive("1e-9"), positive("1e9")) == (1e-9, 1e9)
    with pytest.raises(argparse.ArgumentTypeError, match=f"must be a number of at least 1e-09, not '{text}'"):
        positive(text)


@pytest.mark.parametrize("text", ["inf", "1e10", "1e308", 400 * "9"], ids=["inf", "1e10", "1e308", "long"])
def test_a_positive_number_is_not_too_large(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=re.escape(f"must be a number of at most 1e+09, not '{text}'")):
        positive(text)


def test_levels_of_users() -> None:
    assert read_levels("16") == [16]
    assert read_levels("1,8,32") == [1, 8, 32]
    for text in ("", "0", "1,", "1,x", "-1"):
        with pytest.raises(argparse.ArgumentTypeError, match="at least 1"):
            read_levels(text)
    with pytest.raises(argparse.ArgumentTypeError, match="'8,16,08' has 8 users 2 times"):
        read_levels("8,16,08")
