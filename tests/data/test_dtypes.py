"""Samples and targets of any dtype: equal values give the same model."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from sklearn_restf import ResidualTransformerClassifier, ResidualTransformerRegressor
from tests.builders import (
    FEW_STEPS,
    ROW_LABELS,
    ROWS,
    X2,
    X2D,
    X3D,
    YR,
    both_makers,
    make_regressor,
)
from tests.tools import outputs

_WHOLE = np.random.default_rng(3).integers(0, 2, size=(64, 12))

_WHOLE_Y = _WHOLE[:, :4].sum(axis=1)


def _forms(X):
    return {
        "float64": X.astype("float64"),
        "float32": X.astype("float32"),
        "float16": X.astype("float16"),
        "int64": X.astype("int64"),
        "int32": X.astype("int32"),
        "uint8": X.astype("uint8"),
        "bool": X.astype(bool),
        "object": X.astype(object),
        "list": X.tolist(),
    }


@both_makers
@pytest.mark.parametrize("shape", [(64, 12), (64, 4, 3)], ids=["table", "windows"])
def test_equal_values_in_any_dtype_give_the_same_model_case_d14(make, shape):
    y = _WHOLE_Y if make is make_regressor else _WHOLE_Y > 1
    forms = _forms(_WHOLE.reshape(shape))
    reference = make().fit(forms["float64"], y)
    expected = outputs(reference, forms["float64"])
    for name, X in forms.items():
        np.testing.assert_allclose(
            outputs(reference, X), expected, rtol=1e-5, atol=1e-5, err_msg=f"predict {name}"
        )
        np.testing.assert_allclose(
            outputs(make().fit(X, y), forms["float64"]),
            expected,
            rtol=1e-5,
            atol=1e-5,
            err_msg=f"fit {name}",
        )


@pytest.mark.parametrize(
    "dtype", ["int64", "int32", "int8", "uint8", "float32", "float16", "bool", "object"]
)
def test_targets_of_any_dtype_give_the_same_regressor_case_d14(dtype):
    whole = _WHOLE_Y > 1 if dtype == "bool" else _WHOLE_Y
    X = _WHOLE.astype("float64")
    expected = make_regressor().fit(X, whole.astype("float64")).predict(X)
    predictions = make_regressor().fit(X, whole.astype(dtype)).predict(X)
    np.testing.assert_allclose(predictions, expected, rtol=1e-5, atol=1e-5)
    from_list = make_regressor().fit(X, whole.astype("float64").tolist()).predict(X)
    np.testing.assert_array_equal(from_list, expected)


def test_torch_tensors_are_accepted_like_arrays_case_d14():
    X, y = torch.tensor(X3D), torch.tensor(YR)
    expected = make_regressor().fit(X3D, YR).predict(X3D)
    np.testing.assert_array_equal(make_regressor().fit(X, y).predict(X), expected)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dtype_parameter_overrules_the_dtype_of_the_data_case_d14(dtype):
    from_single = make_regressor(dtype=dtype).fit(X2, YR).predict(X2)
    from_double = make_regressor(dtype=dtype).fit(X2D, YR).predict(X2D)
    np.testing.assert_allclose(from_single, from_double, rtol=1e-5, atol=1e-5)


def test_complex_and_text_data_are_refused_case_d14():
    with pytest.raises(ValueError, match="Complex"):
        make_regressor().fit(X2.astype(complex), YR)
    with pytest.raises(ValueError, match=r"(?i)string|convert|numeric"):
        make_regressor().fit(np.full((64, 3), "a"), YR)


def test_bfloat16_targets():
    y = torch.arange(6, dtype=torch.bfloat16)
    found = ResidualTransformerRegressor(**FEW_STEPS).fit(ROWS, y).predict(ROWS)
    assert_allclose(
        found, ResidualTransformerRegressor(**FEW_STEPS).fit(ROWS, y.float()).predict(ROWS)
    )
    labels = torch.tensor(ROW_LABELS).to(torch.bfloat16)
    assert set(ResidualTransformerClassifier(**FEW_STEPS).fit(ROWS, labels).classes_) == {0.0, 1.0}


def test_tensors_with_gradients_as_targets_and_weights():
    windows, y = ROWS.reshape(6, 2, 2), torch.tensor(ROWS[:, :2], requires_grad=True)
    weight = torch.ones(6, requires_grad=True)
    model = ResidualTransformerRegressor(**FEW_STEPS, pooling="none")
    expected = model.fit(windows, ROWS[:, :2]).predict(windows)
    assert_allclose(model.fit(windows, y, weight).predict(windows), expected)
    samples = [*windows]
    expected = model.fit(samples, [*ROWS[:, :2]]).predict(samples)
    assert_allclose(model.fit(samples, [*y]).predict(samples), expected)
