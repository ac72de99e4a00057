"""Validation samples set aside from few: enough, or refused with both sizes."""

import re

import numpy as np
import pytest

from tests.builders import X2, YC, both, make_classifier, make_regressor
from tests.tools import outputs, refusal


@both
@pytest.mark.parametrize("n", [1, 2, 3, 9])
@pytest.mark.parametrize("early_stopping", [True, "last"])
def test_too_few_samples_for_validation_are_refused_case_d22(make, y, n, early_stopping):
    """Before training; or there are enough, and the fit succeeds."""
    y = y[:n] if make is make_regressor else np.resize(["a", "b"], n)
    estimator = make(early_stopping=early_stopping)
    message = refusal(estimator.fit, X2[:n], y)
    if message:
        assert "validation" in message
        assert "class" in message or len(re.findall(r"\d+", message)) >= 2
    else:
        assert n > 1
        assert np.isfinite(outputs(estimator, X2[:n])).all()
        assert len(estimator.validation_curve_) == estimator.n_iter_


def test_class_with_one_member_and_early_stopping_case_d22():
    """A stratified split is impossible; either it works, or the message says so."""
    y = np.where(np.arange(64) < 1, "rare", YC)
    estimator = make_classifier(early_stopping=True)
    message = refusal(estimator.fit, X2, y)
    if message:
        assert "rare" in message or "class" in message
    else:
        assert list(estimator.classes_) == ["neg", "pos", "rare"]
