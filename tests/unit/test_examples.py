"""The examples of property tests do not depend on what else runs."""

import importlib.util
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

CONSTANT = 8_241_977


def examples() -> list[int]:
    found = []

    @settings(max_examples=500)
    @given(st.integers())
    def collect(number: int) -> None:
        found.append(number)

    collect()
    return found


def test_a_module_that_is_imported_changes_no_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = examples()
    file = tmp_path / "constants.py"
    file.write_text(f"CONSTANT = {CONSTANT}\n")
    spec = importlib.util.spec_from_file_location("constants", file)
    assert spec is not None
    monkeypatch.setitem(sys.modules, "constants", importlib.util.module_from_spec(spec))
    assert examples() == before
