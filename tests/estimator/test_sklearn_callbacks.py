"""scikit-learn's own callbacks."""

import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV

from tests.builders import X2, both, make_regressor


@both
@pytest.mark.parametrize("search", [False, True])
def test_scikit_learn_callbacks_are_supported_case_d26(make, y, search, capfd):
    callback_module = pytest.importorskip(
        "sklearn.callback", reason="scikit-learn before 1.9 has no callbacks"
    )
    pytest.importorskip("rich")
    progress = callback_module.ProgressBar()
    scoring = "r2" if make is make_regressor else "accuracy"
    monitor = callback_module.ScoringMonitor(scoring=scoring)
    estimator = make(max_iter=4)
    if search:  # scikit-learn wants callbacks for all levels on the outermost estimator
        estimator = GridSearchCV(estimator.set_callbacks(monitor), {"d_ff": [4, 8]}, cv=2)
        estimator.set_params(error_score="raise").set_callbacks(progress).fit(X2, y)
    else:
        estimator.set_callbacks(progress, monitor).fit(X2, y)
        assert estimator.loss_curve_ == make(max_iter=4).fit(X2, y).loss_curve_
    capfd.readouterr()
    scores = monitor.get_logs().data_as_pandas[scoring]
    assert len(scores) >= 4
    assert np.isfinite(scores).all()
