"""The requests that benchmarks send: random, and the same in every run."""

import random
from collections.abc import Sequence

from load_tests.workload import PROMPT_WORDS, VOCABULARY, Task

OUTPUT_TOKENS = (16, 96)
SEED = 1


def workload(count: int, output_tokens: tuple[int, int] = OUTPUT_TOKENS, seed: int = SEED) -> list[Task]:
    """Return that many requests, the same ones every time."""
    chance = random.Random(seed)
    vocabulary = VOCABULARY.split()
    prompts = [" ".join(chance.choices(vocabulary, k=chance.randint(*PROMPT_WORDS))) for _ in range(count)]
    return [Task(prompt, chance.randint(*output_tokens)) for prompt in prompts]


def useful_tokens(tasks: Sequence[Task]) -> int:
    """Return how many tokens the requests ask for."""
    return sum(task.output_tokens for task in tasks)


def static_batches(tasks: Sequence[Task], size: int) -> list[Sequence[Task]]:
    """Cut the requests, in their order, into batches."""
    return [tasks[start : start + size] for start in range(0, len(tasks), size)]


def batch_steps(batch: Sequence[Task]) -> int:
    """Return how many steps a static batch takes: those of its longest output."""
    return max(task.output_tokens for task in batch)


def check_length(wanted: int, given: int) -> None:
    """Raise RuntimeError where an answer is longer or shorter than asked for: its speed would be another's."""
    if given != wanted:
        raise RuntimeError(f"an answer has {given} tokens instead of {wanted}")
