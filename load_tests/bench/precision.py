"""`make precision`: how bfloat16, int8 and int4 change the default model's results, and how much faster they are.

Every configuration is compared with transformers in float32 on the same text: pages of this repository, cut into
windows of tokens. The table shows the perplexity, the mean Kullback-Leibler divergence from the float32 distributions
in nats, and how often both find the same token most likely. Then the beginning of each window is continued greedily,
and each answer is compared with that of transformers in bfloat16: how many answers are identical, and at which token
the others diverge.
"""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from inflight import Engine, EngineConfig, SamplingParams
from inflight.kv_cache.block_table_array import tables_of
from inflight.model.batch_arrays import BatchArrays
from inflight.model.loading.loader import LoadedModel
from inflight.model.ragged_batch import RaggedBatch
from inflight.request import Request
from inflight.scheduler.plan import ScheduledRequest, StepPlan
from load_tests.pages import tokens_of_pages
from scripts.launch.default_model import default_model
from scripts.launch.errors import LauncherError

WINDOW, WINDOWS = 256, 32
PROMPT_TOKENS, ANSWER_TOKENS = 64, 96
SPEED_AT = (1, 8, 32)
BLOCK_SIZE = 16

Logits: TypeAlias = Callable[[list[int]], torch.Tensor]
"""Logits of a window of tokens, [tokens, vocabulary] in float32."""

WAYS: dict[str, dict[str, Any]] = {
    "Inflight, bfloat16, torch's own operators": {"enable_kernels": False},
    "Inflight, bfloat16, CPU kernels": {},
    "Inflight, int8": {"quantization": "int8"},
    "Inflight, int4": {"quantization": "int4"},
}


def windows(tokenizer: Any) -> list[list[int]]:
    """The text as lists of tokens."""
    tokens = tokens_of_pages(tokenizer)
    return [tokens[start : start + WINDOW] for start in range(0, WINDOW * WINDOWS, WINDOW)]


def compare(logits: Logits, exact: list[torch.Tensor], texts: list[list[int]]) -> tuple[float, float, float]:
    """Perplexity, mean divergence from the exact distributions, and fraction of tokens for which both have the same
    argmax."""
    surprise = divergence = same = 0.0
    count = 0
    for text, wanted in zip(texts, exact, strict=True):
        mine = logits(text)[:-1].log_softmax(-1)
        right = wanted[:-1].log_softmax(-1)
        surprise -= float(mine.gather(1, torch.tensor(text[1:])[:, None]).sum())
        divergence += float((right.exp() * (right - mine)).sum())
        same += float((mine.argmax(-1) == right.argmax(-1)).sum())
        count += len(text) - 1
    return float(torch.tensor(surprise / count).exp()), divergence / count, same / count


def transformers_logits(module: Any) -> Logits:
    """Logits of a transformers model."""

    def logits(tokens: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            found: torch.Tensor = module(torch.tensor([tokens])).logits[0].float()
        return found

    return logits


def engine_logits(model: LoadedModel) -> Logits:
    """Logits of a model as the engine runs it."""

    def logits(tokens: list[int]) -> torch.Tensor:
        request = Request("", tokens, SamplingParams(), max_tokens=1, seed=0)
        num_blocks = -(-len(tokens) // BLOCK_SIZE)
        plan = StepPlan((ScheduledRequest.next_of(request, len(tokens)),), tables_of([range(num_blocks)]))
        shapes = [layer.shape for layer in model.layers]
        caches = model.backend.allocate(shapes, num_blocks, BLOCK_SIZE, model.dtype, model.device)
        with torch.inference_mode():
            batch = RaggedBatch.on(model.device, BatchArrays.of(plan, BLOCK_SIZE))
            return model.forward(batch, caches, torch.arange(len(tokens))).logits.float()

    return logits


def transformers_answers(module: Any, prompts: list[list[int]]) -> list[list[int]]:
    """Greedy answers, one prompt at a time."""
    module.generation_config.eos_token_id = None
    answers = []
    for prompt in tqdm(prompts, desc="transformers answers"):
        with torch.inference_mode():
            tokens = module.generate(
                torch.tensor([prompt]), max_new_tokens=ANSWER_TOKENS, do_sample=False, pad_token_id=0
            )
        answers.append(tokens[0, len(prompt) :].tolist())
    return answers


def left_at(answer: list[int], other: list[int]) -> int | None:
    """Index of the first token at which two answers differ. None if they are identical."""
    return next((index for index, (a, b) in enumerate(zip(answer, other, strict=True)) if a != b), None)


def agreement(answers: list[list[int]], others: list[list[int]]) -> str:
    """Number of identical answers, and the positions at which the others diverge."""
    parted = [index for a, b in zip(answers, others, strict=True) if (index := left_at(a, b)) is not None]
    where = f"{min(parted)}, {median(parted):.0f}, {max(parted)}" if parted else ""
    return f"{len(answers) - len(parted)} of {len(answers)} | {where}"


def speed(engine: Engine, prompts: list[list[int]]) -> str:
    """Output tokens per second with all prompts at once."""
    rates = []
    for at_once in SPEED_AT:
        params = SamplingParams(max_tokens=ANSWER_TOKENS, temperature=0.0, ignore_eos=True)
        some = [[number, *prompt[:16]] for number, prompt in enumerate(prompts[:at_once], start=100)]
        started = time.perf_counter()
        engine.generate(some, params)
        rates.append(at_once * ANSWER_TOKENS / (time.perf_counter() - started))
    return ", ".join(f"{rate:.0f}" for rate in rates)


def report(folder: Path) -> Iterator[str]:
    """The lines of the table."""
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    texts = windows(tokenizer)
    prompts = [text[:PROMPT_TOKENS] for text in texts]
    float32: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    exact = [transformers_logits(float32)(text) for text in tqdm(texts, desc="float32")]
    bfloat16: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    others = transformers_answers(bfloat16, prompts)
    heads = ("Model", "Perplexity", "Divergence", "Same likeliest", "Same answers", "Part after (min, median, max)")
    yield f"| {' | '.join(heads)} | Tokens/s at {', '.join(map(str, SPEED_AT))} |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    for name, module in (("transformers, float32", float32), ("transformers, bfloat16", bfloat16)):
        yield _row(name, compare(transformers_logits(module), exact, texts), " | ", "")
    for name, settings in WAYS.items():
        engine = Engine(EngineConfig(str(folder), dtype="bfloat16", device="cpu", kv_cache_tokens=16384, **settings))
        params = SamplingParams(max_tokens=ANSWER_TOKENS, temperature=0.0, ignore_eos=True)
        answers = [output.token_ids for output in engine.generate(prompts, params, progress=True)]
        yield _row(
            name, compare(engine_logits(engine.model), exact, texts), agreement(answers, others), speed(engine, prompts)
        )


def _row(name: str, compared: tuple[float, float, float], agreed: str, rates: str) -> str:
    perplexity, divergence, same = compared
    return f"| {name} | {perplexity:.2f} | {divergence:.4f} | {same:.1%} | {agreed} | {rates} |"


def main() -> int:
    """Print the table and return the exit status."""
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        lines = list(report(default_model()))
    except (LauncherError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
