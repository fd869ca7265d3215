"""An output ends at an end-of-sequence token, a stop token or `max_tokens`, and never before `min_tokens`."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from inflight import Engine, SamplingParams
from scripts.reference.tiny_models import greedy as reference
from tests.engine.models import Tiny, alone, greedy, make_engine, make_prompt
from tests.unit.tiny_tokenizers import byte_level

PROMPT = make_prompt(12)


def first_new(tokens: list[int], start: int) -> int:
    """The first index, from `start` on, of a token that does not occur earlier."""
    return next(i for i in range(start, len(tokens)) if tokens[i] not in tokens[:i])


@pytest.fixture(scope="module")
def endless(tiny: Tiny) -> list[int]:
    """The answer of 40 tokens that the model gives if nothing stops it."""
    return alone(tiny.engine(), PROMPT, greedy(40, ignore_eos=True))


@pytest.fixture(scope="module")
def eos_at(endless: list[int]) -> int:
    """The index in `endless` of the token that ends the sequence in the model `ending`."""
    return first_new(endless, 4)


@pytest.fixture(scope="module")
def ending(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory, endless: list[int], eos_at: int) -> Engine:
    """The same model with two end-of-sequence tokens. The second one occurs in its answer."""
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


def test_ignore_eos_continues_until_max_tokens(ending: Engine, endless: list[int]) -> None:
    (output,) = ending.generate(PROMPT, greedy(40, ignore_eos=True))
    assert (output.token_ids, output.finish_reason) == (endless, "length")


def test_an_end_of_sequence_at_max_tokens_counts_as_a_stop(ending: Engine, eos_at: int) -> None:
    (output,) = ending.generate(PROMPT, greedy(eos_at + 1))
    assert output.finish_reason == "stop"
    (output,) = ending.generate(PROMPT, greedy(eos_at))
    assert output.finish_reason == "length"


def test_a_stop_token_ends_the_output_and_is_its_last(ending: Engine, endless: list[int]) -> None:
    stop_at = first_new(endless, 2)
    (output,) = ending.generate(PROMPT, greedy(40, stop_token_ids=[endless[stop_at]]))
    assert (output.token_ids, output.finish_reason) == (endless[: stop_at + 1], "stop")


def test_stop_tokens_end_the_output_even_with_ignore_eos(ending: Engine, endless: list[int], eos_at: int) -> None:
    stop_at = first_new(endless, eos_at + 1)
    params = greedy(40, stop_token_ids=[endless[stop_at]], ignore_eos=True)
    assert alone(ending, PROMPT, params) == endless[: stop_at + 1]


def test_stop_tokens_of_one_request_do_not_end_another(ending: Engine, endless: list[int]) -> None:
    params = [greedy(40, ignore_eos=True), greedy(40, stop_token_ids=[endless[0]]), greedy(40, ignore_eos=True)]
    outputs = ending.generate([PROMPT] * 3, params)
    assert [output.token_ids for output in outputs] == [endless, endless[:1], endless]


def test_no_end_of_sequence_is_sampled_before_min_tokens(ending: Engine, endless: list[int], eos_at: int) -> None:
    end = endless[eos_at]
    (output,) = ending.generate(PROMPT, greedy(40, min_tokens=eos_at + 5))
    assert output.token_ids[:eos_at] == endless[:eos_at]
    assert end not in output.token_ids[: eos_at + 5]
    assert len(output.token_ids) > eos_at + 5


def test_the_first_token_after_min_tokens_may_be_the_end(ending: Engine, endless: list[int], eos_at: int) -> None:
    assert alone(ending, PROMPT, greedy(40, min_tokens=eos_at)) == endless[: eos_at + 1]


def test_no_stop_token_is_sampled_before_min_tokens_at_a_high_temperature(tiny: Tiny) -> None:
    """Nearly every token is a stop token. At this temperature, one of them would be sampled first."""
    stops = list(range(10, 160))
    (output,) = tiny.engine().generate(
        PROMPT,
        SamplingParams(max_tokens=60, min_tokens=30, temperature=50.0, seed=1, stop_token_ids=stops, ignore_eos=True),
    )
    assert max(output.token_ids[:30]) < 10
    assert output.finish_reason == "stop"
    assert output.token_ids[-1] in stops


def test_min_tokens_of_one_request_does_not_affect_another(ending: Engine, endless: list[int], eos_at: int) -> None:
    outputs = ending.generate([PROMPT] * 2, [greedy(40, min_tokens=30), greedy(40)])
    assert len(outputs[0].token_ids) >= 30
    assert outputs[1].token_ids == endless[: eos_at + 1]


def test_a_request_for_one_token_takes_one_step(tiny: Tiny, endless: list[int]) -> None:
    engine = tiny.engine()
    assert alone(engine, PROMPT, greedy(1)) == endless[:1]
    assert engine.stats().steps == 1


def test_a_beam_names_the_stop_token_that_ended_it(tiny: Tiny) -> None:
    engine = tiny.engine()
    (free,) = engine.generate([PROMPT], SamplingParams(max_tokens=6, beam_width=2))
    stop = free.beams[0].token_ids[0]
    params = SamplingParams(max_tokens=6, beam_width=2, stop_token_ids=(stop,))
    (output,) = engine.generate([PROMPT], params)
    ended = [beam for beam in output.beams if beam.finish_reason == "stop"]
    assert ended
    assert all(beam.stop_reason == beam.token_ids[-1] == stop for beam in ended)
    assert all(beam.stop_reason is None for beam in output.beams if beam.finish_reason != "stop")
    assert output.stop_reason == output.beams[0].stop_reason


def variant(tiny: Tiny, folder: Path, generation: dict[str, object] | None, **config: object) -> Path:
    """The tiny model with another generation_config.json, or none, and these fields in its config.json."""
    shutil.copytree(tiny.folder, folder)
    if generation is None:
        (folder / "generation_config.json").unlink()
    else:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    written = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**written, **config}))
    return folder


def test_without_a_generation_config_the_config_comes_before_the_tokenizer(tiny: Tiny, tmp_path: Path) -> None:
    folder = variant(tiny, tmp_path / "model", None, eos_token_id=[7, 9], repetition_penalty=1.3)
    PreTrainedTokenizerFast(tokenizer_object=byte_level(), eos_token="!").save_pretrained(folder)
    model = make_engine(folder).model
    assert model.tokenizer.eos_token_id not in (None, 7, 9)
    assert model.eos_token_ids == {7, 9}
    assert model.defaults.repetition_penalty == 1.3


def test_negative_end_of_sequence_tokens_are_left_out(
    tiny: Tiny, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = make_engine(variant(tiny, tmp_path / "model", {"eos_token_id": [2, -1]}))
    assert engine.model.eos_token_ids == {2}
    assert "eos_token_id of generation_config.json has -1" in caplog.text
    assert len(alone(engine, PROMPT, greedy(6, min_tokens=6))) == 6


@pytest.mark.parametrize("value", ["2", [2, None], 2.5])
def test_end_of_sequence_tokens_must_be_tokens(tiny: Tiny, tmp_path: Path, value: object) -> None:
    with pytest.raises(ValueError, match=r"eos_token_id of generation_config.json is .*; it must be a token id"):
        make_engine(variant(tiny, tmp_path / "model", {"eos_token_id": value}))


def test_a_damaged_generation_config_is_named(tiny: Tiny, tmp_path: Path) -> None:
    folder = variant(tiny, tmp_path / "model", {})
    (folder / "generation_config.json").write_text('{"eos_token_id": 2,}')
    with pytest.raises(ValueError, match=r"its generation_config.json cannot be read"):
        make_engine(folder)


@pytest.mark.parametrize("content", ['{"watermarking_config": 5}', "[" * 100_000], ids=["number", "deep"])
def test_a_generation_config_that_no_code_can_read_is_named(tiny: Tiny, tmp_path: Path, content: str) -> None:
    folder = variant(tiny, tmp_path / "model", {})
    (folder / "generation_config.json").write_text(content)
    with pytest.raises(ValueError, match=r"its generation_config.json cannot be read"):
        make_engine(folder)


@pytest.mark.parametrize("value", [[0, 1], "0"])
def test_a_padding_token_that_no_code_can_read_is_blamed_on_its_file(tiny: Tiny, tmp_path: Path, value: object) -> None:
    folder = variant(tiny, tmp_path / "model", {"eos_token_id": 2, "pad_token_id": value})
    with pytest.raises(ValueError, match=r"its generation_config.json cannot be read"):
        make_engine(folder)


def test_suppressed_tokens_are_left_out_as_in_generate(tiny: Tiny, tmp_path: Path, endless: list[int]) -> None:
    """Gemma 4 comes with such a list."""
    folder = variant(tiny, tmp_path / "model", {"eos_token_id": 2, "suppress_tokens": [*endless[:3], 10**6]})
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
    wanted = reference(model, PROMPT, 20)
    engine = make_engine(folder)
    assert alone(engine, PROMPT, greedy(20)) == wanted
    assert set(endless[:3]).isdisjoint(wanted)
    (output,) = engine.generate(PROMPT, SamplingParams(max_tokens=20, beam_width=3))
    ids = torch.tensor([PROMPT])
    beams = model.generate(ids, num_beams=3, num_return_sequences=3, max_new_tokens=20, do_sample=False)
    assert [list(beam.token_ids) for beam in output.beams] == beams[:, len(PROMPT) :].tolist()
