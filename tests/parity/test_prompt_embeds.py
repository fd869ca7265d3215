"""Prompts with embeddings: the engine's tokens are those of transformers' `generate`, token for token."""

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from inflight import EmbedsPrompt, Engine, EngineConfig, SamplingParams
from inflight.model.loading.loader import LoadedModel, load_model
from scripts.reference.tiny_models import MODELS, OWN_ATTENTION, RECURRENT, SERVED, VOCABULARY, save_model
from tests.of_each_kind import a_few_of

NUM_TOKENS = 10
# `generate` takes no embeddings for these.
KINDS = (SERVED | OWN_ATTENTION | RECURRENT).keys() - {"falcon_h1", "nemotron_h"}


class Served:
    """A folder with a model, and the model."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.folder, self.model = folder, save_model(MODELS[kind].config, folder)
        self.model.generation_config.forced_eos_token_id = None

    def config(self, **settings: Any) -> EngineConfig:
        usual = {"dtype": "float32", "block_size": 8, "kv_cache_tokens": 1024, "max_model_len": 256}
        return EngineConfig(model=str(self.folder), enable_prompt_embeds=True, **{**usual, **settings})

    @cached_property
    def loaded(self) -> LoadedModel:
        """The settings of the tests below do not concern what is loaded."""
        return load_model(self.config())

    def engine(self, **settings: Any) -> Engine:
        return Engine(self.config(**settings), self.loaded)

    def embedded(self, token_ids: list[int], seed: int, rows: slice) -> NDArray[np.float32]:
        """[tokens, width]: embeddings of tokens, but for some rows, which no token has."""
        table = self.model.get_input_embeddings()
        with torch.inference_mode():
            found = table(torch.tensor(token_ids)).float().numpy()
        found[rows] = np.random.default_rng(seed).normal(0, found.std(), found[rows].shape)
        return np.array(found)

    def expected(self, embeds: NDArray[np.float32]) -> list[int]:
        with torch.inference_mode():
            output = self.model.generate(
                inputs_embeds=torch.from_numpy(embeds)[None], max_new_tokens=NUM_TOKENS, do_sample=False
            )
        return list(output[0].tolist())


@pytest.fixture(scope="module", params=a_few_of(sorted(KINDS)))
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    return Served(request.param, tmp_path_factory.mktemp(request.param))


def random_ids(seed: int, count: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(3, VOCABULARY, count)]


def among_tokens(token_ids: list[int], embeds: NDArray[np.float32], rows: slice) -> EmbedsPrompt:
    """The same prompt with tokens where it has embeddings of tokens."""
    mixed = list(token_ids)
    mixed[rows] = range(VOCABULARY, VOCABULARY + len(embeds[rows]))
    return EmbedsPrompt(embeds[rows], mixed)


@pytest.mark.parametrize(
    ("budget", "kv_cache_tokens"),
    [(7, 128), (64, 1024), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((7, 1024), (64, 128)))],
)
def test_prompts_with_and_without_embeddings_share_steps(served: Served, budget: int, kv_cache_tokens: int) -> None:
    engine = served.engine(max_num_batched_tokens=budget, kv_cache_tokens=kv_cache_tokens)
    prompts, wanted = [], []
    for seed, (count, rows) in enumerate([(40, slice(3, 30)), (12, slice(0, 12)), (25, slice(24, 25)), (60, slice(0))]):
        token_ids = random_ids(seed, count)
        embeds = served.embedded(token_ids, seed, rows)
        prompts += [EmbedsPrompt(embeds), among_tokens(token_ids, embeds, rows) if embeds[rows].size else token_ids]
        wanted += [served.expected(embeds)] * 2
    outputs = engine.generate(prompts, SamplingParams(max_tokens=NUM_TOKENS, temperature=0))
    assert [output.token_ids for output in outputs] == wanted


def test_cached_prefixes_tell_embeddings_apart(tmp_path: Path) -> None:
    served = Served("llama", tmp_path)
    engine = served.engine()
    token_ids = random_ids(0, 60)
    prompts = [served.embedded(token_ids, seed, slice(20, 30)) for seed in (1, 2, 1)]
    params = SamplingParams(max_tokens=NUM_TOKENS, temperature=0)
    hits = []
    for embeds in prompts:
        (output,) = engine.generate([among_tokens(token_ids, embeds, slice(20, 30))], params)
        assert output.token_ids == served.expected(embeds)
        hits.append(output.num_cached_tokens)
    assert hits == [0, 16, 56]


def test_embeddings_have_no_repetition_penalty(tmp_path: Path) -> None:
    served = Served("llama", tmp_path)
    embeds = served.embedded(random_ids(0, 30), 1, slice(0, 30))
    params = SamplingParams(max_tokens=NUM_TOKENS, temperature=0, repetition_penalty=1.8)
    (output,) = served.engine().generate([EmbedsPrompt(embeds)], params)
    with torch.inference_mode():
        wanted = served.model.generate(
            inputs_embeds=torch.from_numpy(embeds)[None],
            max_new_tokens=NUM_TOKENS,
            do_sample=False,
            repetition_penalty=1.8,
        )
    assert output.token_ids == wanted[0].tolist()
