"""What clients send cannot fill the log or forge a line of it."""

import io
import logging

import pytest

from serving.log_format import LogFormat


@pytest.fixture
def log() -> tuple[logging.Logger, io.StringIO]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LogFormat())
    logger = logging.Logger("serving")
    logger.addHandler(handler)
    return logger, stream


def test_a_message_is_one_line(log: tuple[logging.Logger, io.StringIO]) -> None:
    log[0].warning("request %s failed", "é\n\x1b[31mE forged\u2028")
    line = log[1].getvalue()
    assert line.startswith("W ")
    assert line.endswith("serving] request é\\n\\x1b[31mE forged\\u2028 failed\n")


def test_a_long_message_keeps_its_beginning_and_its_end(log: tuple[logging.Logger, io.StringIO]) -> None:
    log[0].warning("request %s failed", "a" * 2**20)
    line = log[1].getvalue()
    assert len(line) < 2100
    assert "serving] request aaa" in line
    assert line.endswith("aaa failed\n")


def test_a_long_traceback_keeps_its_beginning_and_its_end(log: tuple[logging.Logger, io.StringIO]) -> None:
    try:
        raise ValueError("a" * 2**20 + " end")
    except ValueError:
        log[0].exception("it failed")
    text = log[1].getvalue()
    assert len(text) < 10_200
    assert "it failed\n  Traceback (most recent call last):\n" in text
    assert text.endswith("a end\n")


def test_no_line_of_a_traceback_looks_like_a_message(log: tuple[logging.Logger, io.StringIO]) -> None:
    try:
        raise ValueError("é\nE 2026-11-28 12:00:00,000 serving] forged\r\x1b[31m\u2028 end")
    except ValueError:
        log[0].exception("it failed")
    message, *traceback = log[1].getvalue().splitlines()
    assert message.endswith("serving] it failed")
    assert all(line.startswith("  ") for line in traceback)
    assert traceback[-2:] == [
        "  ValueError: é",
        "  E 2026-11-28 12:00:00,000 serving] forged\\r\\x1b[31m\\u2028 end",
    ]
