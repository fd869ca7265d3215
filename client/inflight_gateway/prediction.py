"""OpenAI's predicted outputs: a prediction becomes the server's draft of the answer."""

from inflight_client import Sampling
from inflight_gateway.chat_request import Prediction
from inflight_gateway.field_names import naming_fields
from inflight_gateway.service import Service


async def draft_of(prediction: Prediction | None, service: Service, tenant: str | None) -> Sampling:
    """Return what the server is asked because of a prediction: nothing, if there is none or the model takes no drafts.

    Raises:
        ApiError: the prediction is longer than the context of the model.
        InflightError: the server cannot be asked.
    """
    if prediction is None or not prediction.text:
        return {}
    most = await service.model.max_draft_input_ids()
    if not most:
        return {}
    with naming_fields({"text_input": "prediction", "prompt": "prediction"}):
        tokens = await service.client.tokenize(prediction.text, add_special_tokens=False, tenant=tenant)
    return {"draft_input_ids": tokens.token_ids[:most], "return_perf_metrics": True}
