"""Profiles of hypothesis for tests against a running server: few examples, or many with HYPOTHESIS_PROFILE=long."""

import os

from hypothesis import HealthCheck, Phase, settings

_COMMON = {
    "deadline": None,
    "database": None,
    "suppress_health_check": list(HealthCheck),
    "phases": [Phase.explicit, Phase.generate],
}
SHORT = settings(max_examples=6, derandomize=True, **_COMMON)
LONG = settings(max_examples=5000, **_COMMON)


def fuzzing() -> settings:
    """Return the settings for a test that sends its examples to a server."""
    return LONG if os.environ.get("HYPOTHESIS_PROFILE") == "long" else SHORT
