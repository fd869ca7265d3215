"""`make gpu-check`: check the engine on this machine's GPU, and compare its speed with the hardware's limits.

The check first measures the limits of the device. Then it compares attention with float64, and the tokens of tiny
models of all kinds with those of transformers. Finally it measures decodes, throughput (greedy and sampled) and
evenness with random weights in the shapes of Llama 8B and Qwen3 0.6B. It takes about ten minutes on an H200 and needs
torch, transformers and 20 GB of disk. `--small` runs everything with a tiny shape. It also works on a CPU, where the
kernels are interpreted and the times mean nothing.
"""

import argparse
import dataclasses
import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
import transformers

from scripts.gpu_check import ceilings, decode, evenness, parity, throughput
from scripts.gpu_check.check_result import CheckResult, table
from scripts.shapes import config_of, save

SHARE_OF_FLOOR = 0.75
SMALL_MODEL_TIMES = 1.5
TOKENS_PER_SECOND = 12_000
TRANSFORMERS_SECONDS = 40.0
TINY = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def full(device: str, folder: Path) -> Iterator[Callable[[], list[CheckResult]]]:
    """All parts, in order."""
    limits = ceilings.results(device, small=False)
    yield lambda: limits
    bandwidth = limits[0].value
    yield partial(parity.attention, device)
    yield partial(parity.tokens, folder, device)
    qwen = save(config_of("qwen3-0.6b"), folder / "qwen", device)
    yield partial(decode.results, "0.6B", qwen, device, bandwidth, {1: 1 / SMALL_MODEL_TIMES})
    workload = throughput.nano_vllm(256, 1024, 150_000)
    yield partial(throughput.results, "0.6B", qwen, device, workload, seconds=TRANSFORMERS_SECONDS)
    llama = save(config_of("llama-8b"), folder / "llama", device)
    yield partial(decode.results, "8B", llama, device, bandwidth, dict.fromkeys((1, 8, 32), SHARE_OF_FLOOR))
    workload = throughput.fixed(512, 1000, 128_000)
    yield partial(
        throughput.results, "8B", llama, device, workload, seconds=TRANSFORMERS_SECONDS, min_value=TOKENS_PER_SECOND
    )
    yield partial(evenness.results, "8B", llama, device, length=4000, seconds=8.0)


def small(device: str, folder: Path) -> Iterator[Callable[[], list[CheckResult]]]:
    """All parts with a tiny shape and few requests."""
    limits = ceilings.results(device, small=True)
    yield lambda: limits
    yield partial(parity.attention, device)
    yield partial(parity.tokens, folder, device, kinds=2)
    tiny = save(config_of("llama-8b", **TINY), folder / "tiny", device)
    yield partial(decode.results, "tiny", tiny, device, limits[0].value, {1: 0.0, 4: 0.0}, context=40)
    workload = throughput.nano_vllm(8, 60, 500)
    yield partial(throughput.results, "tiny", tiny, device, workload, seconds=5.0)
    yield partial(evenness.results, "tiny", tiny, device, length=200, seconds=1.0)


def machine(device: str) -> str:
    """The machine and versions that the results depend on."""
    name = "CPU" if device == "cpu" else torch.cuda.get_device_name(device)
    return f"{name}; torch {torch.__version__}, CUDA {torch.version.cuda}, transformers {transformers.__version__}"


def check(device: str, *, tiny: bool) -> list[CheckResult]:
    """Run all parts and report the time of each. A part that raises an error becomes a failed result."""
    found = []
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        for part in (small if tiny else full)(device, Path(folder)):
            started = time.perf_counter()
            name = getattr(part, "func", part).__module__.rpartition(".")[2]
            try:
                new = part()
            except Exception as error:  # The other parts can still run.
                logging.exception("%s", name)
                reason = f"{type(error).__name__}: {error}"[:200]
                new = [CheckResult(f"{name} broke", float("nan"), min_value=0, note=reason)]
            print(f"{name}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
            print(table(new), file=sys.stderr, flush=True)
            found += new
    return found


def main() -> int:
    """Run the check and return the exit status: 1 if a result failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0", help="%(default)s")
    parser.add_argument("--small", action="store_true", help="use a tiny shape, to try the check out")
    parser.add_argument("--json", type=Path, metavar="FILE", default=Path("results/gpu-check.json"), help="%(default)s")
    options = parser.parse_args()
    if options.device != "cpu" and not torch.cuda.is_available():
        print(f"error: --device is {options.device!r}, and torch {torch.__version__} sees no GPU", file=sys.stderr)
        return 1
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    os.environ["HF_HUB_OFFLINE"] = "1"
    if options.device == "cpu":
        # This must be set before the kernels are imported.
        os.environ["TRITON_INTERPRET"] = "1"
    found = check(options.device, tiny=options.small)
    print(f"{table(found)}\n\n{machine(options.device)}")
    options.json.parent.mkdir(parents=True, exist_ok=True)
    content = {"machine": machine(options.device), "results": [dataclasses.asdict(result) for result in found]}
    options.json.write_text(json.dumps(content, indent=2) + "\n")
    return 0 if all(result.passed for result in found) else 1


if __name__ == "__main__":
    sys.exit(main())
