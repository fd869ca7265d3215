"""How models write what they think before they answer."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from inflight_gateway import structural_tags
from inflight_gateway.pieces import Thought
from inflight_gateway.reader import Emit, text_until
from inflight_gateway.source import Reading, Source
from inflight_gateway.structural_tags import ANY_TEXT, Tag, either, sequence, tag
from inflight_gateway.tool_formats.harmony import ASSISTANT, CHANNEL, END, FINAL, MESSAGE

# White space between a thought and an answer that must have a form.
_GAP = structural_tags.regex("[ \\n]{0,4}")


@dataclass(frozen=True)
class ReasoningFormat:
    """The texts between which a family of models thinks."""

    name: str
    begin: str
    end: str
    template_has: tuple[str, ...] = ()
    """Texts of which the chat templates of these models have one in them, if it is not the beginning."""
    template_also_has: str = ""
    """A text that they have besides."""
    answer: tuple[str, str] | None = None
    """The texts between which the answer stands after a thought, if there are any."""
    begun_with: str = ""
    """What a prompt may have after the beginning of a thought."""
    also_read: tuple[str, ...] = ()
    """Other words for the beginning and the end, which models write now and then."""

    def is_of(self, template: str) -> bool:
        """Whether models with this chat template think in this format."""
        return self.template_also_has in template and any(
            text in template for text in self.template_has or (self.begin,)
        )

    @property
    def markers(self) -> tuple[str, ...]:
        """What encloses a thought. These are special tokens in some models."""
        return (self.begin, self.end)

    def of_enforced_answers(self) -> "ReasoningFormat":
        """Return the format that reads answers which match a structural tag. Tags have no other words."""
        return replace(self, also_read=())

    def is_open(self, prompt_end: str) -> bool:
        """Whether a prompt that ends so has begun the thought for the model."""
        return prompt_end.rstrip().removesuffix(self.begun_with).endswith(self.begin)

    def is_closed(self, prompt_end: str) -> bool:
        """Whether a prompt that ends so has ended the thought for the model, which then answers at once."""
        return prompt_end.rstrip().endswith(self.end)

    def read(self, source: Source, emit: Emit, *, opened: bool, borders: Sequence[str] = ()) -> Reading[bool]:
        """Read the thought at the beginning of an answer, if there is one, and return whether there is.

        `opened`: the prompt has begun it. `borders`: what ends it besides its end; they are not read.
        """
        if not opened:
            source.keep()
            yield from source.skip_space()
            for begin in (self.begin, *self.also_read[:1]):
                opened = opened or (yield from source.accept(begin))
            before = source.kept()
            if not opened:
                source.put_back(before)
        if opened:
            yield from source.skip_space()
            ends = (self.end, *self.also_read[1:])
            _, marker = yield from text_until(source, (*ends, *borders), emit, Thought)
            if marker is not None and marker not in ends:
                source.put_back(marker)
            yield from source.skip_space()
        return opened

    def final(self, answer: Tag) -> Tag:
        """Return the structural tag of an answer without calls, with what the model writes around it."""
        return answer

    def before(self, answer: Tag, *, opened: bool) -> Tag:
        """Return the structural tag of an answer with the thought before it."""
        if opened:
            return sequence(tag("", ANY_TEXT, self.end), _GAP, answer)
        thought = tag(self.begin, ANY_TEXT, self.end)
        if answer["type"] == "triggered_tags" and not answer["stop_after_first"]:
            # One more tag in free text. As an alternative to it, the thought would not be free: it is free text too,
            # in which a trigger demands a call.
            return {**answer, "triggers": [self.begin, *answer["triggers"]], "tags": [thought, *answer["tags"]]}
        return either(sequence(thought, _GAP, answer), answer)


class HarmonyReasoning(ReasoningFormat):
    """Thoughts are messages, as answers and calls are. The tool format of the same name reads all of them."""

    def read(self, source: Source, emit: Emit, *, opened: bool, borders: Sequence[str] = ()) -> Reading[bool]:
        """See `ReasoningFormat`."""
        yield from ()
        return False

    def final(self, answer: Tag) -> Tag:
        """See `ReasoningFormat`."""
        return sequence(structural_tags.text(FINAL), answer)

    def before(self, answer: Tag, *, opened: bool) -> Tag:
        """See `ReasoningFormat`."""
        thought = tag(self.begin, ANY_TEXT, f"{self.end}{ASSISTANT}")
        return either(sequence(thought, answer), answer)


REASONING_FORMATS = {
    one.name: one
    for one in (
        # Its template says how to write. That of MiniMax M2 has these texts around results of tools.
        ReasoningFormat(
            "granite3.3",
            "<think>",
            "</think>",
            template_has=("<response></response>",),
            answer=("<response>", "</response>"),
        ),
        # ERNIE 4.5 Thinking. Calls come after the answer.
        ReasoningFormat(
            "ernie-4.5", "<think>", "</think>", template_has=("<global_setting>",), answer=("<response>", "</response>")
        ),
        # Hunyuan's models for translation have the same markers around messages, but do not think.
        ReasoningFormat(
            "hunyuan",
            "<think>",
            "</think>",
            template_has=("<|extra_0|>", "<｜hy_Assistant｜>"),  # noqa: RUF001
            template_also_has="<think>",
            answer=("<answer>", "</answer>"),
        ),
        # The end of a thought is also the beginning of the answer, which has an end, too.
        ReasoningFormat(
            "apriel",
            "Here are my reasoning steps:",
            "[BEGIN FINAL RESPONSE]",
            template_has=("[BEGIN FINAL RESPONSE]",),
            answer=("", "[END FINAL RESPONSE]"),
        ),
        ReasoningFormat(
            "granite3.2",
            "Here is my thought process:",
            "Here is my response:",
            also_read=("Here's my thought process:", "Here's my response:"),
        ),
        # The templates of DeepSeek R1 of May 2025 and of LFM2.5 begin no thought. They only take those of earlier
        # answers away.
        ReasoningFormat(
            "think", "<think>", "</think>", template_has=("<think>", "split('</think>')", 'split("</think>")')
        ),
        ReasoningFormat("minicpm3", "<|thought_start|>", "<|thought_end|>"),
        ReasoningFormat("minimax-m3", "<mm:think>", "</mm:think>"),
        ReasoningFormat("mistral", "[THINK]", "[/THINK]"),
        ReasoningFormat("gemma4", "<|channel>thought", "<channel|>", template_has=("<|channel>",)),
        ReasoningFormat("apertus", "<|inner_prefix|>", "<|inner_suffix|>"),
        ReasoningFormat("cohere", "<|START_THINKING|>", "<|END_THINKING|>"),
        # If the thought is to have no length, the prompt begins with what the model writes about its length.
        ReasoningFormat("seed-oss", "<seed:think>", "</seed:think>", begun_with="<seed:cot_budget_reflect>"),
        HarmonyReasoning("harmony", f"{CHANNEL}analysis{MESSAGE}", END),
    )
}
"""All formats by name."""
