"""Check a server and this client, and say how to fix each problem.

With --probe, only ask the model for one token, for the health checks of Kubernetes and others.
"""

import argparse
import enum
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.text import Text

from inflight_cli.options import add_metrics_option, check_one_server, positive
from inflight_client import Client, InflightError, ModelInfo, RetryPolicy, Timeouts, TransportError

HELP = "check a server"

PACKAGES = ("tritonclient", "grpcio", "httpx", "protobuf")
OLDEST_TRITON = (2, 51)  # Release 24.10.
SHARED_MEMORY = Path("/dev/shm")
MIN_SHARED_MEMORY = 64 * 2**20
ANSWER_SECONDS = 60.0
PROBE_SECONDS = 10
# The inputs that the client sends, and the outputs that it reads.
INPUTS = {
    "text_input": "BYTES",
    "messages": "BYTES",
    "input_ids": "INT32",
    "stream": "BOOL",
    "exclude_input_in_output": "BOOL",
    "sampling_parameters": "BYTES",
}
OUTPUTS = {"text_output": "BYTES", "finish_reason": "BYTES", "token_ids": "INT32", "usage": "UINT32"}


class Level(enum.Enum):
    """Severity of a finding; the value is its color."""

    OK = "green"
    WARNING = "yellow"
    PROBLEM = "red"


@dataclass(frozen=True)
class Finding:
    """The result of a check."""

    level: Level
    subject: str
    text: str
    """What was found, and how to fix it if it is not OK."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_metrics_option(parser)
    parser.add_argument(
        "--probe",
        type=positive,
        nargs="?",
        const=PROBE_SECONDS,
        metavar="SECONDS",
        help=f"only ask for one token within this time ({PROBE_SECONDS}), print one line, and exit with 0 or 1",
    )


def run(options: argparse.Namespace) -> int:
    """Print one line per check. Returns 0, or 1 if there is a problem."""
    check_one_server(options)
    if options.probe is not None:
        return _probe(options, options.probe)
    console = Console(highlight=False, soft_wrap=True)
    level_width = max(len(level.name) for level in Level)
    healthy = True
    with Client(**options.connection, metrics_url=options.metrics_url, retry=RetryPolicy(attempts=1)) as client:
        for finding in check(client, options.url, options.model):
            level = finding.level.name.lower().ljust(level_width)
            console.print(Text.assemble((level, finding.level.value), f" {finding.subject}: {finding.text}"))
            healthy = healthy and finding.level is not Level.PROBLEM
    return 0 if healthy else 1


def _probe(options: argparse.Namespace, seconds: int) -> int:
    timeouts = Timeouts(connect=seconds, first_token=seconds, total=seconds)
    with Client(**options.connection, timeouts=timeouts, retry=RetryPolicy(attempts=1)) as client:
        finding = _check_answer(client, seconds)
    print(*finding.text.split())
    return 0 if finding.level is Level.OK else 1


def check(client: Client, url: str, model: str) -> Iterator[Finding]:
    """Yield the findings. Skips the checks that need a server or a model if it is not available."""
    yield Finding(Level.OK, "client", ", ".join(f"{package} {version(package)}" for package in PACKAGES))
    if _is_local(url) and SHARED_MEMORY.is_dir():
        yield _check_shared_memory()
    try:
        server = client.server_info()
    except InflightError as error:
        text = (
            f"{url} does not answer ({error}); start one, or give another --url: gRPC is on port 8001 by default, "
            "and HTTP, with the prefix http://, on port 8000"
        )
        yield Finding(Level.PROBLEM, "server", text)
        return
    yield Finding(Level.OK, "server", f"{url} answers")
    yield check_version(server.version)
    yield from _check_model(client, model)
    yield _check_metrics(client, model)


def _check_model(client: Client, model: str) -> Iterator[Finding]:
    if not client.is_ready():
        text = (
            f"{model} is not ready: it is not loaded, still loads, shuts down or has failed; see the server's log, "
            "or give another --model"
        )
        yield Finding(Level.PROBLEM, "model", text)
        return
    yield Finding(Level.OK, "model", f"{model} is ready")
    contract = check_contract(client.model_info())
    yield contract
    if contract.level is Level.OK:
        yield _check_answer(client, ANSWER_SECONDS)


def _is_local(url: str) -> bool:
    host = url.rpartition("://")[2].rpartition(":")[0]
    return host in ("localhost", "[::1]") or host.startswith("127.")


def _check_shared_memory() -> Finding:
    free = shutil.disk_usage(SHARED_MEMORY).free
    text = f"{free // 2**20} MB free in {SHARED_MEMORY}"
    if free < MIN_SHARED_MEMORY:
        text += f"; Python models need {MIN_SHARED_MEMORY // 2**20} MB: give the container a larger --shm-size"
        return Finding(Level.WARNING, "shared memory", text)
    return Finding(Level.OK, "shared memory", text)


def check_version(text: str) -> Finding:
    """Check whether the model supports this version of Triton, such as "2.51.0"."""
    oldest = ".".join(map(str, OLDEST_TRITON))
    numbers = text.split(".")[:2]
    if not all(number.isdecimal() for number in numbers):
        return Finding(Level.WARNING, "version", f"Triton reports the version {text!r}; it must be {oldest} or later")
    if tuple(map(int, numbers)) < OLDEST_TRITON:
        return Finding(Level.PROBLEM, "version", f"Triton {text} is too old; use {oldest} (release 24.10) or later")
    return Finding(Level.OK, "version", f"Triton {text}")


def check_contract(info: ModelInfo) -> Finding:
    """Check whether a model has the inputs and outputs that this client uses."""
    missing = []
    for kind, wanted, tensors in (("input", INPUTS, info.inputs), ("output", OUTPUTS, info.outputs)):
        types = {tensor.name: tensor.datatype for tensor in tensors}
        missing += [f"{kind} {name} ({datatype})" for name, datatype in wanted.items() if types.get(name) != datatype]
    if not info.decoupled:
        missing.append("the decoupled transaction policy")
    if missing:
        text = f"{info.name} lacks {', '.join(missing)}; it is not a model of Inflight, or an old version"
        return Finding(Level.PROBLEM, "contract", text)
    return Finding(Level.OK, "contract", f"{info.name} has the inputs and outputs of Inflight")


def _check_answer(client: Client, seconds: float) -> Finding:
    try:
        # A token id, because a model need not have a tokenizer. Every vocabulary has this one.
        completion = client.generate([0], max_tokens=1, timeout=seconds)
    except InflightError as error:
        text = f"a request of 1 token failed with {type(error).__name__}: {error}; the server's log may say more"
        return Finding(Level.PROBLEM, "answer", text)
    return Finding(Level.OK, "answer", f"a request of 1 token took {completion.timings.total:.2f} s")


def _check_metrics(client: Client, model: str) -> Finding:
    try:
        metrics = client.metrics()
    except TransportError as error:
        return Finding(Level.WARNING, "metrics", f"{error}; give --metrics-url")
    mine = (sample.name for sample in metrics.samples if sample.labels.get("model") == model)
    count = len({name for name in mine if name.startswith("inflight:")})
    if not count:
        text = f"the server has no metrics of Inflight; check that {model} is loaded and is a model of Inflight"
        return Finding(Level.WARNING, "metrics", text)
    return Finding(Level.OK, "metrics", f"the server has {count} metrics of Inflight")
