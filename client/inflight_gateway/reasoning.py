"""How models write what they think before they answer."""

from dataclasses import dataclass

from inflight_gateway import structural_tags
from inflight_gateway.pieces import Thought
from inflight_gateway.reader import Emit, text_until
from inflight_gateway.source import Reading, Source
from inflight_gateway.structural_tags import ANY_TEXT, Tag, either, sequence, tag

# White space between a thought and an answer that must have a form.
_GAP = structural_tags.regex("[ \\n]{0,4}")


@dataclass(frozen=True)
class ReasoningFormat:
    """The texts between which a family of models thinks."""

    name: str
    begin: str
    end: str

    @property
    def markers(self) -> tuple[str, ...]:
        """What encloses a thought. These are special tokens in some models."""
        return (self.begin, self.end)

    def is_open(self, prompt_end: str) -> bool:
        """Whether a prompt that ends so has begun the thought for the model."""
        return prompt_end.rstrip().endswith(self.begin)

    def is_closed(self, prompt_end: str) -> bool:
        """Whether a prompt that ends so has ended the thought for the model, which then answers at once."""
        return prompt_end.rstrip().endswith(self.end)

    def read(self, source: Source, emit: Emit, *, opened: bool) -> Reading[None]:
        """Read the thought at the beginning of an answer, if there is one. `opened`: the prompt has begun it."""
        if not opened:
            source.keep()
            yield from source.skip_space()
            opened = yield from source.accept(self.begin)
            before = source.kept()
            if not opened:
                source.put_back(before)
        if opened:
            yield from source.skip_space()
            yield from text_until(source, (self.end,), emit, Thought)
            yield from source.skip_space()

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


REASONING_FORMATS = {
    one.name: one
    for one in (ReasoningFormat("think", "<think>", "</think>"), ReasoningFormat("mistral", "[THINK]", "[/THINK]"))
}
"""All formats by name."""
