"""`make gpu-check` without a GPU: all parts run at a small size, and every result that does not depend on speed is
correct."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from scripts.gpu_check.__main__ import main
from scripts.gpu_check.check_result import CheckResult, table

ENGINE = Path(__file__).parents[3] / "model_repository" / "llm" / "1"


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": f".:{ENGINE}"}
    command = [sys.executable, "-m", "scripts.gpu_check", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.slow
def test_all_parts_run(tmp_path: Path) -> None:
    report = tmp_path / "found.json"
    done = run("--device", "cpu", "--small", "--json", str(report))
    found = {result["what"]: CheckResult(**result) for result in json.loads(report.read_text())["results"]}
    assert not [what for what in found if "broke" in what], done.stderr[-3000:]
    assert all(math.isfinite(result.value) for result in found.values())
    for what, result in found.items():
        if "attention" in what or "float32" in what:
            assert result.bar
            assert result.passed, result
        assert what in done.stdout
    assert {"memory bandwidth of a copy", "requests with transformers' tokens, float32"} <= found.keys()
    assert sum("share of floor" in what for what in found) == 6
    assert sum("temperature 1, top_p 0.95" in what for what in found) == 1


def test_without_a_gpu_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu_check", "--device", "cuda:7", "--json", str(tmp_path / "x.json")])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main() == 1
    assert capsys.readouterr().err == f"error: --device is 'cuda:7', and torch {torch.__version__} sees no GPU\n"
    assert not (tmp_path / "x.json").exists()


def test_findings_are_judged_by_their_bars() -> None:
    good = CheckResult("a", 2.0, "x", min_value=1, max_value=3)
    assert (good.passed, good.bar) == (True, "at least 1 and at most 3")
    assert not CheckResult("b", 0.5, min_value=1).passed
    assert not CheckResult("c", 3.5, max_value=3).passed
    assert not CheckResult("d", float("nan"), min_value=0).passed
    assert CheckResult("e", 5.0).passed
    lines = table([good, CheckResult("b", 0.5, min_value=1), CheckResult("e", 5.0)]).splitlines()
    assert [line.split(" | ")[4] for line in lines[2:]] == ["yes", "**no**", ""]
