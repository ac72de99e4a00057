"""Devices that are there, that are not, and that a model came from."""

import gc
import pickle

import numpy as np
import pytest
import torch
from sklearn.model_selection import cross_val_score

from tests.builders import X2, X2D, X3, YR, make_regressor
from tests.tools import recorded_warnings


def test_estimator_from_a_missing_device_predicts_on_the_cpu_with_one_warning_case_d8():
    """As if fitted on the 64th GPU."""
    estimator = make_regressor().fit(X2, YR)
    expected = estimator.predict(X2)
    estimator.device = estimator.device_ = "cuda:63"
    loaded = pickle.loads(pickle.dumps(estimator))
    with recorded_warnings() as caught:
        predictions = loaded.predict(X2)
    assert [w.category for w in caught] == [UserWarning]
    assert "cuda:63" in str(caught[0].message)
    np.testing.assert_allclose(predictions, expected, rtol=1e-4)
    assert loaded.get_params()["device"] == "cuda:63"


@pytest.mark.parametrize("device", ["cuda:63", "nope", "meta"])
def test_fit_on_a_missing_device_is_refused_by_name_case_d8(device):
    with pytest.raises(ValueError, match=device):
        make_regressor(device=device).fit(X2, YR)


@pytest.mark.gpu
def test_gpu_memory_is_released_after_cross_validation_case_d12():
    make_regressor(device="cuda").fit(X3, YR)
    gc.collect()
    before = torch.cuda.memory_allocated()
    for _ in range(2):
        cross_val_score(make_regressor(device="cuda"), X3, YR, cv=10)
    gc.collect()
    assert abs(torch.cuda.memory_allocated() - before) < 1e6
    kept = [make_regressor(device="cuda").fit(X3, YR) for _ in range(5)]
    gc.collect()
    assert len(kept) == 5
    assert abs(torch.cuda.memory_allocated() - before) < 1e6


@pytest.mark.skipif(not torch.backends.mps.is_available(), reason="needs an Apple GPU (MPS)")
def test_double_precision_data_is_fitted_on_mps_case_d14():
    """MPS has no float64."""
    expected = make_regressor(dtype="float32").fit(X2D, YR).predict(X2D)
    predictions = make_regressor(device="mps").fit(X2D, YR).predict(X2D)
    np.testing.assert_allclose(predictions, expected, rtol=1e-3, atol=1e-3)
