"""Numbers that make no sense are refused before a server starts. A run of nothing would look like a good one."""

import sys
from importlib import import_module

import pytest


@pytest.mark.parametrize(
    ("tool", "option"),
    [
        ("chaos", "--times=0"),
        ("confined", "--users=0"),
        ("fleet", "--rounds=0"),
        ("neighbour", "--rounds=0"),
        ("neighbour", "--seconds=0"),
        ("schemas", "--samples=17"),
        ("schemas", "--max-tokens=0"),
        ("storm", "--users=0"),
    ],
)
def test_a_number_out_of_bounds_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tool: str, option: str
) -> None:
    monkeypatch.setattr(sys, "argv", [tool, option])
    with pytest.raises(SystemExit, match="2"):
        import_module(f"load_tests.{tool}.__main__").main()
    assert f"argument {option.partition('=')[0]}: " in capsys.readouterr().err
