"""Every call either gives finite output of the right shape, or says which argument is wrong."""

import os

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.fuzz.cases import cases
from tests.fuzz.judge import judge, judge_search, outcomes

#: Cases of the long search and the seed it starts from: another seed, other cases.
N_CASES = int(os.environ.get("FUZZ_CASES", "20000"))
SEED = int(os.environ.get("FUZZ_SEED", "0"))

SLOW_TO_DRAW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]


def describe():
    """Return how often each outcome was seen."""
    lines = [f"{count:8d}  {name}" for name, count in outcomes.most_common() if name != "cases"]
    return "\n".join([f"{outcomes['cases']} cases; outcomes of their calls:", *lines])


@pytest.mark.timeout(600)  # many fits: slow where other jobs hold the cores
@settings(max_examples=60, suppress_health_check=SLOW_TO_DRAW)
@given(cases())
def test_finite_or_refused(case):
    judge(case)


@pytest.mark.timeout(600)
@settings(max_examples=20, suppress_health_check=SLOW_TO_DRAW)
@given(cases())
def test_searches_finite_or_refused(case):
    judge_search(case)


@pytest.mark.fuzz
@pytest.mark.timeout(0)
@pytest.mark.parametrize(("judge", "n_cases"), [(judge, N_CASES), (judge_search, N_CASES // 10)])
def test_finite_or_refused_at_length(capsys, judge, n_cases):
    outcomes.clear()

    @seed(SEED)
    @settings(
        max_examples=n_cases,
        derandomize=False,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=SLOW_TO_DRAW,
    )
    @given(cases())
    def search(case):
        judge(case)

    try:
        search()
    finally:
        with capsys.disabled():
            print(f"\n{judge.__name__}, seed {SEED}: {describe()}")
