"""Diagnostics of degenerate data are numbers, or say why not."""

import itertools
import math
import warnings

import numpy as np
import pytest
import scipy.linalg
import torch

from sklearn_restf import ResidualTransformerRegressor
from sklearn_restf.exceptions import RankCollapseWarning
from tests.builders import (
    FEW_STEPS,
    ROW_LABELS,
    ROWS,
    SERIES,
    SERIES_YR,
    X2D,
    X3D,
    YR,
    make_regressor,
)

_DUPLICATED = np.concatenate([X3D, X3D[:, :, :1]], axis=2)


@pytest.mark.parametrize("diagnostics", [True, "full"])
@pytest.mark.parametrize(
    ("X", "y"),
    [
        (_DUPLICATED, YR),
        (np.concatenate([X3D, X3D[:, :, :1] + 1e-9], axis=2), YR),
        (np.ones((64, 24, 3)), YR),
        (np.ones((64, 6)), YR),
        (X3D[:1], YR[:1]),
        (X2D[:, :1], YR),
        (X3D[:, :, :1], YR),
        (X3D[:, :1], YR),
        (np.repeat(X3D[:1], 64, axis=0), YR),
        (X3D * 1e-12, YR),
        (SERIES, SERIES_YR),
        (X3D, np.zeros(64)),
    ],
    ids=[
        "duplicate",
        "near-duplicate",
        "constant windows",
        "constant table",
        "one sample",
        "one feature",
        "one channel",
        "one token",
        "equal samples",
        "tiny",
        "series",
        "constant target",
    ],
)
def test_diagnostics_of_degenerate_data_are_numbers_case_d27(X, y, diagnostics):
    """Plain floats, never negative; NaN only where there is nothing to measure."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RankCollapseWarning)
        estimator = make_regressor(diagnostics=diagnostics, max_iter=8).fit(X, y)
    report = estimator.convergence_diagnostics_
    for name in ("sigma_min", "norm", "condition_ratio", "effective_rank", "rank1_residual"):
        value = getattr(report, name)
        assert type(value) is float, name
        assert math.isnan(value) or value >= 0, name
    for name in ("rate", "predicted_rate", "rate_r2", "stable_rank"):
        assert type(getattr(report, name)) is float, name
    assert type(report.certified) is bool
    assert not report.sigma_min > report.norm * (1 + 1e-12)
    assert isinstance(repr(report), str)
    assert report.summary() is not None
    assert len(report.to_frame()) > 0


def test_failing_svd_gives_nan_with_a_reason_and_the_fit_survives_case_d27(monkeypatch):
    expected = make_regressor().fit(X3D, YR).predict(X3D)

    def fail_numpy(*args, **kwargs):
        raise np.linalg.LinAlgError("SVD did not converge")

    def fail_torch(*args, **kwargs):
        raise torch.linalg.LinAlgError("linalg.svd: The algorithm failed to converge")

    fail = {np.linalg: fail_numpy, scipy.linalg: fail_numpy, torch.linalg: fail_torch}
    for module, name in itertools.product(fail, ("svd", "svdvals")):
        monkeypatch.setattr(module, name, fail[module])
    estimator = make_regressor().fit(X3D, YR)
    np.testing.assert_array_equal(estimator.predict(X3D), expected)
    report = estimator.convergence_diagnostics_
    assert math.isnan(report.sigma_min)
    assert "converge" in str(report.reasons)


@pytest.mark.parametrize("name", ["init_scale", "residual_beta", "ffn_residual_beta"])
@pytest.mark.parametrize("diagnostics", [True, "full"])
@pytest.mark.parametrize("pooling", ["last", "none"])
def test_diagnostics_at_the_edge_of_range(name, diagnostics, pooling, capfd):
    parameters = FEW_STEPS | {name: 1e300, "diagnostics": diagnostics, "pooling": pooling}
    windows = ROWS.reshape(6, 2, 2)
    y = ROWS[:, :2] if pooling == "none" else ROW_LABELS
    try:
        ResidualTransformerRegressor(**parameters).fit(windows, y)
    except ValueError as error:
        assert "diverged" in str(error)  # noqa: PT017
    assert capfd.readouterr() == ("", "")


def test_diagnostics_of_a_model_that_does_not_move():
    model = ResidualTransformerRegressor(**FEW_STEPS, learning_rate=1e-300)
    model.fit(ROWS, ROW_LABELS, X_val=ROWS, y_val=ROW_LABELS)
    model.fit(ROWS * 1e300, ROW_LABELS * 1e300)
