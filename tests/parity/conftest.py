"""Quiet transformers: these tests make many small models."""

import transformers

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
