"""Triton's entry point: connects the engine to Triton's requests and responses."""

import json
import locale
import logging
import os
import sys
from pathlib import Path
from typing import Any

# The embedded interpreter ignores the environment and starts with ASCII as its encoding. A library that opens a file of
# its own would then fail on the first non-ASCII character.
locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
# OpenMP's threads, which compute what the kernels do not, wait awake for each other, for milliseconds. Beside another
# busy process, each of torch's operators then takes that long, above all while the model is loaded. This bound, about
# 0.1 ms, must be set before torch is imported.
os.environ.setdefault("GOMP_SPINCOUNT", "2000")
# A thread that needs Python's lock waits so many seconds before it asks the thread that has it to give it up. With the
# default of 5 ms, the engine's thread would mostly wait beside a thread that parses requests.
sys.setswitchinterval(0.0005)
# Triton appends this folder to the path, after site-packages. The packages next to this file must come first.
sys.path.insert(0, str(Path(__file__).parent))

from inflight.lasting_imports import lasting_imports  # noqa: E402
from serving import server_config as formats  # noqa: E402
from serving.fields import add_tensors  # noqa: E402
from serving.log_format import LogFormat  # noqa: E402
from serving.settings import check_tensors, on_device_of_instance, read_settings  # noqa: E402
from serving.tensorrt_llm import tensors as tensorrt_llm  # noqa: E402
from serving.watchdog import start_guardian  # noqa: E402


class TritonPythonModel:
    """A decoupled model: `execute` passes requests to the engine and returns. Other threads send the responses."""

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        """Add what every configuration has in common: the inputs, the outputs and the decoupled transaction policy."""
        config.set_model_transaction_policy({"decoupled": True})
        match tensorrt_llm.request_format(config):
            case formats.TENSORRT_LLM:
                return tensorrt_llm.add_tensors(config)
            case formats.TENSORRT_LLM_ENSEMBLE:
                return tensorrt_llm.add_ensemble_outputs(add_tensors(config))
        return add_tensors(config)

    def initialize(self, args: dict[str, str]) -> None:
        """Load the model and start the engine. An exception here makes the load fail with the exception's message."""
        handler = logging.StreamHandler()
        handler.setFormatter(LogFormat())
        logging.basicConfig(level=logging.INFO, handlers=[handler])
        model_config = json.loads(args["model_config"])
        check_tensors(model_config)
        parameters = model_config["parameters"]
        engine_config, server_config = read_settings({key: p["string_value"] for key, p in parameters.items()})
        engine_config = on_device_of_instance(
            engine_config, args["model_instance_kind"], args["model_instance_device_id"]
        )
        guardian = start_guardian(args["model_name"], server_config)
        # Not at the top of the file: importing torch takes seconds, and Triton also starts a process that only calls
        # auto_complete_config.
        with lasting_imports():
            from serving.engine_thread import EngineThread
            from serving.server import Server

        self._server = Server(
            EngineThread(engine_config),
            server_config,
            guardian,
            batched=model_config["max_batch_size"] > 0,
            metric_labels={
                "model": args["model_name"],
                "version": args["model_version"],
                "instance": args["model_instance_name"],
            },
        )
        self._server.start()

    def execute(self, requests: list[Any]) -> None:
        """Accept requests. Blocks on the engine only if `max_inflight_requests` is set."""
        for request in requests:
            self._server.accept(request)
        # After all of these requests have been accepted. Requests that arrive during the wait stay in Triton's queue.
        self._server.wait_for_room()

    def is_ready(self) -> bool:
        """Whether the model is ready. Triton 26.03 and later call this for `/v2/models/NAME/ready`."""
        return self._server.is_ready

    def finalize(self) -> None:
        """Stop the engine. Triton calls this after every request has received its last response."""
        self._server.stop()
