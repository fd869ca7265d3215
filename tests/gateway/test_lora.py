"""Adapters over Triton, the SDK and the gateway: answers are those of the model with the adapter in its weights."""

import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import BadRequestError, NotFoundError, OpenAI
from transformers import AutoModelForCausalLM, AutoTokenizer

from inflight_client import Client, DeadlineExceeded, InvalidRequest, RequestCancelled
from inflight_client.metrics import parse_metrics
from scripts.launch.triton_server import TritonServer
from scripts.reference.random_adapter import RandomAdapter
from scripts.reference.tiny_models import greedy
from tests.cli.program import Program
from tests.eventually import eventually
from tests.gateway.gateway_process import GatewayProcess
from tests.triton.prometheus import at_rest, scrape_when
from tests.triton.test_contract import generate

PROMPT = "The ship came into the harbour at dawn, and the"
ASKED: dict[str, Any] = {"max_tokens": 16, "temperature": 0}


@pytest.fixture(scope="module")
def answers(adapters: dict[str, RandomAdapter], first_layers: Path) -> dict[str, str]:
    """What transformers says to the prompt, by the name of the adapter in its weights; with none for ''."""
    tokenizer = AutoTokenizer.from_pretrained(first_layers)
    module = AutoModelForCausalLM.from_pretrained(first_layers, dtype="float32")
    prompt = tokenizer(PROMPT)["input_ids"]
    found = {"": greedy(module, prompt, ASKED["max_tokens"])}
    for name, adapter in adapters.items():
        with adapter.merged_into(module):
            found[name] = greedy(module, prompt, ASKED["max_tokens"])
    texts = {name: tokenizer.decode(tokens, skip_special_tokens=True) for name, tokens in found.items()}
    assert len(set(texts.values())) == 3
    return texts


@pytest.fixture(scope="module")
def openai(drafting_server: TritonServer) -> Iterator[OpenAI]:
    with GatewayProcess(drafting_server.grpc_url) as gateway:
        gateway.wait_for(["/health"], 30)
        yield gateway.openai()


def test_requests_name_an_adapter(drafting_server: TritonServer, answers: dict[str, str]) -> None:
    for name, text in answers.items():
        own = {"lora_name": name} if name else {}
        assert (
            generate(drafting_server, text_input=PROMPT, exclude_input_in_output=True, **ASKED, **own)["text_output"]
            == text
        )
    # As vllm_backend has it.
    parameters = '{"lora_name": "poet", "max_tokens": 16, "temperature": 0}'
    found = generate(drafting_server, text_input=PROMPT, exclude_input_in_output=True, sampling_parameters=parameters)
    assert found["text_output"] == answers["poet"]


def test_adapters_in_the_client(drafting_server: TritonServer, answers: dict[str, str]) -> None:
    before = scrape_when(drafting_server, at_rest).by("lora_requests_total", "lora_name")
    assert "pirate" in before
    with Client(drafting_server.grpc_url) as client:
        assert client.describe_model().lora_modules == ("pirate", "poet")
        assert client.generate(PROMPT, lora_name="pirate", **ASKED).text == answers["pirate"]
        with pytest.raises(InvalidRequest, match="lora_name is 'baker'; it must be one of pirate, poet"):
            client.generate(PROMPT, lora_name="baker", **ASKED)
    wanted = {**before, "pirate": before["pirate"] + 1}
    scrape_when(drafting_server, lambda found: found.by("lora_requests_total", "lora_name") == wanted)


def test_adapters_on_the_command_line(drafting_server: TritonServer, answers: dict[str, str]) -> None:
    asked = ("generate", PROMPT, "--max-tokens", "16", "--temperature", "0")
    done = Program(drafting_server.grpc_url).run(*asked, "--lora-name", "poet")
    assert done.stdout == f"{answers['poet']}\n"


def test_adapters_are_models_of_the_gateway(openai: OpenAI, answers: dict[str, str]) -> None:
    models = {model.id: model.to_dict().get("parent") for model in openai.models.list()}
    assert models == {"llm": None, "pirate": "llm", "poet": "llm"}
    assert openai.models.retrieve("poet").id == "poet"
    for name, text in answers.items():
        answer = openai.completions.create(model=name or "llm", prompt=PROMPT, **ASKED)
        assert (answer.model, answer.choices[0].text) == (name or "llm", text)


def test_chats_and_embeddings_take_adapters(openai: OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "Who are you?"}]
    chats, responses, vectors = set(), set(), set()
    for model in ("llm", "pirate", "poet"):
        chats.add(openai.chat.completions.create(model=model, messages=messages, **ASKED).choices[0].message.content)
        responses.add(
            openai.responses.create(model=model, input="Who are you?", max_output_tokens=16, temperature=0).output_text
        )
        vectors.add(tuple(openai.embeddings.create(model=model, input=PROMPT).data[0].embedding[:4]))
    assert [len(found) for found in (chats, responses, vectors)] == [3, 3, 3]
    assert chats == responses


def is_served(openai: OpenAI, name: str) -> bool:
    try:
        return openai.models.retrieve(name).id == name
    except NotFoundError:
        return False


def test_an_adapter_is_added_replaced_and_removed_while_the_server_runs(
    drafting_server: TritonServer, openai: OpenAI, answers: dict[str, str], lora_folder: Path, first_layers: Path
) -> None:
    def ask() -> str:
        return openai.completions.create(model="cook", prompt=PROMPT, **ASKED).choices[0].text

    with pytest.raises(NotFoundError, match="model is 'cook'"):
        ask()
    before = scrape_when(drafting_server, at_rest).get("lora_loads_total")
    shutil.copytree(lora_folder / "poet", lora_folder / ".cook")
    os.rename(lora_folder / ".cook", lora_folder / "cook")
    # The gateway asks the server anew, but at most once a second.
    assert eventually(lambda: is_served(openai, "cook"), 20)
    assert ask() == answers["poet"]
    scrape_when(drafting_server, lambda found: found.get("lora_loads_total") == before + 1)
    module = AutoModelForCausalLM.from_pretrained(first_layers, dtype="float32")
    RandomAdapter(seed=1, size=0.05).save(lora_folder / "cook", module)
    assert ask() == answers["pirate"]
    shutil.rmtree(lora_folder / "cook")
    with pytest.raises((BadRequestError, NotFoundError), match="'cook'"):
        ask()
    # The gateway asks for the names every ten seconds.
    assert eventually(lambda: not is_served(openai, "cook"), 30)


@pytest.fixture
def many(
    drafting_server: TritonServer, adapters: dict[str, RandomAdapter], lora_folder: Path, first_layers: Path
) -> Iterator[list[str]]:
    """More adapters than may be in memory: those with an even number are pirates, the others poets."""
    module = AutoModelForCausalLM.from_pretrained(first_layers, dtype="float32")
    names = [f"many-{number}" for number in range(5)]
    for number, name in enumerate(names):
        adapters[("pirate", "poet")[number % 2]].save(lora_folder / name, module)
    yield names
    for name in names:
        shutil.rmtree(lora_folder / name)


def test_requests_wait_for_room_in_memory(
    drafting_server: TritonServer, answers: dict[str, str], many: list[str]
) -> None:
    asked = many * 5
    with Client(drafting_server.grpc_url) as client, ThreadPoolExecutor(len(asked)) as pool:
        texts = list(pool.map(lambda name: client.generate(PROMPT, lora_name=name, **ASKED).text, asked))
    assert texts == [answers[("pirate", "poet")[many.index(name) % 2]] for name in asked]


def test_a_load_that_never_ends_leaves_room_for_others(
    drafting_server: TritonServer, answers: dict[str, str], many: list[str]
) -> None:
    ended = threading.Event()

    def ask_again_and_again(client: Client, name: str) -> int:
        count = 0
        while not ended.is_set():
            client.generate(PROMPT, lora_name=name, max_tokens=24, ignore_eos=True)
            count += 1
        return count

    with Client(drafting_server.grpc_url) as client, ThreadPoolExecutor(8) as pool:
        asking = [pool.submit(ask_again_and_again, client, name) for name in many[:2] * 4]
        try:
            for name in many[2:]:
                text = client.generate(PROMPT, lora_name=name, deadline_ms=60_000, **ASKED).text
                assert text == answers[("pirate", "poet")[many.index(name) % 2]]
        finally:
            ended.set()
        assert all(each.result() > 0 for each in asking)


def adapters_in_use(server: TritonServer) -> tuple[set[str], set[str]]:
    """The adapters of running and of waiting requests, as an endpoint picker reads them: the newest series counts."""
    series = parse_metrics(httpx.get(server.metrics_url).text).select("vllm:lora_requests_info")
    newest = max(series, key=lambda sample: sample.value)
    assert newest.labels["max_lora"] == "3"
    running, waiting = (newest.labels[f"{state}_lora_adapters"] for state in ("running", "waiting"))
    return {*running.split(",")} - {""}, {*waiting.split(",")} - {""}


def test_routers_see_which_adapters_are_in_use(drafting_server: TritonServer, many: list[str]) -> None:
    with Client(drafting_server.grpc_url) as client, ThreadPoolExecutor(1) as pool:
        running = [client.stream(PROMPT, lora_name=name, max_tokens=1000, ignore_eos=True) for name in many[:2]]
        for stream in running:
            next(iter(stream))
        waiting = client.stream(PROMPT, lora_name=many[2], **ASKED)
        read = pool.submit(list, waiting)
        assert eventually(lambda: adapters_in_use(drafting_server) == ({*many[:2]}, {many[2]}))
        running[0].cancel()
        assert read.result(30)
        assert eventually(lambda: adapters_in_use(drafting_server) == ({many[1]}, set()))
        running[1].cancel()
        assert eventually(lambda: adapters_in_use(drafting_server) == (set(), set()))


def test_who_waits_for_room_can_leave(drafting_server: TritonServer, answers: dict[str, str], many: list[str]) -> None:
    with Client(drafting_server.grpc_url) as client, ThreadPoolExecutor(2) as pool:
        running = [client.stream(PROMPT, lora_name=name, max_tokens=1000, ignore_eos=True) for name in many[:2]]
        for stream in running:
            next(iter(stream))
        with pytest.raises(DeadlineExceeded, match="lora_name is 'many-2'; the adapter waited for room"):
            client.generate(PROMPT, lora_name=many[2], deadline_ms=300, **ASKED)
        waiting = client.stream(PROMPT, lora_name=many[3], **ASKED)
        read = pool.submit(list, waiting)
        assert eventually(lambda: len(client.unfinished_requests()) == 3)
        waiting.cancel()
        assert isinstance(read.exception(10), RequestCancelled)
        assert eventually(lambda: len(client.unfinished_requests()) == 2)
        with pytest.raises(InvalidRequest, match="lora_name is 'baker'"):
            client.generate(PROMPT, lora_name="baker", **ASKED)
        assert client.generate(PROMPT, lora_name="pirate", **ASKED).text == answers["pirate"]
        running[0].cancel()
        assert client.generate(PROMPT, lora_name=many[4], **ASKED).text == answers["pirate"]
        running[1].cancel()


def test_models_that_are_not_there(openai: OpenAI) -> None:
    # The tests before have removed adapters, and the gateway asks for the names every ten seconds.
    assert eventually(lambda: {model.id for model in openai.models.list()} == {"llm", "pirate", "poet"}, 30)
    with pytest.raises(NotFoundError, match="model is 'baker'; it must be llm, or one of its adapters pirate, poet"):
        openai.completions.create(model="baker", prompt=PROMPT, **ASKED)
    with pytest.raises(NotFoundError, match="model is 'baker'"):
        openai.models.retrieve("baker")
