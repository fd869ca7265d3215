"""Prepares a chat: what the server is asked, and how its answer is read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inflight_client import AsyncClient, Message, Sampling
from inflight_gateway import structural_tags
from inflight_gateway.answer_form import AnswerForm, server_names
from inflight_gateway.asked_form import invalid
from inflight_gateway.enclosed_answer import EnclosedAnswer
from inflight_gateway.formats import Formats
from inflight_gateway.images import text_of
from inflight_gateway.pieces import Text
from inflight_gateway.reader import Emit, Reader
from inflight_gateway.reasoning import ReasoningFormat
from inflight_gateway.shown_chat import shown_chat
from inflight_gateway.source import Reading, Source
from inflight_gateway.structural_tags import Tag
from inflight_gateway.tool_formats import Tool, ToolFormat, Unenforceable
from inflight_gateway.tool_use import ToolUse


@dataclass(frozen=True)
class ChatAsk:
    """What a client asks of a chat, in whichever API."""

    messages: Sequence[Message]
    form: AnswerForm | None
    """What an answer without calls must be."""
    tools: ToolUse | None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    chat_end: Mapping[str, bool] = field(default_factory=dict)
    """How the prompt ends; see `ChatEnd`."""
    images: Sequence[bytes] = ()
    """Files, one for each place of an image in the messages."""
    continued_by: str = "continue_final_message"
    """The field of the client with which the answer continues the last message."""
    thoughts_as: str = "reasoning_content"
    """Where the client's API has the thoughts of earlier messages."""
    tenant: str | None = None
    """Who takes turns with others where the server tokenizes."""

    @property
    def continues(self) -> bool:
        """Whether the answer continues the last message."""
        return bool(self.chat_end.get("continue_final_message"))

    @property
    def ends_with_header(self) -> bool:
        """Whether the prompt ends as the template writes it, and not with what the client wrote."""
        return not self.continues and self.chat_end.get("add_generation_prompt") is not False


@dataclass(frozen=True)
class ChatPlan:
    """What the server is asked, and how its answers are read."""

    request: Mapping[str, Any]
    """Keyword arguments of the client: the prompt, and what belongs to it."""
    tools: Mapping[str, Tool]
    """Those that the answers may call, by name."""
    tool_format: ToolFormat | None
    """None: the answers are texts."""
    reasoning_format: ReasoningFormat | None
    """None: the answers have no thoughts."""
    opened: bool
    """Whether the prompt has begun a thought."""
    names: Mapping[str, str]
    """Names that the server's errors have for a form, tools or variables, with the fields that these come from."""
    closed: bool = False
    """Whether the prompt has ended a thought, so that the answer begins at once."""

    def arguments(self, sampling: Sampling) -> dict[str, Any]:
        """Return the keyword arguments of `AsyncClient.generate` and `stream` with these sampling parameters.

        Raises:
            ApiError: the answer would end with a special token that the client does not want to see.
        """
        if sampling.get("include_stop_str_in_output") and self.request.get("skip_special_tokens") is False:
            text = "it must be false or absent with tools or reasoning, which this model marks with special tokens"
            raise invalid("include_stop_str_in_output", f"include_stop_str_in_output is true; {text}")
        return {**sampling, **self.request}

    def reader(self) -> Reader:
        """Return a reader for one answer."""
        return Reader(self._read)

    def _read(self, source: Source, emit: Emit) -> Reading[None]:
        thinking = self.reasoning_format
        if thinking is None:
            yield from self._read_answer(source, emit)
            return
        borders = () if self.tool_format is None else self.tool_format.ends_thoughts
        thought = self.closed or (yield from thinking.read(source, emit, opened=self.opened, borders=borders))
        if thought and thinking.answer is not None:
            yield from self._read_enclosed(source, emit, *thinking.answer)
        else:
            yield from self._read_answer(source, emit)

    def _read_enclosed(self, source: Source, emit: Emit, begin: str, end: str) -> Reading[None]:
        space = yield from source.space()
        if not (yield from source.accept(begin)):
            source.put_back(space)
            yield from self._read_answer(source, emit)
            return
        yield from source.skip_space()
        answer = EnclosedAnswer(end, emit)
        yield from self._read_answer(source, answer.take)
        answer.end()

    def _read_answer(self, source: Source, emit: Emit) -> Reading[None]:
        if self.tool_format is not None:
            yield from self.tool_format.read(source, emit, self.tools)
        yield from source.rest(lambda text: emit(Text(text)))


async def plan_chat(client: AsyncClient, formats: Formats, ask: ChatAsk) -> ChatPlan:
    """Prepare a chat.

    Raises:
        ApiError: the model cannot do what is asked.
        InflightError: the server refuses the chat, or cannot be asked.
    """
    use, thinking = ask.tools, formats.reasoning_format
    if use is not None and formats.tool_format is None:
        text = "the gateway does not know how this model writes calls; its option --tool-format can say it"
        raise invalid("tools", f"tools is not supported: {text}")
    if ask.continues:
        _check_continued(ask, thinking)
        thinking = None  # The answer has begun.
    chat = shown_chat(ask.messages, use.tools if use is not None else (), ask.template_kwargs, formats)
    request = {**chat.arguments(), **ask.chat_end}
    opened = closed = False
    if thinking is not None:
        # Whether the template begins a thought depends on the chat. The tokens are sent then: they are known anyway.
        tokens = await client.tokenize(**request, tenant=ask.tenant)
        if ask.ends_with_header:
            opened = thinking.is_open(tokens.end)
            closed = thinking.is_closed(tokens.end)
        request = {"prompt": tokens.token_ids}
    if ask.images:
        request["images"] = ask.images
    thinks = None if closed else thinking
    structured = _structured_outputs(ask, formats.tool_format, thinks, opened=opened)
    reads_all = formats.tool_format is not None and formats.tool_format.reads_every_answer
    tool_format = formats.tool_format if use is not None or reads_all else None
    if structured is not None:
        request["structured_outputs"] = structured
        tool_format = None if tool_format is None else tool_format.of_enforced_answers()
        thinking = None if thinking is None else thinking.of_enforced_answers()
    read_for = [one for one in (tool_format, thinks) if one is not None]
    if any(formats.are_special(one.markers) for one in read_for):
        request["skip_special_tokens"] = False
    return ChatPlan(
        request=request,
        tools={tool.name: tool for tool in use.callable} if use is not None else {},
        tool_format=tool_format,
        reasoning_format=thinking,
        opened=opened,
        names=_names(ask),
        closed=closed,
    )


def _names(ask: ChatAsk) -> dict[str, str]:
    if field := _asks_for_form(ask):
        return server_names(field)
    return {"sampling_parameters": "chat_template_kwargs"} if ask.template_kwargs else {}


def _asks_for_form(ask: ChatAsk) -> str:
    """Return the field that says what the answer must be; empty if none does.

    Of a form and strict tools, the server does not tell which of them it refuses.
    """
    form, use = ask.form, ask.tools
    if use is not None and (form is None or use.required):
        return "tools"
    if form is None:
        return ""
    has_strict_tools = use is not None and any(tool.strict for tool in use.callable)
    return f"{form.asked_by} or tools" if has_strict_tools else form.asked_by


def _check_continued(ask: ChatAsk, thinking: ReasoningFormat | None) -> None:
    """Refuse what the server cannot refuse: here calls may become text, and only the gateway knows of thoughts."""
    field, last = ask.continued_by, ask.messages[-1]
    content = text_of(last)
    if last.get("tool_calls"):
        raise invalid(field, f"{field}: the last message must be one of the assistant, without tool_calls")
    if thinking is not None and any(marker in content for marker in thinking.markers):
        text = f"the last message must have no {thinking.begin} and {thinking.end}; give thoughts as {ask.thoughts_as}"
        raise invalid(field, f"{field}: {text}")


def _structured_outputs(
    ask: ChatAsk, tool_format: ToolFormat | None, thinking: ReasoningFormat | None, *, opened: bool
) -> dict[str, Any] | None:
    """Return the server's field. None: the answer is free."""
    form, use = ask.form, ask.tools
    if use is None and thinking is None:
        return None if form is None else form.structured_outputs()
    answer = _tag_of_form(form)
    if answer is not None and thinking is not None:
        answer = thinking.final(answer)
    if use is not None and tool_format is not None:
        try:
            answer = use.tag(tool_format, answer)
        except Unenforceable as error:
            raise invalid("tools", f"tools: {error}") from error
    if answer is None:
        return None
    if thinking is not None:
        answer = thinking.before(answer, opened=opened)
    if structural_tags.is_too_long(answer):
        field, most = _asks_for_form(ask), structural_tags.MAX_CHARACTERS
        raise invalid(field, f"{field}: the answer's form takes over {most} characters; it must take at most {most}")
    options = {} if form is None else form.options
    return {"structural_tag": structural_tags.whole(answer), **options}


def _tag_of_form(form: AnswerForm | None) -> Tag | None:
    if form is None:
        return None
    tag = form.tag()
    if tag is None:
        text = "where the model thinks or may call tools, it must have the key format"
        raise invalid(form.asked_by, f"{form.asked_by} is a structural tag of the older form; {text}")
    return tag
