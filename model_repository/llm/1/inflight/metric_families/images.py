"""Metrics of prompts with images."""

from inflight.metric_families.family import COUNTER, value

IMAGES = (
    value(
        "inflight:images_read_total",
        COUNTER,
        "Images that the model's encoder has read.",
        lambda s: s.images_read,
    ),
    value(
        "inflight:image_read_seconds_total",
        COUNTER,
        "Time spent on reading them, from the file to the features, on a thread of its own.",
        lambda s: s.image_read_seconds,
    ),
)
