"""Values that cannot be trained on are refused by the name of their argument."""

import numpy as np
import pytest

from tests.builders import X2, X2D, X3, X3D, YR, both, make_regressor, spoiled
from tests.tools import refusal


@both
@pytest.mark.parametrize("X", [X2, X2D, X3, X3D], ids=["table32", "table64", "win32", "win64"])
@pytest.mark.parametrize(
    ("value", "words"), [(np.nan, "Input X contains NaN"), (np.inf, "infinity"), (-np.inf, "inf")]
)
def test_nan_and_infinity_in_x_are_refused_case_d28(make, y, X, value, words):
    """At fit and at predict."""
    with pytest.raises(ValueError, match=words):
        make().fit(spoiled(X, value), y)
    estimator = make(max_iter=1, diagnostics=False).fit(X, y)
    with pytest.raises(ValueError, match=words):
        estimator.predict(spoiled(X, value))


@pytest.mark.parametrize("dtype", ["auto", "float32"])
@pytest.mark.parametrize("X", [X2D, X3D], ids=["table", "windows"])
def test_values_beyond_single_precision_are_fitted_or_refused_case_d28(X, dtype):
    """Never turned into infinity silently."""
    estimator = make_regressor(dtype=dtype)
    large = spoiled(X, 1e39, index=0)
    message = refusal(estimator.fit, large, YR)
    if message:
        assert "too large" in message
    else:
        assert np.isfinite(estimator.predict(large)).all()
        assert np.isfinite(estimator.loss_curve_).all()
