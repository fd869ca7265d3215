"""All experiments, by name."""

from load_tests.experiments.admission import AdmissionModes
from load_tests.experiments.arrival_forecast import ArrivalForecast
from load_tests.experiments.auto_tune import AutoTune
from load_tests.experiments.batch_size import BatchSize
from load_tests.experiments.batch_wait import BatchWait
from load_tests.experiments.batching import BatchingStrategies
from load_tests.experiments.chunked_prefill import ChunkedPrefill
from load_tests.experiments.concurrency import Concurrency
from load_tests.experiments.cost_frontier import CostFrontier
from load_tests.experiments.delay_factor import DelayFactor
from load_tests.experiments.experiment import Experiment
from load_tests.experiments.fairness import FairShares
from load_tests.experiments.hybrid import Hybrid
from load_tests.experiments.output_lengths import OutputLengths
from load_tests.experiments.padded_batches import PaddedBatches
from load_tests.experiments.padding_efficiency import PaddingEfficiency
from load_tests.experiments.prefill_decode import PrefillDecode
from load_tests.experiments.prefix_cache import PrefixCache
from load_tests.experiments.priorities import PriorityInversion
from load_tests.experiments.shortest_first import ShortestFirst
from load_tests.experiments.tensor_parallel import TensorParallel
from load_tests.experiments.token_budget import TokenBudgets

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        BatchingStrategies(),
        ChunkedPrefill(),
        ShortestFirst(),
        OutputLengths(),
        FairShares(),
        PriorityInversion(),
        AdmissionModes(),
        PrefixCache(),
        TokenBudgets(),
        DelayFactor(),
        BatchSize(),
        Concurrency(),
        PaddingEfficiency(),
        BatchWait(),
        ArrivalForecast(),
        PaddedBatches(),
        Hybrid(),
        AutoTune(),
        CostFrontier(),
        PrefillDecode(),
        TensorParallel(),
    )
}
