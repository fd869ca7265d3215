"""Predicts output lengths from those of prompts that begin the same way."""

from collections import OrderedDict

from inflight.request import Request
from inflight.scheduler.newest_values import NewestValues
from inflight.scheduler.output_lengths.predictor import Forecast, LengthPredictor

_BEGINNINGS = (256, 128, 64, 32, 16, 8)
"""Numbers of tokens that may be the fixed part of a prompt, such as an instruction before the user's text."""
_KEPT = 100
_MAX_KEYS = 8192


class TemplateQuantiles(LengthPredictor):
    """Running quantiles of output lengths by template and prompt length.

    What the template of a prompt is, is not known. So the longest beginning that enough past prompts had counts, first
    with those of a similar length, within a factor of two. Without such a beginning, the prompt's length counts alone.
    """

    def __init__(self) -> None:
        self._by_key: OrderedDict[int, NewestValues] = OrderedDict()

    def prepare(self, request: Request) -> None:
        """See `LengthPredictor`."""
        prompt, tenant = request.prompt_ids, request.tenant
        keys = []
        for tokens in _BEGINNINGS:
            if tokens <= len(prompt):
                beginning = tuple(prompt[:tokens])
                keys += [hash((tenant, beginning, len(prompt).bit_length())), hash((tenant, beginning))]
        keys.append(hash((tenant, len(prompt).bit_length())))
        request.forecast = Forecast(keys=keys)

    def arrived(self, request: Request) -> None:
        """See `LengthPredictor`."""
        if request.forecast is None:
            self.prepare(request)

    def observe(self, request: Request) -> None:
        """See `LengthPredictor`."""
        for key in request.forecast.keys if request.forecast else ():
            self._by_key.setdefault(key, NewestValues(kept=_KEPT)).add(request.num_output)
            self._by_key.move_to_end(key)
        while len(self._by_key) > _MAX_KEYS:
            self._by_key.popitem(last=False)

    def past(self, request: Request) -> NewestValues | None:
        """See `LengthPredictor`."""
        for key in request.forecast.keys if request.forecast else ():
            found = self._by_key.get(key)
            if found is not None and found.is_enough(request.num_output):
                return found
        return None
