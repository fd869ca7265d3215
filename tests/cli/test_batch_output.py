"""Reading an output file after the process was killed at any byte."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight_cli.batch_input import read_lines
from inflight_cli.batch_output import answered, encode
from inflight_cli.errors import CommandError

TEXTS = st.lists(st.text(st.characters(exclude_characters="\r\n", codec="utf-8"), max_size=20), min_size=1, max_size=5)


@given(texts=TEXTS, data=st.data())
def test_whole_lines_are_kept_and_a_torn_one_is_not(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("batch")
    (folder / "in").write_text("".join(text + "\n" for text in texts))
    lines = list(read_lines(folder / "in", "llm", {}))
    answers = [encode(line, {"id": None, "text": text}) for line, text in zip(lines, texts, strict=True)]
    whole = b"".join(answers)
    size = data.draw(st.integers(0, len(whole)))
    (folder / "out").write_bytes(whole[:size])
    assert list(answered(folder / "out", lines)) == answers[: whole[:size].count(b"\n")]


@given(texts=TEXTS, data=st.data())
def test_one_changed_line_of_the_input_is_noticed(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("batch")
    changed = data.draw(st.integers(0, len(texts) - 1))
    others = [text + "!" if index == changed else text for index, text in enumerate(texts)]
    for name, content in (("in", texts), ("other", others)):
        (folder / name).write_text("".join(text + "\n" for text in content))
    lines = read_lines(folder / "in", "llm", {})
    (folder / "out").write_bytes(b"".join(encode(line, {"text": "a"}) for line in lines))
    with pytest.raises(CommandError, match=f"^line {changed + 1} of "):
        list(answered(folder / "out", read_lines(folder / "other", "llm", {})))


def test_model_and_options_belong_to_a_line(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("{}\n")
    digests = {
        line.digest
        for model, sampling in (("llm", {}), ("other", {}), ("llm", {"seed": 1}))
        for line in read_lines(tmp_path / "in", model, sampling)  # type: ignore[arg-type]
    }
    assert len(digests) == 3
