"""Real servers for the tests of load generators."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from scripts.triton_server import TritonServer
from tests.client.conftest import COMPLETION, ECHO

METRONOME = Path(__file__).parents[2] / "load_tests" / "metronome" / "llm"
TOKEN_METRONOME = Path(__file__).parent / "token_metronome.py"


@contextmanager
def echo_server(folder: Path) -> Iterator[TritonServer]:
    """A model whose answer has at most as many tokens as the prompt, and `completion` before it."""
    (folder / "llm").symlink_to(ECHO)
    (folder / "completion").symlink_to(COMPLETION)
    with TritonServer(folder, drain_seconds=2) as server:
        server.wait_ready(60, ["llm", "completion"])
        yield server


@contextmanager
def metronome_server(folder: Path, *, first_ms: int, gap_ms: int) -> Iterator[TritonServer]:
    """A model whose tokens come at known times, however many requests there are; see `sent_times`."""
    (folder / "llm" / "1").mkdir(parents=True)
    (folder / "llm" / "1" / "metronome.py").symlink_to(METRONOME / "1" / "model.py")
    (folder / "llm" / "1" / "model.py").symlink_to(TOKEN_METRONOME)
    config = text_format.Parse((METRONOME / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())
    config.input[0].optional = True
    config.input.add(name="input_ids", data_type="TYPE_INT32", dims=[-1])
    config.parameters["first_ms"].string_value = str(first_ms)
    config.parameters["gap_ms"].string_value = str(gap_ms)
    config.parameters["times_file"].string_value = str(folder / "times.jsonl")
    (folder / "llm" / "config.pbtxt").write_text(text_format.MessageToString(config))
    with TritonServer(folder, drain_seconds=2) as server:
        server.wait_ready(60, ["llm"])
        yield server


def sent_times(server: TritonServer, since: float) -> list[list[float]]:
    """When a metronome sent the tokens of each answer that it began after a moment, by `time.monotonic`, in order."""
    answers = map(json.loads, (server.repository / "times.jsonl").read_text().splitlines())
    return sorted(times for times in answers if times[0] > since)
