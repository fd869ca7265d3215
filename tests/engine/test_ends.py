"""When an output ends: end-of-sequence and stop tokens, a least and a most number of tokens."""

import json
import shutil
from pathlib import Path

import pytest

from inflight import Engine, SamplingParams
from tests.engine.models import Tiny, alone, greedy, make_engine, make_prompt

PROMPT = make_prompt(12)


def first_new(tokens: list[int], start: int) -> int:
    """The place, from `start` on, of a token that has not come before."""
    return next(i for i in range(start, len(tokens)) if tokens[i] not in tokens[:i])


@pytest.fixture(scope="module")
def endless(tiny: Tiny) -> list[int]:
    """What the model says to the prompt if nothing stops it."""
    return alone(tiny.engine(), PROMPT, greedy(40, ignore_eos=True))


@pytest.fixture(scope="module")
def eos_at(endless: list[int]) -> int:
    """The place of the token that `ending` takes for the end."""
    return first_new(endless, 4)


@pytest.fixture(scope="module")
def ending(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory, endless: list[int], eos_at: int) -> Engine:
    """The same model, but it has two end-of-sequence tokens and the second comes up in its answer."""
    folder = Path(shutil.copytree(tiny.folder, tmp_path_factory.mktemp("ending") / "model"))
    config = json.loads((folder / "generation_config.json").read_text())
    config["eos_token_id"] = [2, endless[eos_at]]
    (folder / "generation_config.json").write_text(json.dumps(config))
    return make_engine(folder)


def test_an_end_of_sequence_token_ends_the_output_and_is_its_last(
    ending: Engine, endless: list[int], eos_at: int
) -> None:
    (output,) = ending.generate(PROMPT, greedy(40))
    assert output.token_ids == endless[: eos_at + 1]
    assert output.finish_reason == "stop"
    assert ending.stats().blocks_used == 0


def test_ignore_eos_goes_on_to_the_last_token_allowed(ending: Engine, endless: list[int]) -> None:
    (output,) = ending.generate(PROMPT, greedy(40, ignore_eos=True))
    assert (output.token_ids, output.finish_reason) == (endless, "length")


def test_an_end_that_comes_with_the_last_token_counts_as_a_stop(ending: Engine, eos_at: int) -> None:
    (output,) = ending.generate(PROMPT, greedy(eos_at + 1))
    assert output.finish_reason == "stop"
    (output,) = ending.generate(PROMPT, greedy(eos_at))
    assert output.finish_reason == "length"


def test_stop_tokens_end_the_output_too(ending: Engine, endless: list[int]) -> None:
    stop_at = first_new(endless, 2)
    (output,) = ending.generate(PROMPT, greedy(40, stop_token_ids=[endless[stop_at]]))
    assert (output.token_ids, output.finish_reason) == (endless[: stop_at + 1], "stop")


def test_stop_tokens_count_even_if_the_end_is_ignored(ending: Engine, endless: list[int], eos_at: int) -> None:
    stop_at = first_new(endless, eos_at + 1)
    params = greedy(40, stop_token_ids=[endless[stop_at]], ignore_eos=True)
    assert alone(ending, PROMPT, params) == endless[: stop_at + 1]


def test_stop_tokens_of_one_request_do_not_end_another(ending: Engine, endless: list[int]) -> None:
    params = [greedy(40, ignore_eos=True), greedy(40, stop_token_ids=[endless[0]]), greedy(40, ignore_eos=True)]
    outputs = ending.generate([PROMPT] * 3, params)
    assert [output.token_ids for output in outputs] == [endless, endless[:1], endless]


def test_before_min_tokens_no_end_is_sampled(ending: Engine, endless: list[int], eos_at: int) -> None:
    end = endless[eos_at]
    (output,) = ending.generate(PROMPT, greedy(40, min_tokens=eos_at + 5))
    assert output.token_ids[:eos_at] == endless[:eos_at]
    assert end not in output.token_ids[: eos_at + 5]
    assert len(output.token_ids) > eos_at + 5


def test_after_min_tokens_the_end_is_allowed_at_once(ending: Engine, endless: list[int], eos_at: int) -> None:
    assert alone(ending, PROMPT, greedy(40, min_tokens=eos_at)) == endless[: eos_at + 1]


def test_min_tokens_keeps_sampled_ends_away_too(tiny: Tiny) -> None:
    """Nearly every token is a stop token; with so high a temperature one of them would come first."""
    stops = list(range(10, 160))
    (output,) = tiny.engine().generate(
        PROMPT,
        SamplingParams(max_tokens=60, min_tokens=30, temperature=50.0, seed=1, stop_token_ids=stops, ignore_eos=True),
    )
    assert max(output.token_ids[:30]) < 10
    assert output.finish_reason == "stop"
    assert output.token_ids[-1] in stops


def test_min_tokens_of_one_request_do_not_hold_up_another(ending: Engine, endless: list[int], eos_at: int) -> None:
    outputs = ending.generate([PROMPT] * 2, [greedy(40, min_tokens=30), greedy(40)])
    assert len(outputs[0].token_ids) >= 30
    assert outputs[1].token_ids == endless[: eos_at + 1]


def test_one_token_may_be_all_that_is_asked_for(tiny: Tiny, endless: list[int]) -> None:
    engine = tiny.engine()
    assert alone(engine, PROMPT, greedy(1)) == endless[:1]
    assert engine.stats().steps == 1
