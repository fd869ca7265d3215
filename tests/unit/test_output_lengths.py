"""What is learned of output lengths from prompts, and when it is used."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from inflight.request import Request
from inflight.scheduler.output_lengths.predictor import LengthPredictor
from inflight.scheduler.output_lengths.ranker import PairwiseRanker, prompt_features
from inflight.scheduler.output_lengths.state_regression import StateRegression
from inflight.scheduler.output_lengths.template_quantiles import TemplateQuantiles
from inflight.scheduler.output_lengths.tenant_quantiles import TenantQuantiles
from inflight.scheduler.output_lengths.watched import Watched, rank_correlation
from tests.unit.builders import make_request, make_scheduler, step

SHORT, LONG = 10, 100
INSTRUCTIONS = {SHORT: range(100, 112), LONG: range(200, 212)}
PREDICTORS = pytest.mark.parametrize("learned", [PairwiseRanker, TemplateQuantiles])


class Traffic:
    """Requests whose prompts begin with one of two instructions and go on at random."""

    def __init__(self, predictor: LengthPredictor) -> None:
        self.predictor = predictor
        self._chance = np.random.default_rng(1)
        self._number = 0

    def arrive(self, instruction: int) -> Request:
        self._number += 1
        text = self._chance.integers(1000, 9000, size=self._chance.integers(20, 60)).tolist()
        request = make_request(f"r{self._number}", [*INSTRUCTIONS[instruction], *text], max_tokens=10_000)
        self.predictor.arrived(request)
        return request

    def end(self, instruction: int, length: int) -> None:
        request = self.arrive(instruction)
        request.token_ids += [0] * length
        self.predictor.observe(request)
        self.predictor.learn()

    def run(self, count: int, lengths: dict[int, int]) -> None:
        """Half of the requests have each instruction. Lengths vary by half."""
        for _ in range(count):
            instruction = (SHORT, LONG)[self._chance.integers(2)]
            length = int(lengths[instruction] * self._chance.uniform(0.5, 1.5))
            self.end(instruction, length)

    def predicted(self, instruction: int) -> float:
        """The mean prediction for ten new requests."""
        return float(np.mean([self.predictor.remaining(self.arrive(instruction)) for _ in range(10)]))


@PREDICTORS
def test_the_instruction_tells_the_length(learned: type[LengthPredictor]) -> None:
    watched = Watched(learned())
    traffic = Traffic(watched)
    traffic.run(300, {SHORT: SHORT, LONG: LONG})
    assert watched.trusted
    assert watched.correlations["used"] > 0.6 > watched.correlations["tenant"]
    assert traffic.predicted(SHORT) < 25
    assert 70 < traffic.predicted(LONG) < 130


@PREDICTORS
def test_where_nothing_can_be_learnt_the_tenants_quantiles_are_used(learned: type[LengthPredictor]) -> None:
    watched, plain = Watched(learned()), TenantQuantiles()
    traffic = Traffic(watched)
    chance = np.random.default_rng(2)
    for _ in range(600):
        length = int(chance.integers(1, 200))
        traffic.end((SHORT, LONG)[chance.integers(2)], length)
        plain.observe(ended(length))
        assert not watched.trusted
    new = traffic.arrive(SHORT)
    assert watched.remaining(new) == plain.remaining(new)


def ended(length: int) -> Request:
    request = make_request("ended", 1, max_tokens=10_000)
    request.token_ids += [0] * length
    return request


@PREDICTORS
def test_a_predictor_that_is_wrong_suddenly_is_used_again_once_it_has_learned(learned: type[LengthPredictor]) -> None:
    watched = Watched(learned())
    traffic = Traffic(watched)
    traffic.run(300, {SHORT: SHORT, LONG: LONG})
    assert watched.trusted
    swapped = {SHORT: LONG, LONG: SHORT}
    seen = set()
    for _ in range(20):
        traffic.run(10, swapped)
        seen.add(watched.trusted)
    assert seen == {True, False}
    traffic.run(1500, swapped)
    assert watched.trusted
    assert traffic.predicted(SHORT) > 70


def test_a_request_that_has_outlived_all_similar_ones_is_predicted_by_its_tenants() -> None:
    watched = Watched(PairwiseRanker())
    traffic = Traffic(watched)
    traffic.run(300, {SHORT: SHORT, LONG: LONG})
    request = traffic.arrive(SHORT)
    request.token_ids += [0] * 50
    assert 20 < watched.remaining(request) < 100


def test_the_longest_known_beginning_decides() -> None:
    predictor = TemplateQuantiles()

    def prompt(*parts: int) -> list[int]:
        return [part for part in parts for _ in range(16)]

    def arrive(*parts: int) -> Request:
        request = make_request("r", prompt(*parts), max_tokens=10_000)
        predictor.arrived(request)
        return request

    for length, parts in ((5, (1, 2)), (50, (1, 3))):
        for _ in range(20):
            request = arrive(*parts)
            request.token_ids += [0] * length
            predictor.observe(request)
    assert predictor.remaining(arrive(1, 2)) == 5
    assert predictor.remaining(arrive(1, 3)) == 50
    assert predictor.remaining(arrive(1, 4), 0.1) == 5, "16 tokens are known, which both have"
    assert predictor.remaining(arrive(1, 4), 0.9) == 50
    assert predictor.past(arrive(9)) is None, "no prompt had this length"


@pytest.mark.parametrize("width", [16, 4096])
def test_the_state_after_the_prompt_tells_the_length(width: int) -> None:
    """The length depends on one of eight factors that a state consists of."""
    watched = Watched(StateRegression())
    chance = np.random.default_rng(3)
    mix = chance.standard_normal((width, 8))
    for number in range(600):
        factors = chance.standard_normal(8)
        request = make_request(f"r{number}", 4, max_tokens=10_000)
        watched.arrived(request)
        watched.prompt_computed(request, (mix @ factors).astype(np.float32))
        request.token_ids += [0] * (1 + int(np.exp(3 + 1.5 * factors[0])))
        watched.observe(request)
    assert watched.trusted
    assert watched.correlations["prompt"] > 0.8


def test_a_state_that_is_not_a_number_is_not_learnt() -> None:
    predictor = StateRegression()
    request = make_request("r", 4)
    predictor.prompt_computed(request, np.array([1.0, np.nan], np.float32))
    assert request.forecast is None


@pytest.mark.filterwarnings("error")
def test_large_states_are_learnt() -> None:
    """Sums of such numbers are infinite in float32."""
    predictor = StateRegression()
    large = make_request("large", 4, max_tokens=100)
    predictor.arrived(large)
    predictor.prompt_computed(large, np.full(64, 3e38, np.float32))
    assert large.forecast is not None
    assert np.linalg.norm(large.forecast.features[:-1]) == pytest.approx(1)


def test_memory_is_bounded() -> None:
    predictor = TemplateQuantiles()
    for number in range(4000):
        request = make_request("r", range(number, number + 300))
        predictor.arrived(request)
        predictor.observe(request)
    assert len(predictor._by_key) == 8192


@given(st.lists(st.integers(0, 60_000), min_size=1, max_size=600), st.integers(1, 4096))
def test_features_are_of_one_shape_and_depend_on_nothing_else(prompt: list[int], max_tokens: int) -> None:
    features = prompt_features(prompt, max_tokens)
    assert features.shape == (257,)
    assert 0 <= features.min() <= features.max() < 1 << 16
    assert np.count_nonzero(features) >= min(2 * len(prompt), 257)
    assert (features == prompt_features(list(prompt), max_tokens)).all()


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=60))
def test_the_rank_correlation_is_spearmans(pairs: list[tuple[int, int]]) -> None:
    one, other = np.array(pairs).T
    expected = 0.0 if min(len(set(one)), len(set(other))) == 1 else spearmanr(one, other).statistic
    assert rank_correlation(one, other) == pytest.approx(expected)


def test_the_request_with_the_most_expected_work_is_preempted() -> None:
    scheduler = make_scheduler(scheduling_policy="sjf", num_blocks=6, block_size=4, budget=64)
    long, short = make_request("long", 7, max_tokens=16), make_request("short", 7, max_tokens=8)
    scheduler.add(long)
    step(scheduler)
    scheduler.add(short)
    while not scheduler.preemptor.num_preemptions:
        step(scheduler)
    assert list(scheduler.running) == ["short"], "though it joined last"
