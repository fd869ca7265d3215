"""The command lines of the tools: what they refuse, and how they end."""

import re
import sys
from importlib import import_module
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("tool", "option"),
    [
        ("chaos", "--times=0"),
        ("confined", "--users=0"),
        ("fleet", "--balancers=none,haproxi"),
        ("fleet", "--rounds=0"),
        ("neighbour", "--rounds=0"),
        ("neighbour", "--seconds=1e300"),
        ("neighbour", "--seconds=0"),
        ("schemas", "--samples=17"),
        ("schemas", "--max-tokens=0"),
        ("schemas", "--temperature=nan"),
        ("simulate.prediction", "--requests=0"),
        ("storm", "--requests=100000000000000000000"),
        ("storm", "--seed=-1"),
        ("storm", "--users=0"),
        ("tune.grid", "--requests=0"),
        ("tune.grid", "--requests=32"),
        ("tune.grid", "--seeds=0"),
        ("tune.grid", "--users=0"),
    ],
)
def test_a_number_out_of_bounds_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tool: str, option: str
) -> None:
    """A run of nothing would look like a good one."""
    monkeypatch.setattr(sys, "argv", [tool, option])
    module = tool if "." in tool else f"{tool}.__main__"
    with pytest.raises(SystemExit, match="2"):
        import_module(f"load_tests.{module}").main()
    assert f"argument {option.partition('=')[0]}: " in capsys.readouterr().err


def test_kill_ends_every_tool_that_starts_servers_like_ctrl_c() -> None:
    """Otherwise its folders, and the memory group of `confined`, are left behind."""
    folder = Path(__file__).parents[2] / "load_tests"
    programs = [path for path in folder.rglob("*.py") if '__name__ == "__main__"' in path.read_text()]
    starting = [path for path in programs if re.search(r"\b(triton_server|TritonServer|Fleet)\(", path.read_text())]
    assert folder / "schemas" / "__main__.py" in starting
    assert [path for path in starting if not re.search(r"end_like_ctrl_c\(\)|SIGTERM", path.read_text())] == []
