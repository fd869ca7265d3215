"""What an answer must be, given as a JSON schema or as a class, and how it is read."""

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

Schema: TypeAlias = Mapping[str, object] | type[Any]
"""A JSON schema, a pydantic model or a dataclass."""


@dataclass(frozen=True, slots=True)
class AnswerSchema:
    """A JSON schema, and what turns an answer that matches it into an object."""

    json_schema: Mapping[str, object]
    parse: Callable[[str], Any]

    @classmethod
    def of(cls, schema: Schema) -> "AnswerSchema":
        """Return the schema of a class, or a schema as it is; then answers become dictionaries, lists and so on.

        Raises:
            TypeError: it is neither a mapping nor a class.
            ImportError: it is a dataclass, and pydantic is not installed.
        """
        if isinstance(schema, Mapping):
            return cls(schema, json.loads)
        if not isinstance(schema, type):
            raise TypeError(f"schema is {schema!r}; it must be a JSON schema, a pydantic model or a dataclass")
        return _of_class(cast(Any, schema))  # Classes are hashable.


# For requests that are sent many times: the schema of a class takes about a millisecond.
@functools.lru_cache(64)
def _of_class(schema: Any) -> AnswerSchema:
    if hasattr(schema, "model_json_schema"):  # pydantic's models bring all that is needed.
        return AnswerSchema(schema.model_json_schema(), schema.model_validate_json)
    if not dataclasses.is_dataclass(schema):
        raise TypeError(f"schema is {schema.__name__}; it must be a JSON schema, a pydantic model or a dataclass")
    # Imported here because pydantic is an optional dependency.
    try:
        from pydantic import TypeAdapter
    except ImportError as error:
        raise ImportError("a dataclass as schema needs pydantic: pip install 'inflight-client[schema]'") from error
    adapter = TypeAdapter(schema)
    return AnswerSchema(adapter.json_schema(), adapter.validate_json)
