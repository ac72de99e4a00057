"""The long search: how many cases, from which seed, and what is printed of them."""

import os

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.fuzz.judge import outcomes

#: Cases of the long search and the seed it starts from: another seed, other cases.
N_CASES = int(os.environ.get("FUZZ_CASES", "20000"))
SEED = int(os.environ.get("FUZZ_SEED", "0"))

SLOW_TO_DRAW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]


def describe():
    """Return how often each outcome was seen."""
    lines = [f"{count:8d}  {name}" for name, count in outcomes.most_common() if name != "cases"]
    return "\n".join([f"{outcomes['cases']} cases; outcomes of their calls:", *lines])


def search_at_length(capsys, judge, cases, n_cases):
    """Judge many cases, and print what became of them."""
    outcomes.clear()

    @seed(SEED)
    @settings(
        max_examples=n_cases,
        derandomize=False,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=SLOW_TO_DRAW,
    )
    @given(cases)
    def search(case):
        judge(case)

    try:
        search()
    finally:
        with capsys.disabled():
            print(f"\n{judge.__name__}, seed {SEED}: {describe()}")
