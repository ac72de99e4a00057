"""The seed decides everything, and global generators play no part."""

import random

import numpy as np
import pytest
import torch
from sklearn.base import clone

from tests.builders import X2, YR, both, make_regressor
from tests.tools import outputs


@both
def test_global_generators_are_neither_seeded_nor_used_case_h5(make, y):
    for seed in (0, np.random.RandomState(0)):
        before = random.getstate(), np.random.get_state(), torch.random.get_rng_state()
        if torch.cuda.is_available():
            cuda = torch.cuda.get_rng_state_all()
        estimator = make(random_state=seed, early_stopping=True).fit(X2, y)
        estimator.predict(X2)
        repr(estimator.convergence_diagnostics_)
        assert random.getstate() == before[0]
        np.testing.assert_array_equal(np.random.get_state()[1], before[1][1])
        assert np.random.get_state()[2:] == before[1][2:]
        assert torch.equal(torch.random.get_rng_state(), before[2])
        if torch.cuda.is_available():
            assert all(map(torch.equal, torch.cuda.get_rng_state_all(), cuda))


@both
@pytest.mark.parametrize("early_stopping", [False, True])
def test_seed_decides_everything_case_h6(make, y, early_stopping):
    """Zero is a seed like any other, and the global generators play no part."""

    def fit(seed, global_seed):
        np.random.seed(global_seed)
        torch.manual_seed(global_seed)
        random.seed(global_seed)
        return outputs(make(random_state=seed, early_stopping=early_stopping).fit(X2, y), X2)

    zero = fit(0, 1)
    np.testing.assert_array_equal(fit(0, 2), zero)
    np.testing.assert_array_equal(fit(np.int64(0), 3), zero)
    assert not np.allclose(fit(1, 1), zero)
    np.testing.assert_array_equal(
        fit(np.random.RandomState(0), 4), fit(np.random.RandomState(0), 5)
    )
    assert not np.allclose(fit(np.random.RandomState(1), 4), fit(np.random.RandomState(0), 4))


@both
def test_random_state_object_is_kept_and_advances_case_h6(make, y):
    """As scikit-learn's glossary has it."""
    generator = np.random.RandomState(0)
    estimator = make(random_state=generator)
    first = outputs(estimator.fit(X2, y), X2)
    assert estimator.get_params()["random_state"] is generator
    assert not np.allclose(outputs(estimator.fit(X2, y), X2), first)
    seeded = make(random_state=np.int64(7))
    seed = seeded.random_state
    expected = outputs(seeded.fit(X2, y), X2)
    assert seeded.random_state is seed
    np.testing.assert_array_equal(outputs(clone(seeded).fit(X2, y), X2), expected)


def test_fits_without_a_seed_differ_case_h6():
    first, second = (make_regressor(random_state=None).fit(X2, YR).predict(X2) for _ in range(2))
    assert not np.allclose(first, second)


@pytest.mark.parametrize("seed", ["a", 1.5, -1])
def test_things_that_are_no_seeds_are_refused_case_h6(seed):
    with pytest.raises((ValueError, TypeError), match=r"random_state|seed"):
        make_regressor(random_state=seed).fit(X2, YR)
