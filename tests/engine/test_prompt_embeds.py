"""Prompts with embeddings beside other features of the engine. The parity tests compare tokens with transformers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from inflight import EmbedsPrompt, Engine, InvalidRequest, RequestOptions, SamplingParams, UnsupportedModel
from inflight.model.attention.backend import CPU_KERNELS
from inflight.model.cpu.traced_forward import TracedForward
from inflight.model.routed_forward import RoutedForward
from inflight.prompts import EMBEDS_PLACE
from scripts.reference.random_adapter import RandomAdapter
from scripts.reference.tiny_models import VOCABULARY
from tests.engine.models import Tiny, drain, make_engine, make_prompt

GREEDY = SamplingParams(max_tokens=10, temperature=0)
PROMPT = make_prompt(30)


def embeds_of(engine: Engine, token_ids: list[int]) -> NDArray[np.float32]:
    """[tokens, width], what the model's own table says."""
    table: Any = engine.model.module.get_input_embeddings()  # type: ignore[operator]
    with torch.inference_mode():
        return np.array(table(torch.tensor(token_ids)).float().numpy())


def answers(engine: Engine, prompt: Any, params: SamplingParams, **options: Any) -> list[Any]:
    """All tokens, and all log-probabilities if they are wanted, of three samples or of a beam search."""
    count = 1 if params.beam_width > 1 else 3
    ids = [f"{number}" for number in range(count)]
    engine.submitter.submit_samples(prompt, dict.fromkeys(ids, params), RequestOptions(**options))
    outputs = drain(engine)
    if params.beam_width > 1:
        return [beam.token_ids for beam in outputs["0"].beams]
    return [(outputs[each].token_ids, outputs[each].logprobs) for each in ids]


@pytest.mark.parametrize(
    ("params", "settings", "options"),
    [
        ({}, {"max_num_batched_tokens": 7}, {}),
        ({"temperature": 1.0, "seed": 3, "logprobs": 2}, {"enable_prefix_caching": False}, {}),
        ({"beam_width": 3}, {}, {}),
        ({"max_tokens": 30}, {"speculative_config": {"method": "ngram", "num_speculative_tokens": 4}}, {}),
        ({"presence_penalty": 1.5, "min_tokens": 5}, {"scheduling_policy": "fair"}, {"tenant": "one"}),
        ({}, {"lora_modules": {"poet": "poet"}}, {"lora_name": "poet"}),
    ],
)
def test_embeddings_of_tokens_give_the_answers_of_the_tokens(
    tiny: Tiny, tmp_path: Path, params: dict[str, Any], settings: dict[str, Any], options: dict[str, Any]
) -> None:
    if "lora_modules" in settings:
        settings = {"lora_modules": {"poet": RandomAdapter().save(tmp_path / "poet", tiny.module)}}
    engine = make_engine(tiny.folder, enable_prompt_embeds=True, **settings)
    wanted = SamplingParams(**{"max_tokens": 10, "temperature": 0, **params})
    mixed = [*PROMPT[:5], *range(VOCABULARY, VOCABULARY + 20), *PROMPT[25:]]
    alike = answers(engine, PROMPT, wanted, **options)
    assert answers(engine, EmbedsPrompt(embeds_of(engine, PROMPT)), wanted, **options) == alike
    assert answers(engine, EmbedsPrompt(embeds_of(engine, PROMPT[5:25]), mixed), wanted, **options) == alike


def test_a_text_says_where_they_go(first_layers: Path) -> None:
    engine = make_engine(first_layers, enable_prompt_embeds=True)
    before, after = "The capital of", " is Paris. The capital of Italy is"
    embeds = embeds_of(engine, engine.encoder.encode(" France"))
    found = engine.generate([EmbedsPrompt(embeds, f"{before}{EMBEDS_PLACE}{after}"), f"{before} France{after}"], GREEDY)
    assert found[0].token_ids == found[1].token_ids
    assert len(found[0].prompt_ids) == len(found[1].prompt_ids)


def test_with_the_kernels_of_the_processor_they_change_no_bit_of_a_text(first_layers: Path) -> None:
    engine = make_engine(
        first_layers, dtype="bfloat16", block_size=16, enable_prompt_embeds=True, enable_prefix_caching=False
    )
    if engine.model.backend is not CPU_KERNELS:
        pytest.skip("this processor has no kernels")
    forward = engine.model.forward
    assert isinstance(forward, RoutedForward)
    assert isinstance(forward.special, TracedForward)
    assert forward.special.is_fused
    params = SamplingParams(max_tokens=8, temperature=0, logprobs=3)
    noise = np.random.default_rng(0).normal(0, 0.1, (40, 576))
    (alone,) = engine.generate(["The capital of France is"], params)
    beside = engine.generate(["The capital of France is", EmbedsPrompt(noise)], params)[0]
    assert (beside.token_ids, beside.logprobs) == (alone.token_ids, alone.logprobs)


@pytest.fixture(scope="module")
def engine(tiny: Tiny) -> Engine:
    return make_engine(tiny.folder, enable_prompt_embeds=True)


ROW = np.zeros((1, 64), np.float32)


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        (EmbedsPrompt(ROW[0]), r"prompt_embeds has the shape \[64\] and the type float32; it must have two dimensions"),
        (EmbedsPrompt(ROW.astype(np.int64)), "the type int64; it must have two dimensions, rows and width, and one of"),
        (
            EmbedsPrompt(ROW[:, :63]),
            "prompt_embeds is 1 x 63; it must have at least 1 row, and the model's width",
        ),
        (EmbedsPrompt(ROW[:0]), "prompt_embeds is 0 x 64; it must have at least 1 row"),
        (EmbedsPrompt(ROW[:0], [1]), "prompt_embeds is 0 x 64; it must have at least 1 row"),
        (EmbedsPrompt(ROW + np.float32("nan")), "prompt_embeds has a value in row 0 that is no finite number"),
        (EmbedsPrompt(ROW.astype(np.float64) + 1e60), "a value in row 0 that is no finite number in torch.float32"),
        (EmbedsPrompt(ROW, []), "prompt is empty; it must have at least 1 token"),
        (
            EmbedsPrompt(ROW, [161]),
            "input_ids holds 161; it must be from 0 to 159 for a token, or up to 160",
        ),
        (EmbedsPrompt(ROW, [-1]), "input_ids holds -1; it must be from 0 to 159"),
        (EmbedsPrompt(ROW, [2**70]), "input_ids holds 1180591620717411303424"),
        (EmbedsPrompt(np.zeros((300, 64))), "prompt has 300 tokens; it must have at most 255"),
    ],
)
def test_what_does_not_fit_is_refused(engine: Engine, prompt: EmbedsPrompt, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        engine.submit(prompt, GREEDY)
    assert not engine.has_work


@pytest.mark.parametrize(("text", "count"), [("No place.", 0), (2 * EMBEDS_PLACE, 2)])
def test_a_text_without_one_place_is_refused(first_layers: Path, text: str, count: int) -> None:
    engine = make_engine(first_layers, enable_prompt_embeds=True)
    with pytest.raises(
        InvalidRequest, match=rf"text_input has '<\|prompt_embeds\|>' {count} times; with prompt_embeds it must be once"
    ):
        engine.submit(EmbedsPrompt(np.zeros((2, 576)), text), GREEDY)


def test_what_they_do_not_go_with_is_refused(engine: Engine, tiny: Tiny) -> None:
    scores = SamplingParams(max_tokens=1, prompt_logprobs=1)
    with pytest.raises(InvalidRequest, match="prompt_logprobs is given with prompt_embeds"):
        engine.submit(EmbedsPrompt(ROW), scores)
    role = {"kv_connector": "tcp", "kv_role": "kv_both"}
    both = make_engine(tiny.folder, enable_prompt_embeds=True, kv_transfer_config=role)
    options = RequestOptions(kv_transfer_params={"do_remote_decode": True})  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="kv_transfer_params is given with prompt_embeds"):
        both.submit(EmbedsPrompt(ROW), GREEDY, options)
    both.close()


def test_without_the_setting_they_are_refused(tiny: Tiny) -> None:
    with pytest.raises(InvalidRequest, match="prompt_embeds is given, but enable_prompt_embeds is not set"):
        make_engine(tiny.folder).submit(EmbedsPrompt(ROW), GREEDY)


def test_a_model_that_reads_the_tokens_elsewhere_is_refused(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """As some models do that have embeddings in each layer."""
    kind = type(tiny.module)
    forward = kind.forward

    def with_tokens(self: Any, input_ids: Any = None, **arguments: Any) -> Any:
        output = forward(self, input_ids, **arguments)
        if input_ids is not None:
            output.logits = output.logits * (1 + 0.1 * (input_ids[:, -output.logits.shape[1] :, None] % 2))
        return output

    monkeypatch.setattr(kind, "forward", with_tokens)
    with pytest.raises(UnsupportedModel, match="enable_prompt_embeds is true, but logits of llama after embeddings"):
        make_engine(tiny.folder, enable_prompt_embeds=True)
