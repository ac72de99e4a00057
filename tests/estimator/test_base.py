"""scikit-learn's conventions: parameters, tags, clones."""

import copy
import inspect

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone, is_classifier
from sklearn.base import is_regressor as sklearn_is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.utils import get_tags

from tests.builders import (
    X2,
    X2D,
    X3D,
    Recorder,
    both,
    both_makers,
    make_classifier,
    make_regressor,
)
from tests.tools import fitted_names, outputs


@both
def test_clone_of_a_fitted_estimator_is_unfitted_case_d1(make, y):
    estimator = make().fit(X2, y)
    assert fitted_names(estimator)
    copied = clone(estimator)
    assert fitted_names(copied) == []
    with pytest.raises(NotFittedError):
        copied.predict(X2)


@both
def test_fit_leaves_the_constructor_parameters_as_the_same_objects_case_d1(make, y):
    parameters = {"callbacks": [], "random_state": np.random.RandomState(0), "n_tokens": 6}
    if make is make_classifier:
        parameters["class_weight"] = {"pos": 1.0, "neg": 2.0}
    estimator = make(**parameters)
    before = estimator.get_params()
    contents = copy.deepcopy(parameters)
    estimator.fit(X2, y).predict(X2)
    after = estimator.get_params()
    assert after.keys() == before.keys()
    assert all(after[name] is before[name] for name in before)
    assert estimator.callbacks == contents["callbacks"]
    if make is make_classifier:
        assert estimator.class_weight == contents["class_weight"]


@both_makers
def test_get_params_lists_every_constructor_argument_case_d1(make):
    signature = inspect.signature(type(make()).__init__).parameters
    assert set(signature) - {"self"} == set(make().get_params())
    variadic = {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}
    assert not [p for p in signature.values() if p.kind in variadic]


@both_makers
def test_constructor_neither_validates_nor_copies_its_arguments_case_d1(make):
    cls = type(make())
    odd = {name: object() for name in make().get_params()}
    estimator = cls(**odd)
    assert vars(estimator) == odd


@both_makers
def test_unknown_parameter_is_refused_by_name_case_d1(make):
    with pytest.raises(ValueError, match="nope"):
        make().set_params(nope=1)
    with pytest.raises(TypeError, match="nope"):
        make(nope=1)


def test_estimators_are_told_apart_by_scikit_learn_case_d3():
    assert is_classifier(make_classifier())
    assert sklearn_is_regressor(make_regressor())
    assert not is_classifier(make_regressor())
    assert get_tags(make_classifier()).estimator_type == "classifier"
    assert get_tags(make_regressor()).estimator_type == "regressor"


@pytest.mark.parametrize(
    ("make", "mixin"), [(make_regressor, RegressorMixin), (make_classifier, ClassifierMixin)]
)
def test_mixins_come_before_base_estimator_case_d3(make, mixin):
    """Otherwise the tags of the mixin are lost from scikit-learn 1.7 on."""
    order = type(make()).__mro__
    assert order.index(mixin) < order.index(BaseEstimator)


@both_makers
def test_tags_declare_2d_and_3d_input_case_d4(make):
    tags = get_tags(make()).input_tags
    assert tags.two_d_array
    assert tags.three_d_array


@both
def test_nothing_the_user_passes_is_changed(make, y):
    callback = Recorder()
    weight = np.arange(64) % 4 * 1.0
    given = [X2D, y, weight, X3D[:20].reshape(20, -1), y[:20], weight[:20] + 1]
    passed = copy.deepcopy(given)
    parameters = {"callbacks": [callback], "random_state": 0}
    if make is make_classifier:
        parameters["class_weight"] = {"neg": 2.0, "pos": 1.0}
    expected = copy.deepcopy(parameters.get("class_weight"))
    X, y_, w, X_val, y_val, w_val = passed
    estimator = make(**parameters)
    estimator.fit(X, y_, w, X_val=X_val, y_val=y_val, sample_weight_val=w_val)
    outputs(estimator, X)
    for one, other in zip(given, passed, strict=True):
        np.testing.assert_array_equal(one, other)
    assert parameters.get("class_weight") == expected
    assert estimator.callbacks is parameters["callbacks"]
    assert estimator.callbacks == [callback]
    assert vars(callback) == {}
