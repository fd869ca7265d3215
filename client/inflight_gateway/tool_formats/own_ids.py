"""Ids for templates that find the call of a result by its id. Clients may give one id to several calls."""

from collections import Counter
from collections.abc import Sequence

from inflight_client import Message


def with_own_ids(messages: Sequence[Message]) -> list[Message]:
    """Return messages in which each call has an id of its own, and each result that of its call.

    A result belongs to the last message that has calls of its id. If there are several, the results are taken to be in
    the order of the calls, and those beyond them belong to the last call.
    """
    shown: list[Message] = []
    numbers, used = Counter[str](), set[str]()
    # The calls whose results may come, by the id that the client gave them.
    waiting: dict[str, list[str]] = {}
    for message in messages:
        if calls := message.get("tool_calls"):
            given = [str(call["id"]) for call in calls]
            own = [_unused(call_id, numbers, used) for call_id in given]
            waiting.update((call_id, []) for call_id in given)
            for call_id, one in zip(given, own, strict=True):
                waiting[call_id].append(one)
            message = {**message, "tool_calls": [{**call, "id": one} for call, one in zip(calls, own, strict=True)]}
        if (asked := message.get("tool_call_id")) is not None and (found := waiting.get(asked)) is not None:
            message = {**message, "tool_call_id": found.pop(0) if len(found) > 1 else found[0]}
        shown.append(message)
    return shown


def _unused(call_id: str, numbers: Counter[str], used: set[str]) -> str:
    own = call_id
    while own in used:
        numbers[call_id] += 1
        own = f"{call_id}-{numbers[call_id]}"
    used.add(own)
    return own
