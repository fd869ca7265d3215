"""Uses a gateway with one of the clients that people have beside OpenAI's: `python other_clients.py CLIENT URL`.

It runs in an environment that has these clients, and none of this project. It prints what went wrong.
"""

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

MODEL = "llm"
QUESTION = "Name a city."
Checks = Iterator[tuple[str, Callable[[], object]]]


class City(BaseModel):
    """A city."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=12)
    size: Literal["small", "large"]


def weather(city: Literal["Ulm", "Rome"]) -> str:
    """Tell the weather in a city."""
    return f"It rains in {city}."


def instructor_checks(url: str) -> Checks:
    """Answers as objects, in its ways of asking for them."""
    import instructor
    from openai import OpenAI

    for mode in ("TOOLS", "TOOLS_STRICT", "JSON_SCHEMA", "RESPONSES_TOOLS"):
        client: Any = instructor.from_openai(OpenAI(base_url=url, api_key="none"), mode=instructor.Mode[mode])
        limit = "max_output_tokens" if mode == "RESPONSES_TOOLS" else "max_tokens"
        asked = {"model": MODEL, "messages": [{"role": "user", "content": QUESTION}], "max_retries": 0, limit: 128}
        yield mode, lambda client=client, asked=asked: client.chat.completions.create(response_model=City, **asked)
        if mode == "TOOLS":
            stream = client.chat.completions.create_partial
            yield "partial", lambda stream=stream, asked=asked: list(stream(response_model=City, **asked))[-1]


def langchain_checks(url: str) -> Checks:
    """Tools, a conversation with a result, structured output and streams, in both APIs."""
    from langchain_core.messages import HumanMessage
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    tools: Any = [tool(weather)]
    for responses in (False, True):
        api = "responses" if responses else "chat"
        model = ChatOpenAI(base_url=url, api_key="none", model=MODEL, max_tokens=128, use_responses_api=responses)
        calling = model.bind_tools(tools, tool_choice="weather", parallel_tool_calls=False)

        def conversation(model: Any = model, calling: Any = calling) -> object:
            messages: list[Any] = [HumanMessage("What is the weather in Ulm?")]
            messages.append(calling.invoke(messages))
            messages += [tools[0].invoke(call) for call in messages[-1].tool_calls]
            assert "It rains" in messages[-1].content
            return model.bind_tools(tools).invoke(messages)

        def stream(calling: Any = calling) -> object:
            pieces = list(calling.stream("What is the weather in Ulm?"))
            whole = pieces[0]
            for piece in pieces[1:]:
                whole += piece
            assert whole.tool_calls[0]["args"]["city"] in ("Ulm", "Rome")
            return whole

        yield f"{api}: conversation", conversation
        yield f"{api}: stream", stream
        strict = model.bind_tools(tools, tool_choice="any", strict=True, parallel_tool_calls=False)
        yield f"{api}: strict", lambda strict=strict: strict.invoke("The weather?").tool_calls[0]
        for method in ("json_schema", "function_calling"):
            structured = model.with_structured_output(City, method=method)
            yield f"{api}: {method}", lambda structured=structured: structured.invoke(QUESTION)


def pydantic_ai_checks(url: str) -> Checks:
    """Agents whose answers are objects, whole and streamed, in both APIs."""
    from pydantic_ai import Agent, NativeOutput, ToolOutput
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=url, api_key="none")
    for api in (OpenAIChatModel, OpenAIResponsesModel):
        model: Any = api(MODEL, provider=provider)
        for output in (ToolOutput, NativeOutput):
            agent: Any = Agent(model, output_type=output(City), model_settings={"max_tokens": 128}, retries=0)

            async def streamed(agent: Any = agent) -> object:
                async with agent.run_stream(QUESTION) as answer:
                    return await answer.get_output()

            name = f"{api.__name__}: {output.__name__}"
            yield name, lambda agent=agent: agent.run_sync(QUESTION).output
            yield f"{name}, streamed", lambda streamed=streamed: asyncio.run(streamed())


def litellm_checks(url: str) -> Checks:
    """Calls, their results, streams, and answers with a schema."""
    import litellm

    parameters = {"type": "object", "properties": {"city": {"enum": ["Ulm", "Rome"]}}, "required": ["city"]}
    tool = {
        "type": "function",
        "function": {"name": "weather", "parameters": {**parameters, "additionalProperties": False}},
    }
    common = {"model": f"openai/{MODEL}", "api_base": url, "api_key": "none", "max_tokens": 128, "num_retries": 0}
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    required = {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}

    def call(**fields: Any) -> Any:
        answer: Any = litellm.completion(messages=messages, **common, **required, **fields)
        if fields.get("stream"):
            answer = litellm.stream_chunk_builder(list(answer))
        message = answer.choices[0].message
        assert json.loads(message.tool_calls[0].function.arguments)["city"] in ("Ulm", "Rome")
        return message

    def conversation() -> object:
        message = call()
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "name": "weather", "content": "rain"}
        return litellm.completion(messages=[*messages, message, result], tools=[tool], **common)

    def structured() -> object:
        answer: Any = litellm.completion(messages=messages, response_format=City, **common)
        return City.model_validate_json(answer.choices[0].message.content)

    yield "call", call
    yield "streamed call", lambda: call(stream=True)
    yield "conversation", conversation
    yield "structured", structured


CLIENTS = {
    "instructor": instructor_checks,
    "langchain": langchain_checks,
    "pydantic_ai": pydantic_ai_checks,
    "litellm": litellm_checks,
}


def main() -> int:
    """Run the checks of a client, and return the exit status: 1 if any has failed."""
    client, url = sys.argv[1:]
    status = 0
    for name, check in CLIENTS[client](url):
        try:
            print(f"{name}: {check()!r:.200}")
        except Exception as error:  # noqa: BLE001 - the other checks go on
            print(f"{name} FAILED: {type(error).__name__}: {error}")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
