"""What the launcher of a server says."""

import io
import sys

import pytest

from scripts.launch.output import say


def test_characters_that_the_terminal_lacks_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", terminal)
    say("caf\u00e9", "end")
    assert terminal.buffer.getvalue() == b"caf\\xe9\nend\n"  # type: ignore[attr-defined]


def test_an_output_that_the_caller_has_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    say("one")
