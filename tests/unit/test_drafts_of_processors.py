"""What logits processors do to the rows of drafted tokens: what they will do once these tokens are in the output."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from inflight.logits_processors.edits import LogitEdits
from inflight.logits_processors.factory import make_processors
from inflight.logits_processors.processor import LogitsProcessor
from inflight.sampling_params import SamplingParams

VOCABULARY = 5
TOKENS = st.lists(st.integers(0, VOCABULARY - 1), max_size=8)


def edited(processors: tuple[LogitsProcessor, ...], ahead: list[int]) -> Any:
    """Some logits after the edits."""
    edits = LogitEdits()
    edits.begin_row(0)
    for processor in processors:
        processor.edit(edits, ahead)
    logits = np.linspace(-1, 1, VOCABULARY, dtype=np.float32)
    for edit in edits.edits:
        values = logits[edit.tokens]
        assert len(set(edit.tokens.tolist())) == len(edit.tokens)
        penalised = np.where(values > 0, values / np.float32(edit.penalty), values * np.float32(edit.penalty))
        logits[edit.tokens] = penalised + (edit.biases if len(edit.biases) else 0)
    return logits


@given(
    prompt=TOKENS.filter(bool),
    output=TOKENS,
    ahead=TOKENS,
    repetition=st.sampled_from([1.0, 1.3]),
    presence=st.sampled_from([0.0, 0.5]),
    frequency=st.sampled_from([0.0, -0.25]),
    min_tokens=st.integers(0, 12),
    bad_words=st.lists(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=4), max_size=4),
    allowed=st.sampled_from([None, (1, 3, 5)]),
)
def test_a_row_after_a_draft_is_edited_as_after_these_tokens(
    prompt: list[int],
    output: list[int],
    ahead: list[int],
    repetition: float,
    presence: float,
    frequency: float,
    min_tokens: int,
    bad_words: list[list[int]],
    allowed: tuple[int, ...] | None,
) -> None:
    params = SamplingParams(
        max_tokens=20,
        min_tokens=min_tokens,
        repetition_penalty=repetition,
        presence_penalty=presence,
        frequency_penalty=frequency,
        logit_bias={2: 0.5},
        allowed_token_ids=allowed,
    )

    def after(tokens: list[int]) -> tuple[LogitsProcessor, ...]:
        processors = make_processors(
            params,
            prompt_ids=prompt,
            stop_token_ids=frozenset({3}),
            bad_words=bad_words,
            num_logits=VOCABULARY,
        )
        for token in tokens:
            for processor in processors:
                processor.accept(token)
        return processors

    drafted = after(output)
    for count in range(len(ahead) + 1):
        assert edited(drafted, ahead[:count]).tolist() == edited(after([*output, *ahead[:count]]), []).tolist()


def test_a_repetition_penalty_skips_tokens_of_the_prompt_for_which_the_model_has_no_logit() -> None:
    params = SamplingParams(repetition_penalty=1.3)

    def after(prompt: list[int]) -> Any:
        processors = make_processors(
            params, prompt_ids=prompt, stop_token_ids=frozenset(), bad_words=(), num_logits=VOCABULARY
        )
        return edited(processors, []).tolist()

    assert after([1, VOCABULARY, 3, VOCABULARY + 7]) == after([1, 3])
