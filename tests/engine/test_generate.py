"""`generate` takes a list of prompts and returns a list of outputs in the same order."""

import pytest
import torch

from inflight import Engine, InvalidRequest, SamplingParams
from inflight.text.chat import Chat
from tests.engine.models import Tiny, alone, drain, greedy, make_prompt, tokens

PROMPTS = [make_prompt(length, seed=length) for length in (3, 25, 1, 60, 14)]


@pytest.fixture(scope="module")
def engine(tiny: Tiny) -> Engine:
    return tiny.engine()


def test_outputs_come_in_the_order_of_the_prompts(engine: Engine) -> None:
    lengths = [9, 2, 30, 1, 5]
    outputs = engine.generate(PROMPTS, [greedy(length) for length in lengths])
    assert [output.prompt_ids for output in outputs] == PROMPTS
    assert [len(output.token_ids) for output in outputs] == lengths
    assert {output.finish_reason for output in outputs} == {"length"}
    assert tokens(outputs) == [
        alone(engine, prompt, greedy(length)) for prompt, length in zip(PROMPTS, lengths, strict=True)
    ]


def test_one_set_of_parameters_applies_to_all_prompts(engine: Engine) -> None:
    outputs = engine.generate(PROMPTS, greedy(4))
    assert [len(output.token_ids) for output in outputs] == [4] * 5


def test_without_parameters_an_output_is_greedy_and_has_sixteen_tokens(engine: Engine) -> None:
    assert tokens(engine.generate(PROMPTS)) == tokens(engine.generate(PROMPTS, greedy(16)))


def test_sequences_of_tokens_can_be_forbidden_as_in_transformers(tiny: Tiny, engine: Engine) -> None:
    prompt = PROMPTS[1]
    free = alone(engine, prompt, greedy(12))
    banned = [[free[0]], free[3:5], [*free[6:9], 60]]
    expected = tiny.module.generate(
        torch.tensor([prompt]), max_new_tokens=12, do_sample=False, bad_words_ids=banned, pad_token_id=0
    )
    found = alone(engine, prompt, greedy(12, bad_words_ids=banned))
    assert found == expected[0, len(prompt) :].tolist()
    assert free[0] not in found


def test_a_single_prompt_gives_a_list_of_one(engine: Engine) -> None:
    (output,) = engine.generate(PROMPTS[0], greedy(4))
    assert output.token_ids == alone(engine, PROMPTS[0], greedy(4))


def test_prompts_may_be_tuples(engine: Engine) -> None:
    (output,) = engine.generate((5, 6, 7), greedy(4))
    assert output.token_ids == alone(engine, [5, 6, 7], greedy(4))


def test_no_prompts_give_no_outputs(engine: Engine) -> None:
    assert engine.generate([]) == []


def test_a_list_of_parameters_must_have_one_entry_per_prompt(engine: Engine) -> None:
    with pytest.raises(InvalidRequest, match="params has 2 entries for 5 prompts"):
        engine.generate(PROMPTS, [greedy(4)] * 2)
    assert not engine.has_work


def test_nothing_is_computed_if_one_prompt_is_refused(engine: Engine) -> None:
    steps = engine.stats().steps
    with pytest.raises(InvalidRequest, match="prompt is empty"):
        engine.generate([PROMPTS[0], []], greedy(4))
    assert not engine.has_work
    assert engine.stats().steps == steps


def test_the_progress_bar_counts_requests(engine: Engine, capfd: pytest.CaptureFixture[str]) -> None:
    engine.generate(PROMPTS, greedy(2), progress=True)
    assert "5/5" in capfd.readouterr().err


def test_there_is_no_progress_bar_by_default(engine: Engine, capfd: pytest.CaptureFixture[str]) -> None:
    engine.generate(PROMPTS, greedy(2))
    assert capfd.readouterr().err == ""


def test_more_prompts_than_the_queue_holds_are_served(tiny: Tiny) -> None:
    engine = tiny.engine(max_queue_size=2, max_num_seqs=2)
    assert tokens(engine.generate(PROMPTS, greedy(6))) == [alone(engine, prompt, greedy(6)) for prompt in PROMPTS]


def test_requests_that_were_submitted_before_generate_go_on(engine: Engine) -> None:
    expected = alone(engine, PROMPTS[1], greedy(40))
    engine.submit(PROMPTS[1], greedy(40), request_id="before")
    engine.step()
    assert tokens(engine.generate(PROMPTS[:1], greedy(5))) == [alone(engine, PROMPTS[0], greedy(5))]
    assert drain(engine)["before"].token_ids == expected


def test_another_request_that_finishes_during_generate_is_returned_by_the_next_step(engine: Engine) -> None:
    expected = alone(engine, PROMPTS[1], greedy(3))
    engine.submit(PROMPTS[1], greedy(3), request_id="other")
    engine.generate(PROMPTS[:1], greedy(12))
    assert engine.has_work
    steps = engine.stats().steps
    (output,) = engine.step()
    assert (output.request_id, output.token_ids, output.finish_reason) == ("other", expected, "length")
    assert engine.stats().steps == steps
    assert not engine.has_work


def test_an_interrupt_ends_only_the_requests_of_generate(tiny: Tiny) -> None:
    engine = tiny.engine(max_num_seqs=3)
    expected = alone(engine, PROMPTS[1], greedy(12))
    engine.submit(PROMPTS[1], greedy(12), request_id="other")
    steps = iter(range(4))

    def interrupt(*_: object) -> None:
        if next(steps, None) is None:
            handle.remove()
            raise KeyboardInterrupt

    handle = engine.model.module.register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        engine.generate(PROMPTS, greedy(30))
    assert (engine.stats().running, engine.stats().waiting) == (1, 0)
    assert {name: output.token_ids for name, output in drain(engine).items()} == {"other": expected}
    assert engine.stats().blocks_used == 0


def test_a_request_that_ended_during_generate_is_returned_after_a_step_that_was_broken_off(tiny: Tiny) -> None:
    engine = tiny.engine()

    def interrupt(*_: object) -> None:
        handle.remove()
        raise KeyboardInterrupt

    engine.submit(PROMPTS[1], greedy(3), request_id="ended")
    engine.generate(PROMPTS[:1], greedy(6))
    engine.submit(PROMPTS[0], greedy(3), request_id="runs")
    handle = engine.model.module.register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert drain(engine).keys() == {"ended", "runs"}


def test_texts_and_token_ids_may_be_mixed(texts: Engine) -> None:
    prompt = "The capital of France is"
    ids = texts.model.tokenizer(prompt)["input_ids"]
    as_text, as_ids = texts.generate([prompt, ids], greedy(8))
    assert as_text.prompt_ids == ids
    assert as_text.token_ids == as_ids.token_ids
    assert as_text.text == as_ids.text
    assert "Paris" in as_text.text


def test_a_single_text_is_one_prompt(texts: Engine) -> None:
    assert len(texts.generate("The capital of France is", greedy(3))) == 1


def test_the_text_is_the_decoded_tokens(texts: Engine) -> None:
    (output,) = texts.generate("Numbers in words: one, two,", greedy(8))
    assert output.text == texts.model.tokenizer.decode(output.token_ids, skip_special_tokens=True)


def test_an_answer_to_a_chat_stops_at_the_end_of_its_turn(texts: Engine) -> None:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    (output,) = texts.generate(texts.encoder.encode_chat(Chat(messages)), SamplingParams(max_tokens=20, temperature=0))
    assert "Paris" in output.text
    assert output.finish_reason == "stop"
    assert output.token_ids[-1] in texts.model.eos_token_ids
    assert "<|im_end|>" not in output.text
