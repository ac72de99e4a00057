"""``diagnose``: the same quantities without a fit, for estimators and modules."""

import math

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from sklearn_restf import (
    THEOREM_SETTINGS,
    ResidualTransformerClassifier,
    ResidualTransformerRegressor,
    diagnose,
)
from sklearn_restf.exceptions import RankCollapseWarning
from tests.builders import FEW_STEPS, ROW_LABELS, ROWS

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 5, 6))
Y = X[:, -1, 0]
SERIES = [RNG.normal(size=(t, 4)) for t in (3, 6, 5, 2)]


def regressor(**parameters):
    return ResidualTransformerRegressor(
        **({"random_state": 0, "max_iter": 20, "tol": None} | parameters)
    )


# --- before training ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("estimator", "y"),
    [
        (regressor(), Y),
        (regressor(early_stopping=True), Y),
        (regressor(random_state=np.random.RandomState(3)), Y),
        (ResidualTransformerClassifier(random_state=0, max_iter=20, tol=None), Y > 0),
    ],
    ids=["regressor", "early stopping", "RandomState", "classifier"],
)
def test_before_training_it_is_what_fit_starts_from(estimator, y):
    before = diagnose(estimator, X, y)
    assert not hasattr(estimator, "n_iter_")
    after = estimator.fit(X, y).convergence_diagnostics_
    if not getattr(estimator, "early_stopping", False):  # which diagnoses the training part
        assert before.sigma_min == pytest.approx(after.sigma_min)
        assert before.norm == pytest.approx(after.norm)
        assert_allclose(before.singular_values_start, after.singular_values_start)
    assert before.effective_rank == pytest.approx(after.effective_rank, rel=0.1)


def test_diagnosing_changes_nothing():
    estimator = regressor(random_state=np.random.RandomState(0))
    parameters, drawn = str(estimator.get_params()), estimator.random_state.get_state()[2]
    diagnose(estimator, X, Y, full=True)
    assert str(estimator.get_params()) == parameters
    assert estimator.random_state.get_state()[2] == drawn
    assert vars(estimator).keys() == vars(regressor()).keys()


@pytest.mark.filterwarnings("ignore::sklearn_restf.exceptions.RankCollapseWarning")
def test_it_foresees_the_collapse():
    options = {"pooling": "none", "init_scale": 0.03, "ffn_residual_beta": 1.0}
    weak = diagnose(regressor(residual_beta=0.0, **options), X, X[:, :, 0])
    strong = diagnose(regressor(residual_beta=1.0, **options), X, X[:, :, 0])
    assert weak.problems == ("rank_collapse",)
    assert "Raise residual_beta" in weak.advice
    assert strong.problems == ()


def test_the_loss_to_expect_from_small_steps():
    estimator = regressor(learning_rate=1e-4, momentum=0.0, pooling="last", max_iter=60)
    expected = diagnose(estimator, X, Y, full=True)
    actual = estimator.fit(X, Y).convergence_diagnostics_
    assert_allclose(expected.predicted_curve, actual.loss, rtol=0.1)
    assert expected.predicted_horizon == -1  # nothing to compare with
    assert expected.jacobian_norm > expected.kernel_min > 0


def test_prediction_of_the_theorems_setting():
    estimator = ResidualTransformerRegressor(
        **THEOREM_SETTINGS, pooling="last", d_ff=64, random_state=0
    )
    before = diagnose(estimator, X, Y)
    after = estimator.set_params(max_iter=5).fit(X, Y).convergence_diagnostics_
    assert before.alpha_cert == pytest.approx(after.alpha_cert)
    assert before.predicted_rate < 1
    # the step of fit is found by power iteration to a part in a thousand
    step = 1 - before.predicted_rate
    assert step == pytest.approx(1 - after.predicted_rate, rel=0.05)


def test_without_targets_there_are_spectra_only():
    found = diagnose(regressor(), X)
    assert found.sigma_min > 0
    assert math.isnan(found.predicted_rate)
    assert found.reasons["predicted_rate"] == "no targets were given"
    assert found.advice.startswith("Not trained yet.")


def test_full_needs_targets():
    with pytest.raises(ValueError, match="pass y"):
        diagnose(regressor(), X, full=True)


@pytest.mark.parametrize("X", [X.reshape(30, -1), SERIES], ids=["table", "series"])
def test_every_form_of_input(X):
    found = diagnose(regressor(), X, np.arange(len(X)), full=True)
    assert found.sigma_min >= 0
    assert len(found.predicted_curve) == 21
    assert np.isfinite(found.predicted_curve).all()


# --- after training -----------------------------------------------------------------------------


def test_a_fitted_estimator_is_diagnosed_at_its_fitted_weights():
    estimator = regressor().fit(X, Y)
    found = diagnose(estimator, X, Y)
    assert found.sigma_min == pytest.approx(estimator.convergence_diagnostics_.final_sigma_min)
    assert found.norm == pytest.approx(estimator.convergence_diagnostics_.final_norm)


def test_a_fitted_estimator_is_diagnosed_on_other_samples():
    estimator = regressor().fit(X, Y)
    assert diagnose(estimator, 10 * X[:7]).norm_per_sample.shape == (1, 7)
    with pytest.raises(ValueError, match="features"):
        diagnose(estimator, X[:, :, :2])


def test_the_adaptive_rule_is_predicted_with_a_safe_rate():
    curve = diagnose(regressor(), X, Y, full=True).predicted_curve
    assert np.isfinite(curve).all()
    assert curve[-1] < curve[0]


# --- modules and others -------------------------------------------------------------------------


def test_a_module_is_diagnosed_as_its_estimator_is():
    estimator = regressor(standardize=False, n_layers=2).fit(X, Y)
    module = estimator.module_
    for tokens in (X, torch.from_numpy(X), torch.from_numpy(X).float()):
        found = diagnose(module, tokens)
        expected = estimator.convergence_diagnostics_.final_sigma_min
        assert found.sigma_min == pytest.approx(expected, rel=1e-4)
    assert len(found.to_frame()) == 2


def test_padding_of_a_module_does_not_count():
    estimator = regressor(standardize=False).fit(SERIES, np.arange(4.0))
    padded, mask = np.full((4, 9, 4), 1e3), np.zeros((4, 9), bool)
    for row, sample in enumerate(SERIES):
        padded[row, : len(sample)], mask[row, : len(sample)] = sample, True
    found = diagnose(estimator.module_, padded, mask=mask)
    assert found.norm == pytest.approx(estimator.convergence_diagnostics_.final_norm)


def test_something_else_is_refused():
    with pytest.raises(TypeError, match="got dict"):
        diagnose({}, X)


def test_unusable_input_of_a_module_is_named():
    module = regressor().fit(X, Y).module_
    for bad in (X[0], X[:, :, :2], X[:0]):
        with pytest.raises(ValueError, match=r"X must have shape .*, 6\)|0 sample"):
            diagnose(module, bad)
    with pytest.raises(ValueError, match=r"mask must .* shape \(30, 5\), .* \(30, 4\)"):
        diagnose(module, X, mask=np.ones((30, 4), bool))


@pytest.mark.parametrize("n_samples", [0, 1.5, "all", None])
def test_n_samples_is_a_count(n_samples):
    with pytest.raises(ValueError, match=r"'n_samples' .* must be an int >= 1"):
        diagnose(regressor(), X, Y, n_samples=n_samples)


def test_bad_parameters_are_refused_as_in_fit():
    with pytest.raises(ValueError, match="n_layers"):
        diagnose(regressor(n_layers=0), X, Y)


def test_fit_warns_of_the_collapse_once_and_only_where_beta_helps():
    options = {"pooling": "none", "init_scale": 1e-9, "ffn_residual_beta": 1.0}
    with pytest.warns(RankCollapseWarning, match="residual_beta") as caught:
        regressor(residual_beta=0.0, n_layers=3, **options).fit(X, X[:, :, 0])
    assert len(caught) == 1
    assert caught[0].filename == __file__
    equal = np.repeat(X[:, :1], 5, axis=1)  # the input itself is to blame
    regressor(residual_beta=0.0, **options).fit(equal, equal[:, :, 0])


@pytest.mark.parametrize("labels", [["a", "b"] * 3, [1, 2] * 3], ids=["words", "not from zero"])
def test_a_fitted_classifier_is_diagnosed_without_targets(labels):
    model = ResidualTransformerClassifier(**FEW_STEPS).fit(ROWS, labels)
    assert diagnose(model, ROWS).sigma_min >= 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_samples", 0),
        ("full", "yes"),
        ("X", ROWS),
        ("X", ROWS[None] * np.nan),
        ("mask", np.ones(3)),
    ],
)
def test_unusable_arguments_of_a_diagnosis_are_named(name, value):
    windows = ROWS.reshape(6, 2, 2)
    module = ResidualTransformerRegressor(**FEW_STEPS).fit(windows, ROW_LABELS).module_
    with pytest.raises(ValueError, match=rf"\b{name}\b"):
        diagnose(module, **{"X": windows, name: value})


def test_a_module_is_diagnosed_on_arrays_torch_cannot_wrap():
    windows = ROWS.reshape(6, 2, 2)
    module = ResidualTransformerRegressor(**FEW_STEPS).fit(windows, ROW_LABELS).module_
    readonly = windows[::-1]
    readonly.flags.writeable = False
    assert diagnose(module, readonly).sigma_min == diagnose(module, windows).sigma_min
