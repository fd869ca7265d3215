"""Steps in which the draft of one request is verified, and the prompt of another one is read."""

from inflight import SamplingParams
from inflight.text.bad_words import token_sequences
from scripts.launch.default_model import default_model
from tests.engine.models import make_engine


def test_a_request_whose_draft_leads_nowhere_ends_beside_an_embedding() -> None:
    """All of its tokens become forbidden while it has a draft."""
    drafts = {"method": "ngram", "adaptive": False, "num_speculative_tokens": 4}
    engine = make_engine(default_model(), speculative_config=drafts)
    word = " the the the the"
    same = next(s for s in token_sequences(engine.model.tokenizer, (word,)) if len(set(s)) == 1)
    params = SamplingParams(max_tokens=40, temperature=0, allowed_token_ids=(same[0],), bad_words=(word,))
    engine.submit("Say it again:", params, request_id="bad")
    finished = {}
    for step in range(20):
        engine.submit_embedding("one two three", request_id=f"embedding {step}")
        finished |= {output.request_id: output for output in engine.step() if output.finished}
    assert finished["bad"].finish_reason == "error"
    assert engine.stats().drafts > 0
    while engine.has_work:
        engine.step()
    assert engine.stats().blocks_used == 0
