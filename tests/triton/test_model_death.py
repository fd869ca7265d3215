"""What clients see when the model's process dies or stands still: an error at once, not silence."""

import contextlib
import copy
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from inflight_client import Client, InflightError, ModelNotReady, RetryPolicy, Timeouts
from scripts.launch.model_repository import MODEL_REPOSITORY
from scripts.launch.triton_server import SHARED_MEMORY, TritonServer
from scripts.reference.tiny_models import SERVED, save_model
from serving.process import Process
from tests.eventually import eventually
from tests.processes import children, is_model
from tests.running_server import running_server
from tests.triton.conftest import add_llm

STREAMS = 16
PROMPT = [5, 6, 7]
# Streams that last longer than any test.
CONTEXT, MAX_TOKENS = 8192, 8000
# In which every client must have an error after the model's death.
BOUND_SECONDS = 5
STEP_TIMEOUT_SECONDS = 2
# In which the watchdog or the guardian must notice that nothing moves.
NOTICE_SECONDS = STEP_TIMEOUT_SECONDS + 20


@pytest.fixture(scope="module")
def parameters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("llama")
    config = copy.deepcopy(SERVED["llama"].config)
    config.max_position_embeddings = CONTEXT
    save_model(config, folder)
    return {
        "model": str(folder),
        "dtype": "float32",
        "kv_cache_tokens": str(STREAMS * CONTEXT),
    }


def add_sabotaged(repository: Path, name: str, parameters: dict[str, str]) -> None:
    """Add an `llm` that a request can break."""
    add_llm(repository, name, "config.pbtxt", {**parameters, "step_timeout_seconds": str(STEP_TIMEOUT_SECONDS)})
    version = repository / name / "1"
    version.unlink()
    version.mkdir()
    for package in ("inflight", "serving"):
        (version / package).symlink_to(MODEL_REPOSITORY / "llm/1" / package)
    (version / "real_model.py").symlink_to(MODEL_REPOSITORY / "llm/1/model.py")
    (version / "model.py").symlink_to(Path(__file__).with_name("sabotaged_model.py"))


def sabotage(server: TritonServer, model: str, how: str) -> None:
    """Break the model. The request that does it may get no answer."""
    body = {"input_ids": PROMPT, "max_tokens": 1, "sabotage": how}
    with contextlib.suppress(httpx.TransportError):
        httpx.post(f"http://{server.http_url}/v2/models/{model}/generate", json=body, timeout=0.5)


def manage(server: TritonServer, model: str, action: str) -> None:
    """Load or unload the model."""
    url = f"http://{server.http_url}/v2/repository/models/{model}/{action}"
    httpx.post(url, json={}, headers=server.operator_headers, timeout=60).raise_for_status()


@contextlib.contextmanager
def client_of(server: TritonServer, model: str) -> Iterator[Client]:
    # Bounded, so that a test fails instead of hanging where a server neither answers nor ends.
    timeouts = Timeouts(first_token=90, total=90)
    with Client(server.grpc_url, model=model, timeouts=timeouts, retry=RetryPolicy(attempts=1)) as client:
        yield client


@contextlib.contextmanager
def streams(server: TritonServer, model: str) -> Iterator[list[Future[str]]]:
    """Streams that are running. The result of each is the error that ends it."""

    def read() -> str:
        with client_of(server, model) as client, pytest.raises(InflightError) as caught:
            client.generate(PROMPT, max_tokens=MAX_TOKENS, ignore_eos=True)
        return str(caught.value)

    with ThreadPoolExecutor(STREAMS) as pool, client_of(server, model) as client:
        results = [pool.submit(read) for _ in range(STREAMS)]
        assert eventually(lambda: len(client.unfinished_requests()) == STREAMS, 60)
        yield results


def errors(results: list[Future[str]], seconds: float) -> set[str]:
    """The errors of streams, all of which must end in time."""
    assert eventually(lambda: all(result.done() for result in results), seconds)
    return {result.result() for result in results}


def regions(server: TritonServer) -> list[Path]:
    return list(SHARED_MEMORY.glob(f"{server.region_prefix}*"))


def kill(server: TritonServer, model: str) -> None:
    """Kill the model's process, as the out-of-memory killer does."""

    def processes() -> list[Process]:
        return [child for child in children(server.pid) if is_model(child, model)]

    # A model that was loaded again ends its first process after the second is ready.
    assert eventually(lambda: len(processes()) == 1, 30)
    processes()[0].send(signal.SIGKILL)


def ended(server: TritonServer, log: list[str]) -> None:
    """The server has ended, by the guardian's signal, and has left nothing."""
    assert server.wait() == "was ended by SIGKILL"
    assert any("guardian] the process of the model" in line for line in log)
    assert regions(server) == []


def test_a_model_that_may_die_takes_nothing_with_it(tmp_path: Path, parameters: dict[str, str]) -> None:
    """`calm` may die alone, and `llm` may not."""
    add_sabotaged(tmp_path, "calm", {**parameters, "on_model_death": "none"})
    add_llm(tmp_path, "llm", "config.pbtxt", parameters)
    log: list[str] = []
    with running_server(
        tmp_path, ["llm", "calm"], ["--model-control-mode=explicit", "--load-model=*"], log=log.append
    ) as server:
        with client_of(server, "llm") as llm, client_of(server, "calm") as calm:
            answer = llm.generate(PROMPT, max_tokens=8)
            assert calm.is_serving()

            # An orderly end of `llm` is no death.
            manage(server, "llm", "unload")
            manage(server, "llm", "load")
            assert llm.generate(PROMPT, max_tokens=8).choices == answer.choices

            # A fault in `calm` that its process survives.
            with streams(server, "calm") as running:
                sabotage(server, "calm", "responder ends")
                assert errors(running, NOTICE_SECONDS) == {"the responder thread has ended"}
            assert not calm.is_serving()
            for ask in (calm.check_serving, lambda: calm.generate(PROMPT)):
                with pytest.raises(ModelNotReady, match="the engine has stopped"):
                    ask()
            manage(server, "calm", "load")
            assert calm.generate(PROMPT, max_tokens=8).choices == answer.choices

            # One that it does not survive. From then on, Triton 24.10 may hang in requests to the other model.
            kill(server, "calm")
            assert eventually(lambda: not calm.is_serving(), BOUND_SECONDS)

            kill(server, "llm")
        ended(server, log)


def test_the_death_of_completion_ends_the_server_too(tmp_path: Path, parameters: dict[str, str]) -> None:
    add_llm(tmp_path, "llm", "config.pbtxt", parameters)
    (tmp_path / "completion").symlink_to(MODEL_REPOSITORY / "completion")
    log: list[str] = []
    with running_server(tmp_path, ["llm", "completion"], log=log.append) as server:
        url = f"http://{server.http_url}/v2/models/completion/generate"
        body = {"input_ids": PROMPT, "max_tokens": MAX_TOKENS, "ignore_eos": True}
        with client_of(server, "llm") as llm, ThreadPoolExecutor(STREAMS) as pool:
            calls = [pool.submit(httpx.post, url, json=body, timeout=90) for _ in range(STREAMS)]
            assert eventually(lambda: len(llm.unfinished_requests()) == STREAMS, 60)
            kill(server, "completion")
            assert eventually(lambda: all(call.done() for call in calls), BOUND_SECONDS)
            assert all(isinstance(call.exception(), httpx.TransportError) for call in calls)
        ended(server, log)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("engine stands still", "a step takes longer than step_timeout_seconds (2 s)"),
        pytest.param("lock is kept", None, marks=pytest.mark.slow),
    ],
)
def test_a_model_that_stands_still_is_ended(
    tmp_path: Path, parameters: dict[str, str], how: str, message: str | None
) -> None:
    add_sabotaged(tmp_path, "llm", parameters)
    log: list[str] = []
    with running_server(tmp_path, ["llm"], log=log.append) as server:
        with streams(server, "llm") as running:
            sabotage(server, "llm", how)
            found = errors(running, NOTICE_SECONDS)
            assert message is None or found == {message}
        ended(server, log)


def test_the_death_of_a_rank_ends_the_server_with_an_error_for_all(tmp_path: Path, parameters: dict[str, str]) -> None:
    add_llm(tmp_path, "llm", "config.pbtxt", {**parameters, "tensor_parallel_size": "2"})
    log: list[str] = []
    with running_server(tmp_path, ["llm"], log=log.append) as server:
        (model,) = [child for child in children(server.pid) if is_model(child, "llm")]
        (rank,) = [child for child in children(model.pid) if is_rank(child)]
        with streams(server, "llm") as running:
            rank.send(signal.SIGKILL)
            assert errors(running, BOUND_SECONDS) == {"the engine has stopped: rank 1 has ended with the status -9"}
        ended(server, log)


@pytest.mark.slow
def test_the_death_of_a_divided_model_ends_its_ranks(tmp_path: Path, parameters: dict[str, str]) -> None:
    add_llm(tmp_path, "llm", "config.pbtxt", {**parameters, "tensor_parallel_size": "2"})
    log: list[str] = []
    with running_server(tmp_path, ["llm"], log=log.append) as server:
        (model,) = [child for child in children(server.pid) if is_model(child, "llm")]
        (rank,) = [child for child in children(model.pid) if is_rank(child)]
        with streams(server, "llm") as running:
            kill(server, "llm")
            errors(running, BOUND_SECONDS)
        assert rank.ends_within(BOUND_SECONDS)
        ended(server, log)


def is_rank(process: Process) -> bool:
    return "inflight.model.parallel.worker" in Path(f"/proc/{process.pid}/cmdline").read_text()
