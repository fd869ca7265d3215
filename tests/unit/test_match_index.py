"""Where the newest tokens of a sequence occurred before."""

from hypothesis import given
from hypothesis import strategies as st

from inflight.speculation.match_index import MatchIndex

TOKENS = st.lists(st.integers(0, 3), max_size=40)


def common(tokens: list[int], context: list[int], position: int) -> int:
    length = 0
    while length < min(position, len(context)) and tokens[position - 1 - length] == context[-1 - length]:
        length += 1
    return length


@given(tokens=TOKENS, context=TOKENS, shortest=st.integers(1, 4), more=st.integers(0, 6))
def test_a_match_is_real_and_is_found_where_there_is_one(
    tokens: list[int], context: list[int], shortest: int, more: int
) -> None:
    index = MatchIndex(tokens, shortest, shortest + more)
    index.extend(len(tokens))
    lengths = {position: min(common(tokens, context, position), shortest + more) for position in range(len(tokens))}
    matching = [position for position, length in lengths.items() if length >= shortest]
    match = index.find(context, len(context))
    if match is None:
        assert not matching
        return
    assert match.position in matching
    assert match.length == lengths[match.position]
    # It looks at the newest places alone.
    newest = sorted(matching)[-7:]
    assert match.length >= max(lengths[position] for position in newest)
    assert match.position == max(position for position in matching if lengths[position] == match.length)


@given(tokens=TOKENS, cuts=st.lists(st.integers(1, 8), max_size=12))
def test_it_does_not_matter_when_tokens_are_added(tokens: list[int], cuts: list[int]) -> None:
    whole, growing = MatchIndex(tokens, 2, 8), MatchIndex([], 2, 8)
    whole.extend(len(tokens))
    rest = list(tokens)
    for cut in [*cuts, len(tokens)]:
        growing.tokens += rest[:cut]
        del rest[:cut]
        growing.extend(len(growing.tokens))
    for end in range(len(tokens) + 1):
        assert growing.find(tokens, end) == whole.find(tokens, end)
