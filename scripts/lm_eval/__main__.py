"""Compares a gateway with transformers by lm-evaluation-harness, on a small task of its own.

    python -m scripts.lm_eval --program /path/to/venv/bin/lm_eval --gateway http://127.0.0.1:9000 --model FOLDER

The harness (`pip install "lm_eval[api,hf]"`) needs an environment of its own. It runs on the gateway, which serves the
model in FOLDER, and then on transformers, in float32 and in bfloat16. The table shows how far log-likelihoods are from
those in float32.
"""

import argparse
import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TASK = Path(__file__).with_name("task")
METRICS = {
    "inflight_facts": "acc,none",
    "inflight_texts": "word_perplexity,none",
    "inflight_counting": "exact_match,none",
}
REFERENCE = "transformers, float32"


@dataclass(frozen=True)
class Outcome:
    """What the harness found for one model."""

    values: dict[str, float]
    """The value of each task's metric."""
    likelihoods: list[float]
    """The log-likelihood of each answer to a question."""


def main() -> None:
    """Run the harness on each model, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m scripts.lm_eval", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--program", default="lm_eval", help="the harness's program")
    parser.add_argument("--gateway", default="http://127.0.0.1:9000")
    parser.add_argument("--model", type=Path, required=True, help="the folder of the model that the gateway serves")
    parser.add_argument("--dtype", nargs="*", default=["float32", "bfloat16"], help="of transformers")
    options = parser.parse_args()
    url = f"model=llm,base_url={options.gateway}/v1/completions"
    api = ["--model", "local-completions", "--model_args", f"{url},tokenizer={options.model},num_concurrent=8"]
    outcomes = {"gateway": run(options.program, api)}
    for dtype in options.dtype:
        loaded = f"pretrained={options.model},dtype={dtype}"
        hf = ["--model", "hf", "--device", "cpu", "--batch_size", "8", "--model_args", loaded]
        outcomes[f"transformers, {dtype}"] = run(options.program, hf)
    print(table(outcomes))


def run(program: str, model: Sequence[str]) -> Outcome:
    """Run the harness on a model."""
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    with tempfile.TemporaryDirectory() as folder:
        tasks = ["--tasks", ",".join(METRICS), "--include_path", str(TASK), "--output_path", folder, "--log_samples"]
        subprocess.run([program, *model, *tasks], cwd=ROOT, env=os.environ | offline, check=True)
        (results,) = (json.loads(path.read_text())["results"] for path in Path(folder).rglob("results_*.json"))
        (samples,) = (path.read_text() for path in Path(folder).rglob("samples_inflight_facts_*.jsonl"))
    return Outcome(
        {task: results[task][metric] for task, metric in METRICS.items()},
        [float(value) for line in samples.splitlines() for value, _ in json.loads(line)["filtered_resps"]],
    )


def table(outcomes: dict[str, Outcome]) -> str:
    """Return a table in Markdown."""
    lines = ["| Model | Right answers | Perplexity | Rows continued | Error: mean | largest |", "|---|" + "---:|" * 5]
    for name, outcome in outcomes.items():
        right, perplexity, counted = outcome.values.values()
        errors = _errors(outcome, outcomes.get(REFERENCE))
        lines.append(f"| {name} | {right:.3f} | {perplexity:.2f} | {counted:.3f} | {errors} |")
    return "\n".join(lines)


def _errors(outcome: Outcome, reference: Any) -> str:
    if reference is None or outcome is reference:
        return "| "
    errors = [abs(mine - other) for mine, other in zip(outcome.likelihoods, reference.likelihoods, strict=True)]
    return f"{mean(errors):.5f} | {max(errors):.5f}"


if __name__ == "__main__":
    main()
