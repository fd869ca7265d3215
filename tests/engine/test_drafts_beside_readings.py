"""Steps in which the draft of one request is verified, and the prompt of another one is read."""

from pathlib import Path

from inflight import Engine, SamplingParams
from inflight.text.bad_words import token_sequences
from tests.engine.models import drain, make_engine
from tests.engine.test_speculation import Drafter

DRAFTS = {"method": "ngram", "adaptive": False, "num_speculative_tokens": 4}
PROMPT = "Say it again:"


def three_times_one_token(engine: Engine) -> SamplingParams:
    """Parameters with which an output is the same token three times. After them all tokens are forbidden."""
    word = " the the the the"
    same = next(s for s in token_sequences(engine.model.tokenizer, (word,)) if len(set(s)) == 1)
    return SamplingParams(max_tokens=40, temperature=0, allowed_token_ids=(same[0],), bad_words=(word,))


def test_a_request_whose_draft_leads_nowhere_ends_beside_an_embedding(first_layers: Path) -> None:
    """All of its tokens become forbidden while it has a draft."""
    engine = make_engine(first_layers, speculative_config=DRAFTS)
    engine.submit(PROMPT, three_times_one_token(engine), request_id="bad")
    finished = {}
    for step in range(20):
        engine.submit_embedding("one two three", request_id=f"embedding {step}")
        finished |= {output.request_id: output for output in engine.step() if output.finished}
    assert finished["bad"].finish_reason == "invalid"
    assert engine.stats().drafts > 0
    while engine.has_work:
        engine.step()
    assert engine.stats().blocks_used == 0


def test_a_request_whose_draft_is_right_at_first_keeps_that_part_beside_an_embedding(first_layers: Path) -> None:
    """No token may follow a later part of the draft. The logits are numbers, so nothing is computed again."""
    engine = make_engine(first_layers, speculative_config=DRAFTS)
    params = three_times_one_token(engine)
    (token,) = params.allowed_token_ids or ()
    known = {tuple(engine.encoder.encode(PROMPT)): [token] * 40}
    engine._scheduler._speculator._drafter = Drafter(known, 1, seed=0)  # type: ignore[attr-defined]
    engine.submit(PROMPT, params, request_id="bad")
    engine.step()
    assert engine.stats().drafts == 0
    engine.submit_embedding("one two three")
    engine.step()
    stats = engine.stats()
    assert (stats.drafts, stats.accepted_draft_tokens, stats.preemptions) == (1, 2, 0)
    output = drain(engine)["bad"]
    assert (output.token_ids, output.finish_reason) == ([token] * 3, "invalid")
