"""Two real servers, one for prompts and one for the rest: the tokens are those of one server, whoever dies."""

import copy
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from threading import Event
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as grpcclient

from inflight_client import Client, Prefill, RetryPolicy
from scripts.launch.model_repository import MODEL_REPOSITORY
from scripts.launch.triton_server import SHARED_MEMORY, TritonServer
from scripts.reference.tiny_models import SERVED, greedy, save_model
from tests.engine.models import make_prompt
from tests.eventually import eventually
from tests.gateway.gateway_process import GatewayProcess
from tests.running_server import READY_SECONDS
from tests.triton.conftest import add_llm

CONTEXT, MAX_TOKENS = 512, 24
PREFILL = "prefill"


class Pair:
    """A server for prompts and one for the rest. The second one also has both as two models, and `completion`."""

    def __init__(self, prompts: TritonServer, rest: TritonServer, module: Any) -> None:
        self.prompts, self.rest = prompts, rest
        self._module = module

    def expected(self, prompt: list[int], max_tokens: int = MAX_TOKENS) -> list[int]:
        return greedy(self._module, prompt, max_tokens)

    def client(self, **options: Any) -> Client:
        prefill = Prefill(url=self.prompts.grpc_url, min_tokens=32)
        return Client(self.rest.grpc_url, prefill=prefill, retry=RetryPolicy(attempts=1), **options)

    def counts(self, server: TritonServer, name: str, label: str | None = None, model: str = "llm") -> Any:
        with Client(server.grpc_url, metrics_url=server.metrics_url) as client:
            found = [s for s in client.metrics().samples if s.name == name and s.labels["model"] == model]
        return {s.labels[label]: s.value for s in found} if label else sum(s.value for s in found)

    @contextmanager
    def fetching(self, count: int, server: TritonServer, model: str = "llm") -> Iterator[None]:
        """`count` prompts are fetched from `server` meanwhile. Metrics come late, so both ends are awaited."""

        def fetched() -> tuple[float, float]:
            exports = self.counts(server, "inflight:kv_transfer_exports_total", "outcome", model)
            return self.counts(self.rest, "inflight:kv_transfer_imports_total"), exports["fetched"]

        imports, exports = fetched()
        yield
        assert eventually(lambda: fetched() == (imports + count, exports + count)), fetched()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder, config = tmp_path_factory.mktemp("pair"), copy.deepcopy(SERVED["llama"].config)
    config.max_position_embeddings = CONTEXT
    module = save_model(config, folder / "model")
    common = {"model": str(folder / "model"), "dtype": "float32", "kv_cache_tokens": "4096"}

    def add(repository: str, name: str, **transfer: Any) -> None:
        (folder / repository).mkdir(exist_ok=True)
        add_llm(folder / repository, name, "config.pbtxt", {**common, "kv_transfer_config": json.dumps(transfer)})

    add("prompts", "llm", kv_role="kv_producer", kv_connector="tcp", kv_connector_extra_config={"export_timeout": 2})
    add("rest", "llm", kv_role="kv_consumer", kv_connector="tcp")
    add("rest", PREFILL, kv_role="kv_producer", kv_connector="tcp")
    completion = folder / "rest" / "completion"
    completion.mkdir()
    (completion / "1").symlink_to(MODEL_REPOSITORY / "completion" / "1")
    written = (MODEL_REPOSITORY / "completion/configs/disaggregated_serving_bls.pbtxt").read_text()
    (completion / "config.pbtxt").write_text(written)
    with ExitStack() as stack:
        rest, prompts = (stack.enter_context(TritonServer(folder / name)) for name in ("rest", "prompts"))
        rest.wait_ready(READY_SECONDS, ["llm", PREFILL, "completion"])
        prompts.wait_ready(READY_SECONDS, ["llm"])
        yield Pair(prompts, rest, module)
        for server in (rest, prompts):
            server.kill()


def generate(server: TritonServer, **body: Any) -> dict[str, Any]:
    response = httpx.post(f"http://{server.http_url}/v2/models/llm/generate", json=body, timeout=60)
    return {"status": response.status_code, **response.json()}


def test_the_two_calls_of_vllm(pair: Pair) -> None:
    prompt = make_prompt(70)
    asked = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_host": None}
    first = generate(pair.prompts, input_ids=prompt, max_tokens=1, kv_transfer_params=json.dumps(asked))
    offer = json.loads(first["kv_transfer_params"])
    assert offer["do_remote_prefill"]
    with pair.fetching(1, pair.prompts):
        second = generate(
            pair.rest,
            input_ids=prompt,
            max_tokens=MAX_TOKENS,
            temperature=0,
            return_token_ids=True,
            sampling_parameters=json.dumps({"kv_transfer_params": offer}),
        )
        assert second["token_ids"] == pair.expected(prompt)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"do_remote_decode": True}, "which a kv_producer does"),
        ({"do_remote_prefill": True}, "remote_engine_id is None"),
        ({"remote_prefill": True}, "has the key 'remote_prefill'"),
        (7, "kv_transfer_params"),
    ],
)
def test_requests_that_make_no_sense_are_refused(pair: Pair, params: object, message: str) -> None:
    answer = generate(pair.rest, input_ids=[5, 6], max_tokens=1, kv_transfer_params=json.dumps(params))
    assert answer["status"] == 400
    assert message in answer["error"]


def test_the_client_sends_long_prompts_to_the_server_for_prompts(pair: Pair) -> None:
    with pair.fetching(3, pair.prompts), pair.client() as client:
        for length in (5, 31, 32, 200):
            prompt = make_prompt(length, seed=1)
            answer = client.generate(prompt, max_tokens=MAX_TOKENS, temperature=0)
            assert list(answer.token_ids) == pair.expected(prompt)
        sampled = {"max_tokens": 12, "temperature": 1.0, "seed": 11, "n": 3, "ignore_eos": True}
        apart = client.generate(make_prompt(90), **sampled)
        assert client.prefills == {"offered": 3, "not_offered": 0, "failed": 0, "skipped": 0}
    with Client(pair.rest.grpc_url) as alone:
        assert alone.generate(make_prompt(90), **sampled).choices == apart.choices


def test_the_gateway_routes_in_two_calls(pair: Pair) -> None:
    prompt = make_prompt(120)
    arguments = ["--prefill-server", pair.prompts.grpc_url, "--prefill-min-tokens", "32"]
    with (
        pair.fetching(1, pair.prompts),
        GatewayProcess(pair.rest.grpc_url, *arguments) as gateway,
        Client(pair.rest.grpc_url) as alone,
    ):
        gateway.wait_for(["/health"], 60)
        asked = {"model": "llm", "prompt": prompt, "max_tokens": 12, "temperature": 0, "logprobs": 0}
        answer = httpx.post(f"{gateway.url}/v1/completions", json=asked, timeout=60).json()
        found = answer["choices"][0]["logprobs"]["token_logprobs"]
        expected = alone.generate(prompt, max_tokens=12, temperature=0, logprobs=0)
        assert found == pytest.approx([token.chosen.logprob for token in expected.logprobs], abs=1e-5)
        metrics = httpx.get(f"{gateway.url}/metrics", timeout=60).text
        assert 'inflight_gateway_prefills_total{outcome="offered"} 1.0' in metrics


def complete(pair: Pair, prompt: list[int], **parameters: Any) -> Any:
    """The token ids that the model `completion` answers with, one row a choice, -1 where a choice has ended."""
    given = grpcclient.InferInput("input_ids", [len(prompt)], "INT32")
    given.set_data_from_numpy(np.array(prompt, dtype=np.int32))
    with grpcclient.InferenceServerClient(pair.rest.grpc_url) as client:
        answer = client.infer("completion", [given], parameters={"return_token_ids": True, **parameters})
    return answer.as_numpy("token_ids")


def test_two_models_in_one_server(pair: Pair) -> None:
    prompt = make_prompt(80, seed=3)
    with pair.fetching(1, pair.rest, PREFILL):
        rows = complete(pair, prompt, max_tokens=MAX_TOKENS, temperature="0", n=2)
    for row in rows:
        assert [token for token in row.tolist() if token >= 0] == pair.expected(prompt)


@pytest.mark.parametrize(
    "given",
    [{"sampling_parameters": "[" * 9_000}, {"sampling_parameters": "{"}, {"n": "x"}],
    ids=["deep", "cut", "no number"],
)
def test_two_models_refuse_as_one_does(pair: Pair, given: dict[str, Any]) -> None:
    refused = []
    for model in ("completion", "llm"):
        url = f"http://{pair.rest.http_url}/v2/models/{model}/generate"
        response = httpx.post(url, json={"text_input": "x", **given}, timeout=60)
        refused.append((response.status_code, response.json()["error"].rpartition("': ")[2]))
    assert refused[0] == refused[1]
    assert refused[0][0] == 400


def test_a_prompt_that_another_server_has_computed_is_fetched_from_there(pair: Pair) -> None:
    prompt = make_prompt(85, seed=4)
    asked = {"input_ids": prompt, "max_tokens": 1, "kv_transfer_params": '{"do_remote_decode": true}'}
    offer = generate(pair.prompts, **asked)["kv_transfer_params"]
    with pair.fetching(1, pair.prompts):
        tokens = complete(pair, prompt, max_tokens=MAX_TOKENS, temperature="0", kv_transfer_params=offer)
    assert tokens.reshape(-1).tolist() == pair.expected(prompt)


def test_a_tenant_in_the_json_of_a_parameter_goes_to_both_models(pair: Pair) -> None:
    with pair.fetching(1, pair.rest, PREFILL):
        complete(pair, make_prompt(64, seed=6), sampling_parameters='{"tenant": "a", "max_tokens": 2}')


def test_exports_of_clients_that_never_come_back_are_dropped(pair: Pair) -> None:
    asked = {"input_ids": make_prompt(60), "max_tokens": 1, "kv_transfer_params": '{"do_remote_decode": true}'}
    assert generate(pair.prompts, **asked)["status"] == 200
    exports = "inflight:kv_transfer_exports_total"
    assert eventually(lambda: pair.counts(pair.prompts, exports, "outcome")["expired"] == 1, 10)
    assert pair.counts(pair.prompts, "inflight:kv_transfer_held_bytes", "direction")["exported"] == 0


def test_the_end_of_the_server_for_prompts_is_not_noticed_by_clients(pair: Pair) -> None:
    prompts = [make_prompt(100 + number, seed=5) for number in range(12)]
    expected = [pair.expected(prompt) for prompt in prompts]
    killed = Event()
    with pair.client() as client, ThreadPoolExecutor(len(prompts)) as pool:

        def ask(prompt: list[int]) -> set[tuple[int, ...]]:
            """The answers to requests one after the other, the last of which begins after the end of the server."""
            answers, is_last = set(), False
            while not is_last:
                is_last = killed.is_set()
                answers.add(client.generate(prompt, max_tokens=MAX_TOKENS, temperature=0).token_ids)
            return answers

        futures = [pool.submit(ask, prompt) for prompt in prompts]
        assert client.prefills is not None
        assert eventually(lambda: client.prefills["offered"] > 0, 30)
        pair.prompts.kill()
        killed.set()
        for future, tokens in zip(futures, expected, strict=True):
            assert future.result(60) == {tuple(tokens)}
        assert client.prefills["failed"] > 0
        assert client.prefills["failed"] + client.prefills["skipped"] >= len(prompts)
    held = "inflight:kv_transfer_held_bytes"
    assert eventually(lambda: pair.counts(pair.rest, held, "direction")["imported"] == 0)
    assert eventually(lambda: pair.counts(pair.rest, "inflight:num_requests_running") == 0)
    left = (pair.prompts.region_prefix, "inflight-kv")
    assert not [name for name in os.listdir(SHARED_MEMORY) if name.startswith(left)]
