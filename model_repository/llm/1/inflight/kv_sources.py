"""Makes the two sources of imported blocks: the disk, and other engines. Both also get what this engine computes."""

from pathlib import Path

from inflight.config import EngineConfig
from inflight.kv_cache.block_tables import BlockTables
from inflight.kv_cache.disk_store import DiskStore
from inflight.kv_cache.disk_tier import DiskTier
from inflight.kv_transfer.connector import KVConnector
from inflight.kv_transfer.kv_transfer_config import KVTransferConfig
from inflight.model.cache.layout import fingerprint
from inflight.model.loading.loader import LoadedModel
from inflight.model.parallel.tensor_parallel_runner import TensorParallelRunner
from inflight.model.runner import ModelRunner
from inflight.request import Request
from inflight.sampling_params import SamplingParams
from inflight.scheduler.scheduler import Scheduler


def make_disk(
    config: EngineConfig,
    folder: Path,
    model: LoadedModel,
    runner: ModelRunner | TensorParallelRunner,
    scheduler: Scheduler,
) -> DiskTier:
    """Return the prefixes in a folder that `open_folder` has opened. Raises what `DiskStore` raises."""
    assert isinstance(runner, ModelRunner), "the settings allow no other"
    times = scheduler.times
    return DiskTier(
        DiskStore(
            folder,
            fingerprint(model, config),
            runner.bytes_per_block,
            round(config.kv_offloading_disk_size * 2**30),
        ),
        scheduler.tables,
        read_blocks=runner.read_blocks,
        prefill_seconds=lambda tokens: times.prefill_seconds(tokens) if times.known else None,
    )


def make_connector(
    config: EngineConfig, model: LoadedModel, runner: ModelRunner | TensorParallelRunner, tables: BlockTables
) -> KVConnector | None:
    """Return the connector to other engines that `kv_transfer_config` asks for, if any. It does nothing until it is
    started."""
    transfer = KVTransferConfig.of(config.kv_transfer_config)
    if transfer.kv_role is None:
        return None
    assert isinstance(runner, ModelRunner), "the settings allow no other"
    return KVConnector(
        transfer,
        fingerprint=fingerprint(model, config),
        block_size=config.block_size,
        bytes_per_block=runner.bytes_per_block,
        read_blocks=runner.read_blocks,
        num_cached=lambda prompt_ids, options: tables.num_known_of(
            Request(
                "", prompt_ids, SamplingParams(), max_tokens=1, seed=0, options=options, rope_switch=model.rope_switch
            )
        ),
    )
