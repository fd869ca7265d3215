"""Loads the model and makes its runner: in this process, or over several."""

from inflight.config import EngineConfig
from inflight.model.loading.description import describe
from inflight.model.loading.loader import LoadedModel, device_of, load_model
from inflight.model.parallel.divided_model import DividedModel
from inflight.model.parallel.machines.join import Machines
from inflight.model.parallel.machines.key import ranks_key
from inflight.model.parallel.plan import check_plan
from inflight.model.parallel.tensor_parallel_runner import TensorParallelRunner
from inflight.model.parallel.workers import Workers
from inflight.model.runner import ModelRunner


def load(config: EngineConfig) -> LoadedModel | DividedModel:
    """Load the model that the settings name, over `tensor_parallel_size` processes.

    Raises what `Workers` and `load_model` raise, and a ValueError if the machines of the model have no key.
    """
    if config.tensor_parallel_size == 1:
        return load_model(config)
    _check_divisible(config)
    workers = Workers(config.tensor_parallel_size, _machines(config))
    try:
        return DividedModel(config, workers)
    except BaseException:
        workers.close()
        raise


def make_runner(
    model: LoadedModel | DividedModel, config: EngineConfig, beside: LoadedModel | None = None
) -> ModelRunner | TensorParallelRunner:
    """Allocate the KV cache. See `ModelRunner`; a model that is divided has none beside it."""
    if isinstance(model, DividedModel):
        return TensorParallelRunner(model, config)
    return ModelRunner(model, config, beside)


def _check_divisible(config: EngineConfig) -> None:
    """Refuse before ranks are started, which takes seconds, what each of them would refuse."""
    device_of(config)
    described = describe(config)
    check_plan(described.config, config.tensor_parallel_size, trust_remote_code=config.trust_remote_code)


def _machines(config: EngineConfig) -> Machines | None:
    if config.nnodes == 1:
        return None
    return Machines(
        config.master_addr,
        config.master_port,
        count=config.nnodes,
        ranks_each=config.ranks_per_machine,
        key=ranks_key(),
    )
