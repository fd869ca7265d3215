"""A gateway in front of a real tritonserver with the model that echoes prompts."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI
from transformers import AutoModelForCausalLM

from scripts.launch.default_model import default_model
from scripts.launch.model_repository import render_repository
from scripts.launch.triton_server import TritonServer
from scripts.reference.random_adapter import RandomAdapter
from tests.client.conftest import ECHO
from tests.gateway.gateway_process import GatewayProcess
from tests.otlp_receiver import Receiver, otlp_receiver
from tests.running_server import running_server

DRAFTS = '{"method": "ngram", "num_speculative_tokens": 4, "adaptive": false}'


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    repository = tmp_path_factory.mktemp("models")
    (repository / "llm").symlink_to(ECHO)
    with running_server(repository, ["llm"]) as server:
        yield server


@pytest.fixture(scope="session")
def receiver() -> Iterator[Receiver]:
    """Where the spans of `drafting_server` and its Triton go."""
    with pytest.MonkeyPatch.context() as environment, otlp_receiver() as receiver:
        environment.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")  # Milliseconds; the default is 5 s.
        yield receiver


@pytest.fixture(scope="session")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RandomAdapter]:
    """The LoRA adapters of `drafting_server`: `pirate` is in `lora_modules`, `poet` in `lora_folder`."""
    return {"pirate": RandomAdapter(seed=1, size=0.05), "poet": RandomAdapter(seed=2, size=0.05)}


@pytest.fixture(scope="session")
def lora_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The setting of `drafting_server`."""
    return tmp_path_factory.mktemp("lora-folder")


@pytest.fixture(scope="session")
def drafting_server(
    tmp_path_factory: pytest.TempPathFactory,
    receiver: Receiver,
    adapters: dict[str, RandomAdapter],
    lora_folder: Path,
    first_layers: Path,
) -> Iterator[TritonServer]:
    """A server with a model in float32 and adapters, and with drafts wherever tokens repeat, whether they pay
    or not.

    Triton and the model make spans of the requests whose callers ask for them.
    """
    folder = tmp_path_factory.mktemp("adapters")
    module = AutoModelForCausalLM.from_pretrained(first_layers, dtype="float32")
    adapters["poet"].save(lora_folder / "poet", module)
    parameters = {
        "model": str(first_layers),
        "lora_modules": json.dumps({"pirate": adapters["pirate"].save(folder / "named", module)}),
        "lora_folder": str(lora_folder),
        "max_loras": "2",
        "vllm_metric_names": "true",
        "dtype": "float32",
        "kv_cache_tokens": "6144",
        "speculative_config": DRAFTS,
        "otlp_traces_endpoint": receiver.url,
    }
    repository = render_repository(tmp_path_factory.mktemp("repository") / "models", parameters=parameters)
    with running_server(repository, ["llm"], triton_tracing(receiver)) as server:
        yield server


@pytest.fixture(scope="session")
def real_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """A server with the default model in float32, which makes the same drafts."""
    parameters = {
        "model": str(default_model()),
        "dtype": "float32",
        "kv_cache_tokens": "16384",
        "speculative_config": DRAFTS,
    }
    repository = render_repository(tmp_path_factory.mktemp("real") / "models", parameters=parameters)
    with running_server(repository, ["llm"]) as server:
        yield server


def triton_tracing(receiver: Receiver) -> list[str]:
    """Arguments of a tritonserver that makes spans itself, but only of the requests whose headers ask for them."""
    settings = ["mode=opentelemetry", "level=TIMESTAMPS", "rate=2000000000"]
    settings += [f"opentelemetry,url={receiver.url}/v1/traces", "opentelemetry,bsp_schedule_delay=100"]
    return [f"--trace-config={setting}" for setting in settings]


@pytest.fixture(scope="session")
def gateway(server: TritonServer) -> Iterator[GatewayProcess]:
    with GatewayProcess(server.grpc_url, f"--metrics-url={server.metrics_url}") as gateway:
        gateway.wait_for(["/health"], 30)
        yield gateway


@pytest.fixture
def client(gateway: GatewayProcess) -> Iterator[OpenAI]:
    with gateway.openai() as client:
        yield client
