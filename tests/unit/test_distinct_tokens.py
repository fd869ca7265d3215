"""`DistinctTokens` has each token of a sequence once, wherever the sequence begins to grow."""

from hypothesis import given
from hypothesis import strategies as st

from inflight.logits_processors.distinct_tokens import DistinctTokens

TOKENS = st.lists(st.integers(0, 60), max_size=120)


@given(TOKENS, TOKENS)
def test_it_has_each_token_once_in_the_order_of_first_occurrence(prompt: list[int], output: list[int]) -> None:
    distinct = DistinctTokens(prompt)
    for token in output:
        index = distinct.add(token)
        assert distinct.tokens[index] == token
    assert distinct.tokens.tolist() == list(dict.fromkeys(prompt + output))
