"""The base of all requests, and a type of their fields."""

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, WithJsonSchema, model_validator


class Strict(BaseModel):
    """Takes only fields that it knows, and only values of their own types.

    Each error costs a hundred times the memory of the invalid value, and only the first error is answered. So of all
    unknown fields one is an error, and lists in which a body has room for many values have `fail_fast`.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _without_unknown_nulls(cls, given: Any) -> Any:
        """Null means absent. Programs that write every field that their library knows send many of them."""
        if not isinstance(given, dict):
            return given
        if given.keys() <= cls.model_fields.keys():
            return given
        kept = {name: value for name, value in given.items() if value is not None or name in cls.model_fields}
        known = {*cls.model_fields, *(field.alias for field in cls.model_fields.values())}
        for name in [name for name in kept if name not in known][1:]:
            del kept[name]
        return kept


def at_most(count: int) -> BeforeValidator:
    """Return a check of how many entries an object has, before they are looked at one by one."""

    def check(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > count:
            raise ValueError(f"it has {len(value)} entries; it must have at most {count}")
        return value

    return BeforeValidator(check)


def _refuse_true(value: bool) -> bool:
    if value:
        raise ValueError("it must be false or absent")
    return value


# Not `Literal[False]`, which also accepts 0.
Never = Annotated[bool, AfterValidator(_refuse_true), WithJsonSchema({"type": "boolean", "const": False})]
"""False: something that is not there, and must not be asked for."""


def _refuse_false(value: bool) -> bool:
    if not value:
        raise ValueError("it must be true or absent")
    return value


Always = Annotated[bool, AfterValidator(_refuse_false), WithJsonSchema({"type": "boolean", "const": True})]
"""True: something that always is so, and cannot be turned off."""
