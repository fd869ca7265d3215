"""Stop strings end an output at any character of its text, also within a token."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from inflight import Engine, RequestOutput
from tests.engine.models import drain, greedy
from tests.unit.traces import read_trace

PROMPT = "Once upon a time, there was a little"
OTHERS = ["The capital of France is", "Water boils at"]
LENGTH = 12


@pytest.fixture(scope="module")
def whole(texts: Engine) -> RequestOutput:
    """The answer without stop strings."""
    (output,) = texts.generate(PROMPT, greedy(LENGTH))
    assert len(output.text) > 45
    return output


@pytest.fixture
def engine(texts: Engine) -> Iterator[Engine]:
    yield texts
    drain(texts)


def decoded(engine: Engine, token_ids: list[int]) -> str:
    return str(engine.model.tokenizer.decode(token_ids, skip_special_tokens=True))


@pytest.mark.parametrize(("start", "length"), [(0, 1), (8, 2), (11, 9), (25, 1), (28, 15)])
def test_the_text_ends_before_the_stop_string(engine: Engine, whole: RequestOutput, start: int, length: int) -> None:
    stop = whole.text[start : start + length]
    (output,) = engine.generate(PROMPT, greedy(LENGTH, stop=[stop]))
    assert output.text == whole.text[: whole.text.index(stop)]
    assert output.finish_reason == "stop"


def test_the_last_token_is_the_one_that_completes_the_stop_string(engine: Engine, whole: RequestOutput) -> None:
    stop = whole.text[20:27]
    (output,) = engine.generate(PROMPT, greedy(LENGTH, stop=[stop], logprobs=0))
    assert output.token_ids == whole.token_ids[: len(output.token_ids)]
    assert stop in decoded(engine, output.token_ids)
    assert stop not in decoded(engine, output.token_ids[:-1])
    assert len(output.logprobs or ()) == len(output.token_ids)


def test_of_several_stop_strings_the_first_to_be_complete_counts(engine: Engine, whole: RequestOutput) -> None:
    stops = ["never said", whole.text[35:42], whole.text[15:22]]
    (output,) = engine.generate(PROMPT, greedy(LENGTH, stop=stops))
    assert output.text == whole.text[: whole.text.index(stops[2])]


def test_an_incomplete_stop_string_at_the_end_is_part_of_the_text(engine: Engine, whole: RequestOutput) -> None:
    (output,) = engine.generate(PROMPT, greedy(LENGTH, stop=[whole.text[-4:] + "\N{SNOWMAN}"]))
    assert (output.text, output.finish_reason) == (whole.text, "length")


def test_a_stop_string_in_the_prompt_does_not_count(engine: Engine, whole: RequestOutput) -> None:
    (output,) = engine.generate(PROMPT, greedy(LENGTH, stop=["Once upon"]))
    assert output.text == whole.text


def test_a_stop_string_that_ends_at_max_tokens_counts_as_a_stop(engine: Engine, whole: RequestOutput) -> None:
    (output,) = engine.generate(PROMPT, greedy(LENGTH, stop=[whole.text[-3:]]))
    assert output.finish_reason == "stop"


def test_a_stop_string_does_not_end_other_requests(engine: Engine, whole: RequestOutput) -> None:
    expected = [output.token_ids for output in engine.generate(OTHERS, greedy(LENGTH))]
    params = [greedy(LENGTH, stop=[whole.text[10:14]]), greedy(LENGTH), greedy(LENGTH)]
    stopped, *others = engine.generate([PROMPT, *OTHERS], params)
    assert stopped.finish_reason == "stop"
    assert [output.token_ids for output in others] == expected
    assert {output.finish_reason for output in others} == {"length"}


def test_no_stop_string_counts_before_min_tokens(engine: Engine, whole: RequestOutput) -> None:
    stop = whole.text[5:9]
    (output,) = engine.generate(PROMPT, greedy(LENGTH, stop=[stop], min_tokens=LENGTH))
    assert output.text == whole.text


def test_streamed_text_never_has_a_part_of_the_stop_string(engine: Engine, whole: RequestOutput) -> None:
    stop = whole.text[20:32]
    engine.submit(PROMPT, greedy(LENGTH, stop=[stop]), request_id="a")
    shown = ""
    while engine.has_work:
        for output in engine.step():
            assert output.text.startswith(shown)
            shown = output.text
            assert whole.text[: whole.text.index(stop)].startswith(shown)
    assert shown == whole.text[: whole.text.index(stop)]


def test_no_request_or_block_is_left_after_generate(texts: Engine, whole: RequestOutput) -> None:
    texts.generate([PROMPT] * 2, greedy(LENGTH, stop=[whole.text[10:14]]))
    assert not texts.has_work
    assert texts.stats().blocks_used == 0
    assert texts.stats().running == 0


def test_a_request_that_a_stop_string_or_an_exception_ends_has_ended_in_the_trace(
    texts: Engine, whole: RequestOutput, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(dataclasses.replace(texts.config, trace_file=str(tmp_path / "trace.json")), texts.model)
    engine.generate(PROMPT, greedy(LENGTH, stop=[whole.text[8:10]]))
    steps, wait = iter(range(3)), engine.core.wait_for_batch
    monkeypatch.setattr(engine.core, "wait_for_batch", lambda: (next(steps), wait()))
    with pytest.raises(StopIteration):
        engine.generate(OTHERS, greedy(LENGTH))
    trace = read_trace(tmp_path / "trace.json")
    reasons = [span.args.get("finish_reason") for span in trace.requests.values()]
    assert reasons == ["stop", "cancelled", "cancelled"]
