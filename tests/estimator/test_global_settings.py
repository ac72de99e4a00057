"""Settings of scikit-learn, torch and the process neither matter nor change."""

import sklearn

from tests.builders import SERIES_YC, X3, make_classifier


def test_scikit_learn_configuration_is_left_alone_case_d3():
    """The checks above did not depend on a changed configuration either."""
    before = sklearn.get_config()
    make_classifier().fit(X3, SERIES_YC.repeat(6)[:64]).predict(X3)
    assert sklearn.get_config() == before
