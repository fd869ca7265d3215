"""Texts that structural tags allow."""

import json
from typing import Any


def instance(tag: dict[str, Any], values: dict[str, Any]) -> str:
    """The text that a structural tag allows, with these values of parameters or these arguments."""
    match tag["type"]:
        case "const_string":
            return str(tag["value"])
        case "json_schema":
            return {"object": json.dumps(values), "string": '"Ulm"'}.get(tag["json_schema"]["type"], "3")
        case "any_text":
            return "Ulm"
        case "regex":  # Of Kimi's number of a call.
            return "7"
        case "sequence":
            return "".join(instance(one, values) for one in tag["elements"])
        case "or":
            return instance(tag["elements"][-1], values)
        case "tag":
            return f"{tag['begin']}{instance(tag['content'], values)}{tag['end']}"
        case "tags_with_separator":
            return str(tag["separator"]).join(instance(one, values) for one in tag["tags"])
    raise AssertionError(tag["type"])
