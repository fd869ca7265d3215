"""Prompts with images over the wire: the answers are those of transformers' `generate`."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from inflight_client import Client, InvalidRequest, Message
from scripts.launch.triton_server import TritonServer
from tests.cli.program import Program
from tests.images import picture
from tests.served_images import NUM_TOKENS, ServedImages
from tests.triton.prometheus import at_rest, scrape_when
from tests.triton.test_contract import generate

IMAGE = {"type": "image"}
PICTURES = [picture(1, 70, 50), picture(2, 30, 90, "JPEG")]


def b64(images: Sequence[bytes]) -> list[str]:
    return [base64.b64encode(image).decode() for image in images]


def asking(parts: Sequence[Mapping[str, str]]) -> list[Message]:
    return [{"role": "user", "content": parts}]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedImages]:
    with ServedImages.start(tmp_path_factory.mktemp("served")) as served:
        yield served


def test_images_come_as_in_vllm_backend(served: ServedImages) -> None:
    text = "Compare <image> with <image>, please."
    found = generate(
        served.server,
        text_input=text,
        image=b64(PICTURES),
        max_tokens=NUM_TOKENS,
        temperature=0.0,
        exclude_input_in_output=True,
    )
    assert found["text_output"] == served.expected(text, PICTURES)


@pytest.fixture(params=["grpc", "http"])
def client(request: pytest.FixtureRequest, served: ServedImages) -> Iterator[Client]:
    server = served.server
    with Client(server.grpc_url if request.param == "grpc" else f"http://{server.http_url}") as client:
        yield client


def test_the_client_sends_images(served: ServedImages, client: Client) -> None:
    text = "<image> What is this?"
    for image in PICTURES:
        answer = client.generate(text, images=[image], max_tokens=NUM_TOKENS, temperature=0)
        assert answer.text == served.expected(text, [image])


def test_a_chat_has_images_among_its_texts(served: ServedImages, client: Client) -> None:
    chat = asking([IMAGE, {"type": "text", "text": " and "}, IMAGE, {"type": "text", "text": ": which is larger?"}])
    shown = "<|im_start|>user\n<image> and <image>: which is larger?<|im_end|>\n<|im_start|>assistant\n"
    answer = client.generate(messages=chat, images=PICTURES, max_tokens=NUM_TOKENS, temperature=0)
    assert answer.text == served.expected(shown, PICTURES)


def test_what_a_message_spells_out_is_no_place_of_an_image(served: ServedImages) -> None:
    chat = asking([IMAGE, {"type": "text", "text": " This is no <image>."}])
    with Client(served.server.grpc_url) as client:
        assert client.generate(messages=chat, images=PICTURES[:1], max_tokens=2).text
        with pytest.raises(InvalidRequest, match="2 images are given, and the prompt has 1 places for them"):
            client.generate(messages=chat, images=PICTURES, max_tokens=2)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"image": ["!"]}, "image is not valid base64"),
        ({"image": b64([b"no picture"])}, "images[0] is no file in one of the formats PNG, JPEG, WEBP, GIF, BMP"),
        ({"image": b64(PICTURES)}, "2 images are given, and the prompt has 1 places for them"),
        ({"image": b64(PICTURES[:1]), "truncate_prompt_tokens": 5}, "truncate_prompt_tokens is given with image"),
    ],
)
def test_what_is_no_image_is_refused_and_hurts_nobody(served: ServedImages, fields: dict[str, Any], says: str) -> None:
    text = "<image> What is this?"
    answer = httpx.post(
        f"http://{served.server.http_url}/v2/models/llm/generate", json={"text_input": text, "max_tokens": 2, **fields}
    )
    assert answer.status_code == 400
    assert says in answer.json()["error"]


def test_users_with_and_without_images_get_their_own_answers(served: ServedImages) -> None:
    """Some users leave early. Chunks of 32 tokens mix prompts with images, prompts without, and answers."""
    texts = ["<image> What is this?", "No picture, but words.", "One <image>, two <image>."]
    cases = [
        (text, [PICTURES[(number + place) % 2] for place in range(text.count("<image>"))])
        for number, text in enumerate(texts * 8)
    ]

    def ask(case: tuple[str, list[bytes]]) -> str:
        with Client(served.server.grpc_url) as client:
            return client.generate(case[0], images=case[1], max_tokens=NUM_TOKENS, temperature=0).text

    def leave(case: tuple[str, list[bytes]]) -> None:
        with Client(served.server.grpc_url) as client, client.stream(case[0], images=case[1], max_tokens=200) as stream:
            next(iter(stream))

    with ThreadPoolExecutor(16) as pool:
        answers = pool.map(ask, cases)
        leavers = [pool.submit(leave, case) for case in cases[:6]]
        assert list(answers) == [served.expected(*case) for case in cases]
        for leaver in leavers:
            leaver.result()
    assert scrape_when(served.server, at_rest).get("images_read_total") >= sum(len(images) for _, images in cases)


def test_chats_with_images_whose_tokens_attend_to_one_another(tmp_path: Path) -> None:
    """The image stands after a line break, which becomes one token with those that the processor writes around it."""
    questions = [f"{'Look closely. ' * number}Is this {number}?" for number in range(6)]
    with ServedImages.start(tmp_path, "gemma3") as served, Client(served.server.grpc_url) as client:
        place = served.processor.image_token

        def ask(number: int) -> str:
            chat = asking([IMAGE, {"type": "text", "text": questions[number]}, *[IMAGE] * (number % 2)])
            images = PICTURES[: 1 + number % 2]
            return client.generate(messages=chat, images=images, max_tokens=NUM_TOKENS, temperature=0).text

        def expected(number: int) -> str:
            parts = f"{place}{questions[number]}{place * (number % 2)}"
            shown = f"<|im_start|>user\n{parts}<|im_end|>\n<|im_start|>assistant\n"
            return served.expected(shown, PICTURES[: 1 + number % 2])

        with ThreadPoolExecutor(12) as pool:
            answers = list(pool.map(ask, [*range(6)] * 2))
        assert answers == [expected(number) for number in range(6)] * 2


def test_completion_passes_images_on(served: ServedImages) -> None:
    text = "<image> What is this?"
    body = {"text_input": text, "image": b64(PICTURES[:1]), "max_tokens": NUM_TOKENS, "temperature": 0.0}
    url = f"http://{served.server.http_url}/v2/models/completion/generate"
    answer = httpx.post(url, json={**body, "exclude_input_in_output": True}, timeout=60).json()
    assert answer["text_output"] == served.expected(text, PICTURES[:1])


def test_images_on_the_command_line(served: ServedImages, tmp_path: Path) -> None:
    files = [tmp_path / str(number) for number in range(2)]
    for file, image in zip(files, PICTURES, strict=True):
        file.write_bytes(image)
    text = "Compare <image> with <image>."
    named = [argument for file in files for argument in ("--image", str(file))]
    asked = ("generate", text, "--max-tokens", str(NUM_TOKENS), "--temperature", "0", *named)
    assert Program(served.server.grpc_url).run(*asked).stdout == f"{served.expected(text, PICTURES)}\n"


def test_a_model_without_images_says_so(server: TritonServer) -> None:
    with Client(server.grpc_url) as client, pytest.raises(InvalidRequest, match="the model does not read images"):
        client.generate("What is this?", images=PICTURES[:1], max_tokens=2)
    # Its chat template does not know parts, and would fail.
    messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is this?"}]}]
    with Client(server.grpc_url) as client, pytest.raises(InvalidRequest, match="the model does not read images"):
        client.chat(messages, images=PICTURES[:1], max_tokens=2)
