"""Windows as 3-D arrays and as tables."""

import numpy as np
import pytest

from tests.builders import X2D, X3, X3D, YR, both, make_regressor
from tests.tools import outputs


@both
def test_2d_and_3d_forms_of_the_same_windows_agree_case_d4(make, y):
    """Whichever form fit and predict are given."""
    flat = make(token_dim=3).fit(X2D, y)
    windows = make(token_dim=3).fit(X3D, y)
    plain = make().fit(X3D, y)
    expected = outputs(plain, X3D)
    for estimator in (flat, windows):
        np.testing.assert_allclose(outputs(estimator, X2D), expected, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(outputs(estimator, X3D), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("pooling", ["auto", "flatten"])
def test_windows_of_another_length_are_refused_with_both_lengths_case_d5(pooling):
    estimator = make_regressor(pooling=pooling).fit(X3, YR)
    for length in (7, 30):
        with pytest.raises(ValueError, match=rf"(?s)({length}.*24|24.*{length})"):
            estimator.predict(np.zeros((2, length, 3)))
