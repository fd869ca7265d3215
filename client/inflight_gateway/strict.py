"""The base of all requests."""

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """Takes only fields that it knows, and only values of their own types."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
