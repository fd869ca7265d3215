"""`make bench`: output tokens per second of this engine and of transformers, on the same requests and weights.

Each system answers the same requests in the same order, greedily, from text to text, in bfloat16 on the CPU with
torch's own number of threads. Prompts and output lengths are random but the same in every run, and end-of-sequence
tokens are ignored. Counted are the tokens that the requests asked for and nothing else: what a static batch computes
for a request that is already done is lost.

    transformers `generate`                  one request after another; the first eighth of them, as it takes so long
    transformers `generate`, static batches  in order of arrival, padded left, each as long as its longest output
    transformers, continuous batching        its own manager, with as many requests and tokens to a step as ours
    Inflight, in process                     `Engine.generate` with all requests at once; portable: without CPU kernels
    Inflight behind Triton                   that many clients, each sending its next request when the last is done;
                                             they stream over gRPC and share the cores with the server

Then the regression guard: ratios of this run beside the committed ones, and exit status 1 where one fell by more than
the noise. To them belongs how much of a step its matrix products alone take, which no step can be faster than.

One system runs at a time, loaded anew and warmed up with other prompts, and all take turns, twice. A step is one pass
of the model: its time is that of `generate` over the passes, and what the engine itself counts. Batch use is output
tokens counted over steps times requests at once. The first token is timed by the client, from sending on.
"""

import argparse
import asyncio
import contextlib
import gc
import json
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from tqdm import tqdm

from inflight_client import AsyncClient, InflightError, Timeouts
from load_tests.workload import PROMPT_WORDS, VOCABULARY, Task
from scripts.bench_ratios import COMMITTED, Ratios, comparison, ratios_of, worse
from scripts.bench_report import Measurement, Observed, OtherLoad, Run, as_json, environment, table
from scripts.default_model import NAME, default_model
from scripts.errors import LauncherError
from scripts.model_repository import model_parameters, render_repository
from scripts.triton_runtime import triton_runtime
from scripts.triton_server import TritonServer

OUTPUT_TOKENS = (16, 96)
REQUESTS = 64
ROUNDS = 2
# Of so many requests one is enough to know the speed of one by one, which is the same for all.
ONE_BY_ONE_SHARE = 8
SEED = 1
# Prompts of their own: the engine would find those of the measurement in its prefix cache.
WARM_UP_SEED = 2
WARM_UP_TOKENS = 8
# Most tokens of a step of transformers' continuous batching: as many as of ours.
CONTINUOUS_TOKENS = 512
DTYPE = "bfloat16"
DEVICE = "cpu"
READY_SECONDS = 120.0
ANSWER_SECONDS = 300.0

Advance: TypeAlias = Callable[[int], object]
"""Told how many more requests are done."""


Serve: TypeAlias = Callable[[Sequence[Task], Advance], Observed]
"""Answers tasks; raises RuntimeError where an answer is not as long as it should be."""


@dataclass(frozen=True)
class System:
    """Something that answers requests; `load` takes the model's folder and `at_once`, and frees all at its exit."""

    name: str
    at_once: int
    load: Callable[[Path, int], AbstractContextManager[Serve]]
    share: int = 1
    """One of this many requests is measured."""

    def part(self, tasks: Sequence[Task]) -> Sequence[Task]:
        """Return the requests that this system is measured on."""
        return tasks[: max(1, len(tasks) // self.share)]


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


@contextlib.contextmanager
def transformers_generate(folder: Path, at_once: int) -> Iterator[Serve]:
    """Serve with `generate` of transformers, `at_once` requests to a batch."""
    # Here, as in the others, so that `--help` and the tests of the arithmetic need no torch.
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model: Any
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, DTYPE), attn_implementation="sdpa")
    model.to(DEVICE)
    # Without one nothing ends early. `min_new_tokens` would mask it at every step, which costs time.
    model.generation_config.eos_token_id = None

    def answer(batch: Sequence[Task]) -> None:
        inputs = tokenizer([task.prompt for task in batch], return_tensors="pt", padding=True).to(DEVICE)
        with torch.inference_mode():
            tokens = model.generate(
                **inputs, max_new_tokens=batch_steps(batch), do_sample=False, pad_token_id=tokenizer.pad_token_id
            )
        outputs = tokens[:, inputs["input_ids"].shape[1] :]
        check_length(batch_steps(batch), outputs.shape[1])
        tokenizer.batch_decode([row[: task.output_tokens] for row, task in zip(outputs, batch, strict=True)])

    def serve(tasks: Sequence[Task], advance: Advance) -> Observed:
        started = time.perf_counter()
        batches = static_batches(tasks, at_once)
        for batch in batches:
            answer(batch)
            advance(len(batch))
        return Observed(sum(map(batch_steps, batches)), time.perf_counter() - started)

    yield serve


@contextlib.contextmanager
def transformers_continuous(folder: Path, at_once: int) -> Iterator[Serve]:
    """Serve with the continuous batching of transformers, `at_once` requests at most in a step."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, ContinuousBatchingConfig, GenerationConfig

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, DTYPE), attn_implementation="sdpa")
    model.to(DEVICE)
    config = ContinuousBatchingConfig(max_requests_per_batch=at_once, max_batch_tokens=CONTINUOUS_TOKENS)
    generation = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=tokenizer.pad_token_id)  # type: ignore[no-untyped-call]

    def serve(tasks: Sequence[Task], advance: Advance) -> Observed:
        with model.continuous_batching_context_manager(
            generation_config=generation, continuous_batching_config=config, timeout=ANSWER_SECONDS
        ) as manager:
            wanted = {
                manager.add_request(tokenizer(task.prompt)["input_ids"], max_new_tokens=task.output_tokens): task
                for task in tasks
            }
            while wanted:
                result = manager.get_result(timeout=ANSWER_SECONDS)
                if result is None or result.error:
                    raise RuntimeError(f"transformers' continuous batching gave no answer: {result and result.error}")
                check_length(wanted.pop(result.request_id).output_tokens, len(result.generated_tokens))
                tokenizer.decode(result.generated_tokens)
                advance(1)
        return Observed()

    yield serve


@contextlib.contextmanager
def inflight_engine(folder: Path, at_once: int, *, kernels: bool = True) -> Iterator[Serve]:
    """Serve with this project's engine in this process, with its CPU kernels where there are any, or without."""
    from inflight import Engine, EngineConfig, SamplingParams

    served = model_parameters()
    config = EngineConfig(
        str(folder),
        dtype=DTYPE,
        device=DEVICE,
        max_num_seqs=at_once,
        enable_cpu_kernels=kernels,
        # As behind Triton: what a step may take decides how fast it is.
        max_num_batched_tokens=int(served["max_num_batched_tokens"]),
        token_budget=served["token_budget"],
    )
    engine = Engine(config)

    def serve(tasks: Sequence[Task], advance: Advance) -> Observed:
        before = engine.stats()
        params = [SamplingParams(max_tokens=t.output_tokens, ignore_eos=True, temperature=0.0) for t in tasks]
        for task, output in zip(tasks, engine.generate([task.prompt for task in tasks], params), strict=True):
            check_length(task.output_tokens, len(output.token_ids))
            advance(1)
        after = engine.stats()
        return Observed(after.steps - before.steps, after.step_seconds - before.step_seconds)

    yield serve


@contextlib.contextmanager
def triton_server(folder: Path, **settings: str) -> Iterator[TritonServer]:
    """A tritonserver that is ready to serve the model; `settings` are model parameters besides the usual ones."""
    parameters = {"model": str(folder), "dtype": DTYPE, "device": DEVICE, **settings}
    with tempfile.TemporaryDirectory(prefix="inflight-bench-") as scratch:
        repository = render_repository(Path(scratch) / "models", parameters=parameters)
        with TritonServer(repository, drain_seconds=5) as server:
            server.wait_ready(READY_SECONDS, ["llm"])
            yield server


@contextlib.contextmanager
def inflight_server(folder: Path, at_once: int) -> Iterator[Serve]:
    """Serve with a tritonserver and `at_once` clients of it, which stream."""
    with triton_server(folder, max_num_seqs=str(at_once)) as server:
        yield lambda tasks, advance: asyncio.run(_closed_loop(server.grpc_url, at_once, tasks, advance))


async def _closed_loop(url: str, clients: int, tasks: Sequence[Task], advance: Advance) -> Observed:
    first_tokens: list[float] = []
    waiting = iter(tasks)

    async def user(client: AsyncClient) -> None:
        for task in waiting:
            first_tokens.append(await _time_to_first_token(client, task))
            advance(1)

    async with AsyncClient(url, timeouts=Timeouts(first_token=ANSWER_SECONDS, total=ANSWER_SECONDS)) as client:
        await asyncio.gather(*(user(client) for _ in range(clients)))
    return Observed(first_token_seconds=tuple(first_tokens))


async def _time_to_first_token(client: AsyncClient, task: Task) -> float:
    """Read an answer to its end and return when its first text came."""
    sent = time.perf_counter()
    async with client.stream(task.prompt, max_tokens=task.output_tokens, ignore_eos=True, temperature=0.0) as stream:
        await anext(stream)
        first = time.perf_counter() - sent
        answer = await stream.completion()
    check_length(task.output_tokens, answer.usage.completion_tokens)
    return first


SYSTEMS = (
    System("transformers `generate`", 1, transformers_generate, share=ONE_BY_ONE_SHARE),
    System("transformers `generate`, static batches", 8, transformers_generate),
    System("transformers `generate`, static batches", 32, transformers_generate),
    System("transformers, continuous batching", 32, transformers_continuous),
    System("Inflight, in process, portable", 32, partial(inflight_engine, kernels=False)),
    System("Inflight, in process", 1, inflight_engine, share=ONE_BY_ONE_SHARE),
    System("Inflight, in process", 8, inflight_engine),
    System("Inflight, in process", 32, inflight_engine),
    System("Inflight, in process", 64, inflight_engine),
    System("Inflight behind Triton, streamed", 1, inflight_server, share=ONE_BY_ONE_SHARE),
    System("Inflight behind Triton, streamed", 8, inflight_server),
    System("Inflight behind Triton, streamed", 32, inflight_server),
    System("Inflight behind Triton, streamed", 64, inflight_server),
)


def measure(system: System, folder: Path, tasks: Sequence[Task], advance: Advance) -> Run:
    """Load a system, warm it up, time it on the tasks and free it."""
    warm_up = workload(system.at_once, (WARM_UP_TOKENS, WARM_UP_TOKENS), WARM_UP_SEED)
    others = OtherLoad()
    with system.load(folder, system.at_once) as serve:
        serve(warm_up, lambda count: None)
        started = time.perf_counter()
        seen = serve(tasks, advance)
        seconds = time.perf_counter() - started
    return Run(useful_tokens(tasks), seconds, seen, others.share())


def bench(folder: Path, tasks: Sequence[Task]) -> list[Measurement]:
    """Measure all systems in turn, as often as there are rounds, behind a progress bar."""
    from transformers.utils import logging

    # Its bars for the loading of weights would break up this one.
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    results = [Measurement(system.name, system.at_once, len(system.part(tasks))) for system in SYSTEMS]
    total = ROUNDS * sum(result.requests for result in results)
    with tqdm(total=total, bar_format="{desc} |{bar}| {n_fmt}/{total_fmt} requests, {elapsed}") as bar:
        for number in range(1, ROUNDS + 1):
            for system, result in zip(SYSTEMS, results, strict=True):
                bar.set_description_str(f"{number}/{ROUNDS} {system.name}, {system.at_once} at once")
                result.runs.append(measure(system, folder, system.part(tasks), bar.update))
                # A model is full of cycles, and the next system is to find its memory free.
                gc.collect()
    return results


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return int(text)


def report(options: argparse.Namespace) -> int:
    """Measure, print the tables, write the files asked for and return the exit status: 1 after a regression."""
    from scripts.bench_step import shares_of_floor

    folder = default_model()
    # Downloaded now rather than in the middle of the run.
    triton_runtime()
    about = environment(DTYPE, DEVICE)
    about["model"] = NAME
    about["workload"] = (
        f"{options.requests} requests, prompts of {PROMPT_WORDS[0]} to {PROMPT_WORDS[1]} words, "
        f"outputs of {OUTPUT_TOKENS[0]} to {OUTPUT_TOKENS[1]} tokens, seed {SEED}, {ROUNDS} rounds"
    )
    others = OtherLoad()
    shares = shares_of_floor(folder)
    results = bench(folder, workload(options.requests))
    about["processors used by others meanwhile"] = f"{others.share():.0%}"
    print(table(results))
    print("\n" + "; ".join(f"{name}: {value}" for name, value in about.items()))
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(as_json(results, about), indent=2) + "\n")
    conditions = f"{about['cpu']}, {about['cores']} cores, {options.requests} requests"
    now = ratios_of(conditions, results, shares)
    if options.accept:
        now.write(COMMITTED)
    committed = Ratios.read(COMMITTED)
    print(f"\n{comparison(now, committed)}")
    return 1 if worse(now, committed) else 0


def main() -> int:
    """Run the benchmark and return its exit status; where it is 1 a line says why."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=_at_least_one, default=REQUESTS, help="how many (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    parser.add_argument("--accept", action="store_true", help=f"make these ratios the ones in {COMMITTED.name}")
    # As Ctrl-C, so that `kill` stops the server too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return report(parser.parse_args())
    except KeyboardInterrupt:
        return 130
    except (LauncherError, InflightError) as error:
        print("\n".join([f"error: {error}", *getattr(error, "__notes__", [])]), file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
