"""The batches of `make bench-step`, and what `make precision` compares."""

import pytest
import torch

from load_tests.bench.engine_step import (
    BLOCK_SIZE,
    CONTEXT,
    DECODES,
    SPREAD,
    Work,
    alternating,
    decodes,
    num_blocks,
    plan_of,
    sampled_works,
    works,
)
from load_tests.bench.precision import agreement, compare, left_at


@pytest.mark.parametrize("work", [*works(), *sampled_works(), decodes(8, 2000)], ids=lambda work: work.name)
def test_every_row_has_blocks_of_its_own_for_all_its_tokens(work: Work) -> None:
    plan = plan_of(work)
    assert plan.num_tokens == work.num_tokens
    assert [(s.first, s.num_tokens) for s in plan.scheduled] == list(work.rows)
    assert all(share.samples for share in plan.scheduled)
    blocks = [
        block
        for table, share in zip(plan.block_tables.tolist(), plan.scheduled, strict=True)
        for block in table[: -(-share.end // BLOCK_SIZE)]
    ]
    assert sorted(blocks) == list(range(num_blocks(work)))


def test_decodes_are_as_many_as_their_name_says() -> None:
    assert [len(work.rows) for work in works()[: len(DECODES)]] == list(DECODES)


def test_decodes_have_the_context_that_is_asked_for() -> None:
    for context in (CONTEXT, 2000):
        cached = [cached for cached, _ in decodes(64, context).rows]
        assert (min(cached), max(cached)) == (context - SPREAD, context - 1)


def test_steps_take_turns() -> None:
    turns: list[str] = []
    assert len(alternating([lambda: turns.append("a"), lambda: turns.append("b")])) == 2
    assert turns == ["a", "b"] * (len(turns) // 2)


def test_where_answers_part() -> None:
    assert left_at([1, 2, 3], [1, 2, 3]) is None
    assert left_at([1, 2, 3], [1, 5, 3]) == 1
    assert agreement([[1, 2], [3, 4], [5, 6]], [[1, 2], [0, 4], [5, 0]]) == "1 of 3 | 0, 0, 1"


def test_a_model_compared_with_itself_does_not_diverge() -> None:
    text = [0, 2, 1, 2]
    logits = torch.tensor([[0.0, 0.0, 0.0]] * 4)
    perplexity, divergence, same = compare(lambda _: logits, [logits], [text])
    assert (perplexity, divergence, same) == (pytest.approx(3.0), 0.0, 1.0)
    other = torch.tensor([[1.0, 0.0, 0.0]] * 4)
    assert compare(lambda _: other, [logits], [text])[1] > 0
