"""The LoRA adapters of a model."""

from collections.abc import Mapping
from dataclasses import dataclass

from inflight.errors import InvalidRequest
from inflight.lora.adapter import Adapter
from inflight.model.lora.adapter_cache import AdapterCache
from inflight.model.lora.lora_layers import AdaptedLayers

# A message should fit on a screen.
_MAX_NAMED = 20


@dataclass(frozen=True)
class Adapters:
    """Finds adapters by the names that requests have for them."""

    named: Mapping[str, Adapter]
    """Those of `lora_modules`, which are always in memory."""
    layers: AdaptedLayers
    """Where adapters are in memory."""
    cache: AdapterCache | None = None
    """Those of `lora_folder`, if it is given. In a divided model, only rank 0 reads them."""

    @property
    def most_in_memory(self) -> int:
        """How many adapters fit in memory."""
        return len(self.named) + (0 if self.cache is None else self.cache.num_slots)

    def names(self) -> list[str]:
        """Return the names of all adapters that there are at this time."""
        return [*self.named, *(() if self.cache is None else self.cache.folder.names())]

    def get(self, name: str) -> Adapter:
        """Return an adapter. If it is not in memory, this reads it, and so may take some time.

        Raises:
            InvalidRequest: there is none, or it cannot be used.
            QueueFull: there is no room for it, as unfinished requests use so many others.
        """
        if (adapter := self.named.get(name)) is not None:
            return adapter
        if self.cache is not None and (adapter := self.cache.get(name)) is not None:
            return adapter
        known = self.names()
        if not known:
            raise InvalidRequest(f"lora_name is {name!r}, but lora_folder has no adapters")
        more = f" or {len(known) - _MAX_NAMED} more" if len(known) > _MAX_NAMED else ""
        raise InvalidRequest(f"lora_name is {name!r}; it must be one of {', '.join(known[:_MAX_NAMED])}{more}")
