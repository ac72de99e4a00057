"""Files of skops, which are no pickles."""

import io

import numpy as np
import pytest

from sklearn_restf import ResidualTransformerClassifier

skops_io = pytest.importorskip("skops.io")

FEW = {"max_iter": 30, "tol": None, "random_state": 0}


def test_skops_file(iris):
    model = ResidualTransformerClassifier(**FEW).fit(*iris)
    content = skops_io.dumps(model)
    unknown = skops_io.get_untrusted_types(data=content)
    loaded = skops_io.load(io.BytesIO(content), trusted=unknown)
    np.testing.assert_array_equal(loaded.predict_proba(iris[0]), model.predict_proba(iris[0]))
