"""Hy3 Preview: <tool_call>name<tool_sep><arg_key>key</arg_key><arg_value>value</arg_value></tool_call>, in a list."""

from inflight_gateway.tool_formats.invoke_section import InvokeSection
from inflight_gateway.tool_formats.keyed_values import KeyedValues

_OPEN, _CLOSE = "<tool_calls>", "</tool_calls>"
_CALL, _CALL_END, _NAME_END = "<tool_call>", "</tool_call>", "<tool_sep>"
_KEY, _VALUE = ("<arg_key>", "</arg_key>"), ("<arg_value>", "</arg_value>")


class Hy3(InvokeSection):
    """See the module. Texts stand there as they are, and other values as JSON; the schema says which is which."""

    name = "hy3"
    markers = (_OPEN, _CLOSE, _CALL, _CALL_END, _NAME_END, *_KEY, *_VALUE)
    triggers = (_OPEN,)
    section = _OPEN, _CLOSE
    opening, closing = f"{_OPEN}\n", _CLOSE
    invoke = _CALL, _CALL_END
    name_end = _NAME_END
    arguments = KeyedValues("Hy3 Preview", _KEY, _VALUE)
