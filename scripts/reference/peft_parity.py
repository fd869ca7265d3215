"""Compares the tokens of requests with LoRA adapters with those of the library PEFT.

    pip install peft
    python -m scripts.reference.peft_parity

For each tiny architecture, PEFT makes two adapters of different ranks and scales on all linear layers. An engine then
serves prompts with either of them and with none, in the same steps.
"""

import importlib
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from inflight import Engine, EngineConfig, RequestOptions, SamplingParams
from inflight.errors import UnsupportedModel
from scripts.reference.tiny_models import SERVED, greedy, save_model

TOKENS = 12
PROMPTS = [list(range(3, 3 + length)) for length in (5, 20, 33)]
ADAPTERS: dict[str, dict[str, Any]] = {
    "one": {"r": 4, "lora_alpha": 16},
    "two": {"r": 8, "lora_alpha": 8, "use_rslora": True, "alpha_pattern": {r"layers\.1.*": 32}},
}


def make_adapter(peft: Any, model: Path, folder: Path, seed: int, **config: Any) -> Any:
    """Save an adapter with random weights. Return the model with it, as PEFT runs it."""
    torch.manual_seed(seed)
    module = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    adapted = peft.get_peft_model(module, peft.LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear", **config))
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.1)
    adapted.save_pretrained(folder)
    return adapted.eval()


def served(model: Path, adapters: dict[str, str]) -> dict[tuple[int, str], list[int]]:
    """The tokens for each prompt with each adapter and with none, which is called ''."""
    engine = Engine(
        EngineConfig(
            model=str(model), dtype="float32", kv_cache_tokens=1024, max_num_batched_tokens=16, lora_modules=adapters
        )
    )
    params = SamplingParams(max_tokens=TOKENS, temperature=0)
    asked = {
        engine.submit(prompt, params, RequestOptions(lora_name=name)): (number, name)
        for number, prompt in enumerate(PROMPTS)
        for name in ("", *adapters)
    }
    found = {}
    while engine.has_work:
        for output in engine.step():
            if output.finished:
                found[asked[output.request_id]] = output.token_ids
    return found


def verdict(peft: Any, kind: str) -> str:
    """Whether the tokens are the same for an architecture, or why it was refused."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        models: dict[str, Any] = {"": save_model(SERVED[kind].config, folder / "model")}
        for seed, (name, config) in enumerate(ADAPTERS.items()):
            models[name] = make_adapter(peft, folder / "model", folder / name, seed, **config)
        try:
            found = served(folder / "model", {name: str(folder / name) for name in ADAPTERS})
        except UnsupportedModel as error:
            return f"refused: {error}"
        # Only now: PEFT itself fails with some models that are refused.
        wanted = {
            (number, name): greedy(model, prompt, TOKENS)
            for name, model in models.items()
            for number, prompt in enumerate(PROMPTS)
        }
        return "the same tokens" if found == wanted else "WRONG"


def main() -> int:
    """Compare, and return the exit status."""
    try:
        peft = importlib.import_module("peft")
    except ImportError:
        print("error: PEFT is missing; run `pip install peft`", file=sys.stderr)
        return 1
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    verdicts = {}
    for kind in SERVED:
        verdicts[kind] = verdict(peft, kind)
        print(f"{kind:12} {verdicts[kind]}", flush=True)
    return int("WRONG" in verdicts.values())


if __name__ == "__main__":
    sys.exit(main())
