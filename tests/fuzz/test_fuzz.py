"""Every call either gives finite output of the right shape, or says which argument is wrong."""

import pytest
from hypothesis import given, settings

from tests.fuzz.cases import cases
from tests.fuzz.judge import judge, judge_search
from tests.fuzz.length import N_CASES, SLOW_TO_DRAW, search_at_length


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
    search_at_length(capsys, judge, cases(), n_cases)
