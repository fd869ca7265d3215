"""MiniMax M2: <invoke name="..."><parameter name="key">value</parameter></invoke>, in <minimax:tool_call>."""

from inflight_gateway.tool_formats.invoke_section import InvokeSection
from inflight_gateway.tool_formats.keyed_values import KeyedValues

_OPEN, _CLOSE = "<minimax:tool_call>", "</minimax:tool_call>"


class MiniMaxM2(InvokeSection):
    """See the module. Texts stand there as they are, and other values as JSON; the schema says which is which."""

    name = "minimax-m2"
    markers = (_OPEN, _CLOSE)
    triggers = (_OPEN,)
    section = markers
    opening, closing = f"{_OPEN}\n", _CLOSE
    invoke = ('<invoke name="', "</invoke>")
    arguments = KeyedValues("MiniMax M2", ('<parameter name="', '">'), ("", "</parameter>"), between="")
