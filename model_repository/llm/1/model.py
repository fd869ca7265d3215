"""Triton's entry point: wires the engine to Triton's requests and responses."""

import json
import locale
import logging
import sys
from pathlib import Path
from typing import Any

# The embedded interpreter starts with ASCII as its encoding, whatever the environment says; libraries that open
# their own files then fail on the first other character.
locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
# Triton appends this folder to the path, after site-packages; the packages beside this file are the ones meant.
sys.path.insert(0, str(Path(__file__).parent))

from serving.fields import add_tensors  # noqa: E402


class TritonPythonModel:
    """A decoupled model: `execute` hands requests to the engine and returns; answers follow from other threads."""

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        """Add what is the same in every configuration: inputs, outputs, and that the model is decoupled."""
        config.set_model_transaction_policy({"decoupled": True})
        return add_tensors(config)

    def initialize(self, args: dict[str, str]) -> None:
        """Load the model and start the engine; whatever is raised here stops the load with its message."""
        logging.basicConfig(
            level=logging.INFO, format="%(levelname).1s %(asctime)s %(name)s] %(message)s", stream=sys.stderr
        )
        # Not at the top: Triton also starts a process that calls auto_complete_config alone, and torch takes seconds.
        from serving.engine_thread import EngineThread
        from serving.server import Server
        from serving.settings import check_tensors, on_device_of_instance, read_settings

        model_config = json.loads(args["model_config"])
        check_tensors(model_config)
        parameters = model_config["parameters"]
        engine_config, server_config = read_settings({key: p["string_value"] for key, p in parameters.items()})
        engine_config = on_device_of_instance(
            engine_config, args["model_instance_kind"], args["model_instance_device_id"]
        )
        self._server = Server(
            EngineThread(engine_config),
            server_config,
            batched=model_config["max_batch_size"] > 0,
            metric_labels={
                "model": args["model_name"],
                "version": args["model_version"],
                "instance": args["model_instance_name"],
            },
        )
        self._server.start()

    def execute(self, requests: list[Any]) -> None:
        """Take requests in; never blocks on the engine, unless `max_inflight_requests` asks for that."""
        for request in requests:
            self._server.accept(request)
        # At the end, when none of these is left in between: what comes meanwhile waits in Triton's queue.
        self._server.wait_for_room()

    def is_ready(self) -> bool:
        """What Triton 26.03 and later ask for `/v2/models/NAME/ready`."""
        return self._server.is_alive

    def finalize(self) -> None:
        """Stop the engine. Triton calls this once every request has had its last response."""
        self._server.stop()
