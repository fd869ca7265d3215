"""How `make bench-speculation` keeps one load from helping the next."""

from pathlib import Path

from load_tests.bench.speculation import LOADS, engine_config


def test_no_load_finds_the_prompts_of_another_in_a_cache() -> None:
    assert not engine_config(Path("model")).enable_prefix_caching


def test_prompts_have_the_numbers_that_are_asked_for() -> None:
    stories = [load for load in LOADS if load.kinds == ["story"]]
    numbers = [range(24 * place, 24 * (place + 1)) for place in range(len(stories))]
    prompts = [text for load, own in zip(stories, numbers, strict=True) for text in load.prompts(own)]
    assert len(set(prompts)) == 24 * len(stories)
