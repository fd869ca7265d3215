"""Features that the echo model lacks, with the default model: samples, seeds, log-probabilities, stops, biases.

The server makes drafts, which must not show.
"""

import math
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from transformers import AutoTokenizer

from load_tests.storm.malformed import BAD_AT_THE_GATEWAY
from scripts.launch.default_model import default_model
from scripts.launch.triton_server import TritonServer
from tests.eventually import eventually
from tests.gateway.gateway_process import GatewayProcess

COUNT = "One, two, three, four,"


@pytest.fixture(scope="module")
def real_gateway(real_server: TritonServer) -> Iterator[GatewayProcess]:
    with GatewayProcess(real_server.grpc_url, f"--metrics-url={real_server.metrics_url}") as gateway:
        gateway.wait_for(["/health"], 30)
        yield gateway


@pytest.fixture(scope="module")
def client(real_gateway: GatewayProcess) -> Iterator[OpenAI]:
    with real_gateway.openai() as client:
        yield client


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(default_model())


def complete(client: OpenAI, **fields: Any) -> Any:
    return client.completions.create(**{"model": "llm", "prompt": COUNT, "temperature": 0, "max_tokens": 8, **fields})


def chat(client: OpenAI, **fields: Any) -> Any:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    defaults = {"model": "llm", "messages": messages, "temperature": 0, "max_tokens": 8}
    return client.chat.completions.create(**{**defaults, **fields})


@pytest.mark.parametrize(("path", "body", "status", "says"), BAD_AT_THE_GATEWAY)
def test_malformed_requests_are_refused(
    real_gateway: GatewayProcess, path: str, body: str, status: int, says: str
) -> None:
    """The storm sends these at random."""
    headers = {"Content-Type": "application/json"}
    reply = httpx.post(f"{real_gateway.url}{path}", content=body, headers=headers, timeout=30)
    assert reply.status_code == status
    assert says in reply.text


def streamed_texts(stream: Any, count: int) -> list[str]:
    texts = [""] * count
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    return texts


def test_greedy_text_and_usage(client: OpenAI, tokenizer: Any) -> None:
    answer = complete(client)
    assert answer.choices[0].text.startswith(" five, six,")
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.prompt_tokens == len(tokenizer(COUNT)["input_ids"])
    assert answer.usage.completion_tokens == 8
    assert streamed_texts(complete(client, stream=True), 1) == [answer.choices[0].text]


def test_tokens_from_the_cache_are_counted(client: OpenAI) -> None:
    story = f"A story that nobody has told before: {uuid.uuid4()}. " * 8
    block = 16

    def completed(**options: Any) -> Any:
        return complete(client, prompt=story, max_tokens=4, **options).usage

    first, second = completed(), completed()
    # The last token of a prompt is computed in any case.
    whole = (first.prompt_tokens - 1) // block * block
    assert first.prompt_tokens_details.cached_tokens < block
    assert second.prompt_tokens_details.cached_tokens == whole
    assert completed(n=2, extra_body={"seed": 1}).prompt_tokens_details.cached_tokens == whole
    pieces = client.completions.create(
        model="llm", prompt=[story, story], max_tokens=4, stream=True, stream_options={"include_usage": True}
    )
    assert list(pieces)[-1].usage.prompt_tokens_details.cached_tokens == 2 * whole

    chat: list[Any] = [{"role": "user", "content": story}]
    for cached in (False, True):
        answer = client.chat.completions.create(model="llm", messages=chat, max_tokens=4)
        assert (answer.usage.prompt_tokens_details.cached_tokens > whole) == cached
    response = client.responses.create(model="llm", input=chat, max_output_tokens=4)
    assert response.usage.input_tokens_details.cached_tokens > whole


def test_token_ids_are_the_same_prompt(client: OpenAI, tokenizer: Any) -> None:
    ids = tokenizer(COUNT)["input_ids"]
    texts = [choice.text for choice in complete(client, prompt=[ids, ids]).choices]
    assert texts == [complete(client).choices[0].text] * 2


def test_samples_of_several_prompts(client: OpenAI) -> None:
    fields = {"prompt": [COUNT, "The sky is"], "n": 3, "temperature": 1, "seed": 11}
    answer = complete(client, **fields)
    assert [choice.index for choice in answer.choices] == list(range(6))
    texts = [choice.text for choice in answer.choices]
    assert len(set(texts)) > 2
    assert answer.usage.completion_tokens <= 6 * 8
    # The samples of one prompt have adjacent indices, streamed or not.
    assert streamed_texts(complete(client, **fields, stream=True), 6) == texts
    assert [choice.text for choice in complete(client, **{**fields, "prompt": "The sky is"}).choices] == texts[3:]


def test_samples_of_a_chat(client: OpenAI) -> None:
    fields = {"n": 3, "temperature": 1, "seed": 5}
    texts = [choice.message.content for choice in chat(client, **fields).choices]
    assert len(texts) == 3
    streamed = ["", "", ""]
    roles = []
    for chunk in chat(client, **fields, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
            roles += [choice.index] if choice.delta.role else []
    assert streamed == texts
    assert sorted(roles) == [0, 1, 2]


def test_seed_repeats_an_answer(client: OpenAI) -> None:
    def text(seed: int) -> str:
        return str(complete(client, prompt="Once", temperature=1, seed=seed).choices[0].text)

    texts = [text(seed) for seed in (1, 1, -1, -1)]
    assert texts[0] == texts[1] != texts[2] == texts[3]


def test_stop_string_ends_the_text(client: OpenAI) -> None:
    for stop in (" six", ["zzz", " six"]):
        (choice,) = complete(client, stop=stop).choices
        assert (choice.text, choice.finish_reason) == (" five,", "stop")


def test_what_ended_an_answer_is_told(client: OpenAI, tokenizer: Any) -> None:
    def reason(choice: Any) -> Any:
        return choice.model_extra["stop_reason"]

    def chat(**options: Any) -> Any:
        return client.chat.completions.create(model="llm", messages=[{"role": "user", "content": COUNT}], **options)

    assert reason(complete(client, stop=["never there", " six"]).choices[0]) == " six"
    assert reason(complete(client).choices[0]) is None
    token = tokenizer(" five,")["input_ids"][1]
    assert reason(complete(client, extra_body={"stop_token_ids": [token]}).choices[0]) == token
    pieces = [piece.choices[0] for piece in complete(client, stop=[" six"], stream=True)]
    assert [reason(choice) for choice in pieces] == [None] * (len(pieces) - 1) + [" six"]

    word = chat(max_tokens=20, temperature=0).choices[0].message.content.split()[2]
    assert reason(chat(max_tokens=20, temperature=0, stop=word).choices[0]) == word
    pieces = [piece.choices[0] for piece in chat(max_tokens=20, temperature=0, stop=word, stream=True)]
    assert (reason(pieces[0]), reason(pieces[-1])) == (None, word)


def test_bias_forbids_a_token(client: OpenAI, tokenizer: Any) -> None:
    (five,) = tokenizer(" five", add_special_tokens=False)["input_ids"]
    assert not complete(client, logit_bias={str(five): -100}).choices[0].text.startswith(" five")


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_of_a_completion(client: OpenAI, stream: bool) -> None:
    answer = complete(client, logprobs=2, stream=stream)
    parts = [chunk.choices[0] for chunk in answer] if stream else [answer.choices[0]]
    text = "".join(part.text for part in parts)
    tokens, values, likeliest, offsets = (
        [item for part in parts for item in getattr(part.logprobs, name)]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    )
    assert "".join(tokens) == text
    assert len(tokens) == len(values) == len(likeliest) == len(offsets) == 8
    for token, value, top, offset in zip(tokens, values, likeliest, offsets, strict=True):
        assert text[offset : offset + len(token)] == token
        assert len(top) == 2
        # Greedy sampling chooses the likeliest token.
        assert top[token] == value == max(top.values())
        assert value <= 0


def test_logprobs_of_a_completion_without_others(client: OpenAI) -> None:
    logprobs = complete(client, logprobs=0).choices[0].logprobs
    assert logprobs.top_logprobs == [
        {token: value} for token, value in zip(logprobs.tokens, logprobs.token_logprobs, strict=True)
    ]
    assert complete(client).choices[0].logprobs is None


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_of_a_chat(client: OpenAI, stream: bool) -> None:
    # One more token would be the end-of-sequence token, which has a log-probability but no characters.
    answer = chat(client, logprobs=True, top_logprobs=3, max_tokens=7, stream=stream)
    choices = [chunk.choices[0] for chunk in answer] if stream else [answer.choices[0]]
    content = [entry for choice in choices if choice.logprobs for entry in choice.logprobs.content]
    texts = [choice.delta.content or "" for choice in choices] if stream else [choices[0].message.content]
    assert len(content) == 7
    assert "".join(entry.token for entry in content) == "".join(texts)
    for entry in content:
        assert bytes(entry.bytes).decode() == entry.token
        assert len(entry.top_logprobs) == 3
        assert (entry.top_logprobs[0].token, entry.top_logprobs[0].logprob) == (entry.token, entry.logprob)
        assert sum(math.exp(token.logprob) for token in entry.top_logprobs) <= 1.0001


def test_an_echo_with_scores(client: OpenAI, tokenizer: Any) -> None:
    """What lm-evaluation-harness sends."""
    texts = [COUNT, "Zwölf Boxkämpfer 東京"]
    prompts = [tokenizer(text)["input_ids"] for text in texts]
    answer = complete(client, prompt=prompts, echo=True, logprobs=1, max_tokens=1, seed=1234)
    alone = complete(client, prompt=texts, max_tokens=1, logprobs=1)
    for text, ids, choice, plain in zip(texts, prompts, answer.choices, alone.choices, strict=True):
        scores = choice.logprobs
        assert choice.text == text + plain.text
        assert scores.tokens == [*(tokenizer.decode([token]) for token in ids), *plain.logprobs.tokens]
        assert (scores.token_logprobs[0], scores.top_logprobs[0], scores.text_offset[0]) == (None, None, 0)
        assert scores.token_logprobs[-1] == pytest.approx(plain.logprobs.token_logprobs[0], abs=1e-4)
        for value, top in zip(scores.token_logprobs[1:], scores.top_logprobs[1:], strict=True):
            assert value <= max(top.values())
        assert scores.text_offset == [len("".join(scores.tokens[:i])) for i in range(len(scores.tokens))]
    assert answer.usage.completion_tokens == 2
    # A text is the same prompt, and the scores are there where nothing is generated.
    (again,) = complete(client, prompt=COUNT, echo=True, logprobs=1, max_tokens=0).choices
    assert (again.text, again.finish_reason) == (COUNT, "length")
    assert again.logprobs.token_logprobs[1:] == pytest.approx(answer.choices[0].logprobs.token_logprobs[1:-1], abs=1e-4)


def test_embeddings(client: OpenAI, tokenizer: Any) -> None:
    answer = client.embeddings.create(model="llm", input=["A cat sleeps.", "A cat is sleeping.", "Tax law of 1987"])
    cat, other, law = (item.embedding for item in answer.data)
    assert len(cat) == 576
    assert dot(cat, cat) == pytest.approx(1, abs=1e-5)
    assert dot(cat, other) > dot(cat, law)
    ids = tokenizer("A cat sleeps.")["input_ids"]
    short = client.embeddings.create(model="llm", input=ids, dimensions=10).data[0].embedding
    assert short == pytest.approx([number / math.sqrt(dot(cat[:10], cat[:10])) for number in cat[:10]], abs=1e-4)
    with pytest.raises(openai.BadRequestError, match="dimensions is 577; it must be at most 576") as caught:
        client.embeddings.create(model="llm", input=ids, dimensions=577)
    assert caught.value.param == "dimensions"


def test_a_token_that_is_none_is_refused_by_the_name_of_its_field(real_gateway: GatewayProcess) -> None:
    refused = httpx.post(f"{real_gateway.url}/detokenize", json={"tokens": [1, 99999999]}, timeout=60)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tokens")


def test_structural_tags_as_a_response_format(client: OpenAI) -> None:
    """As in vLLM, in both forms."""
    tag = {"type": "structural_tag", "format": {"type": "const_string", "value": "Ulm"}}
    assert chat(client, response_format=tag).choices[0].message.content == "Ulm"
    item = {"begin": "<f>", "schema": {"type": "integer"}, "end": "</f>"}
    older = {"type": "structural_tag", "structures": [item], "triggers": ["<f>"]}
    assert chat(client, response_format=older).choices[0].message.content == chat(client).choices[0].message.content


def test_scores_of_a_model_without_classes(real_gateway: GatewayProcess, client: OpenAI) -> None:
    """As in vLLM: the cosine of the embeddings."""
    query, documents = "A cat sleeps.", ["Tax law of 1987", "A cat is sleeping.", "A cat sleeps."]
    answer = client.embeddings.create(model="llm", input=[query, *documents[:2]])
    cat, law, other = (item.embedding for item in answer.data)
    wanted = [dot(cat, law), dot(cat, other), 1]
    scored = httpx.post(f"{real_gateway.url}/score", json={"text_1": query, "text_2": documents}, timeout=60).json()
    assert [each["score"] for each in scored["data"]] == pytest.approx(wanted, abs=1e-3)
    assert scored["usage"]["prompt_tokens"] == answer.usage.prompt_tokens  # Each text is embedded once.
    body = {"query": query, "documents": documents}
    ranked = httpx.post(f"{real_gateway.url}/rerank", json=body, timeout=60).json()["results"]
    assert [each["index"] for each in ranked] == [2, 1, 0]
    cut = httpx.post(f"{real_gateway.url}/rerank", json={**body, "truncate_prompt_tokens": 2}, timeout=60).json()
    assert cut["usage"]["prompt_tokens"] == 6
    cats, (last,) = cut["results"][:2], cut["results"][2:]
    assert [each["relevance_score"] for each in cats] == pytest.approx([1, 1], abs=1e-3)  # "A cat" is left of both.
    assert last["index"] == 0
    body["chat_template_kwargs"] = {"instruction": "a"}
    refused = httpx.post(f"{real_gateway.url}/rerank", json=body, timeout=60)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "chat_template_kwargs")
    body = {"query": query, "documents": ["a", "word " * 20000]}
    refused = httpx.post(f"{real_gateway.url}/rerank", json=body, timeout=60)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "documents")


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def test_named_tokens_in_a_chat(client: OpenAI) -> None:
    answer = chat(client, logprobs=True, max_tokens=2, extra_body={"logprob_token_ids": [5, 900]})
    for entry in answer.choices[0].logprobs.content:
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].token == entry.token


def test_tokens_of_logprobs_by_their_ids(client: OpenAI, tokenizer: Any) -> None:
    by_ids = {"return_tokens_as_token_ids": True}
    for echo in (False, True):
        texts = complete(client, logprobs=2, echo=echo).choices[0].logprobs
        ids = complete(client, logprobs=2, echo=echo, extra_body=by_ids).choices[0].logprobs
        assert [tokenizer.decode([int(name.removeprefix("token_id:"))]) for name in ids.tokens] == texts.tokens
        assert ids.text_offset == texts.text_offset
        for top, chosen in zip(ids.top_logprobs[echo:], ids.tokens[echo:], strict=True):
            assert chosen in top
    (entry, *_) = chat(client, logprobs=True, top_logprobs=1, extra_body=by_ids).choices[0].logprobs.content
    assert entry.token == entry.top_logprobs[0].token == f"token_id:{tokenizer.encode(bytes(entry.bytes).decode())[0]}"


def test_logprobs_of_a_prompt(client: OpenAI, tokenizer: Any) -> None:
    """In vLLM's form. The values are those of an echo."""
    answer = complete(client, n=2, max_tokens=1, extra_body={"prompt_logprobs": 1})
    (echoed,) = complete(client, echo=True, logprobs=1, max_tokens=1).choices
    for choice in answer.choices:
        assert choice.logprobs is None
        first, *rest = choice.prompt_logprobs
        assert first is None
        scores = [next(iter(entry.items())) for entry in rest]
        assert [int(token) for token, _ in scores] == tokenizer.encode(COUNT)[1:]
        assert [score["decoded_token"] for _, score in scores] == echoed.logprobs.tokens[1:-1]
        values = echoed.logprobs.token_logprobs[1:-1]
        assert [score["logprob"] for _, score in scores] == pytest.approx(values, abs=1e-4)
        for entry in rest:  # The token of the prompt, and the likeliest one unless it is the same.
            ranks = [score["rank"] for score in entry.values()]
            assert ranks == ([1] if ranks[0] == 1 else [ranks[0], 1])
    scored = chat(client, max_tokens=1, extra_body={"prompt_logprobs": 0, "return_token_ids": True})
    assert [*map(list, scored.prompt_logprobs[1:])] == [[str(token)] for token in scored.prompt_token_ids[1:]]
    with pytest.raises(openai.BadRequestError, match="prompt_logprobs is 1: it must be absent if stream is true"):
        complete(client, stream=True, extra_body={"prompt_logprobs": 1})


def test_logprobs_of_a_chat_without_others(client: OpenAI) -> None:
    (entry, *_) = chat(client, logprobs=True).choices[0].logprobs.content
    assert entry.top_logprobs == []
    assert entry.logprob <= 0


def test_tokens_that_are_no_whole_characters(client: OpenAI) -> None:
    # This character takes several tokens. Its text appears with the last one, and none of them has bytes of its own.
    messages = [{"role": "user", "content": "Repeat: \U0001f9ed\U0001f9ed\U0001f9ed\U0001f9ed"}]
    choice = chat(client, messages=messages, logprobs=True, max_tokens=24).choices[0]
    assert all((entry.bytes is None) == ("\ufffd" in entry.token) for entry in choice.logprobs.content)


def test_prompt_and_answer_beyond_the_context(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=r"max_tokens is 100000; .* as the context is") as caught:
        complete(client, max_tokens=100_000)
    assert caught.value.param == "max_tokens"


def test_token_beyond_the_vocabulary(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="prompt holds token 2000000") as caught:
        complete(client, prompt=[2_000_000])
    assert caught.value.param == "prompt"


def test_beams(client: OpenAI) -> None:
    beams = {"use_beam_search": True, "length_penalty": 0.5}
    answer = complete(client, n=3, extra_body=beams)
    assert len({choice.text for choice in answer.choices}) == 3
    best = complete(client, best_of=3, extra_body=beams)
    assert [choice.text for choice in best.choices] == [answer.choices[0].text]
    assert len(chat(client, n=2, extra_body=beams).choices) == 2
    for fields in ({}, {"n": 2, "stream": True}, {"n": 2, "seed": 1}, {"n": 2, "logprobs": 1}):
        with pytest.raises(openai.BadRequestError):
            complete(client, extra_body=beams, **fields)


def test_routers_are_told_how_busy_the_model_is(real_gateway: GatewayProcess, client: OpenAI) -> None:
    def load() -> dict[str, float]:
        reply = httpx.get(f"{real_gateway.url}/v1/loads").json()
        assert reply["loads"] == [reply["aggregate"]]
        return dict(reply["aggregate"])

    at_rest = {
        "dp_rank": 0,
        "num_running_reqs": 0,
        "num_waiting_reqs": 0,
        "num_used_tokens": 0,
        "max_total_num_tokens": 16384,
        "token_usage": 0.0,
    }
    # The gauges are read while they change: when nobody runs, blocks may still count as used.
    assert eventually(lambda: load() == at_rest)
    with complete(client, stream=True, max_tokens=1000, extra_body={"ignore_eos": True}) as stream:
        next(iter(stream))
        assert eventually(lambda: load()["num_running_reqs"] == 1)
        assert 0 < load()["num_used_tokens"] < 1100
    info = httpx.get(f"{real_gateway.url}/server_info").json()
    assert (info["served_model_name"], info["tp_size"], info["dp_size"]) == ("llm", 1, 1)


@pytest.mark.parametrize("ask", [complete, chat])
def test_the_tokens_of_a_stream_are_those_of_the_whole_answer(client: OpenAI, tokenizer: Any, ask: Any) -> None:
    wanted = {"extra_body": {"return_token_ids": True}}
    whole = ask(client, **wanted).choices[0].to_dict()
    choices = [chunk.choices[0].to_dict() for chunk in ask(client, stream=True, **wanted)]
    streamed = [token for choice in choices for token in choice.get("token_ids", ())]
    assert streamed == whole["token_ids"]
    text = whole["text"] if ask is complete else whole["message"]["content"]
    assert tokenizer.decode(streamed, skip_special_tokens=True) == text


def test_only_the_end_of_a_prompt_is_kept_if_that_is_asked_for(client: OpenAI, tokenizer: Any) -> None:
    kept = {"extra_body": {"truncate_prompt_tokens": 6}}
    end = tokenizer(COUNT)["input_ids"][-6:]
    answer = complete(client, prompt=f"Zero. {COUNT}", **kept)
    assert (answer.usage.prompt_tokens, answer.choices[0].text) == (6, complete(client, prompt=end).choices[0].text)
    echoed = complete(client, prompt=f"Zero. {COUNT}", echo=True, **kept).choices[0].text
    assert echoed == tokenizer.decode(end) + answer.choices[0].text
    embedded = client.embeddings.create(model="llm", input=COUNT, **kept)
    assert embedded.usage.prompt_tokens == 6


def test_the_beginning_of_a_prompt_is_kept(client: OpenAI, tokenizer: Any) -> None:
    """As in vLLM, of an input to embed by default, and of a prompt where that is asked for."""
    ids = tokenizer(COUNT)["input_ids"]
    cut = {"truncate_prompt_tokens": 3}
    for options, part in (
        ({}, ids[:3]),
        ({"truncation_side": "right"}, ids[:3]),
        ({"truncation_side": "left"}, ids[-3:]),
    ):
        for given in (COUNT, ids):
            answer = client.embeddings.create(model="llm", input=given, extra_body={**cut, **options})
            wanted = client.embeddings.create(model="llm", input=part).data[0].embedding
            assert answer.data[0].embedding == pytest.approx(wanted, abs=1e-4)
    right = complete(client, extra_body={**cut, "truncation_side": "right", "return_token_ids": True})
    assert right.choices[0].prompt_token_ids == ids[:3]
