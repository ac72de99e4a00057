"""Every constructor parameter: what it may be, and what the documentation says of it."""

import inspect
import json
import pickle
import re
from fractions import Fraction

import numpy as np
import pytest
import torch
from sklearn.base import clone

from sklearn_restf import ResidualTransformerClassifier, ResidualTransformerRegressor
from tests.builders import (
    FEW_STEPS,
    ROW_LABELS,
    ROWS,
    X2,
    YC,
    YR,
    both,
    make_classifier,
    make_regressor,
)

BOTH = (ResidualTransformerRegressor, ResidualTransformerClassifier)
NAN, INF, HUGE = float("nan"), float("inf"), 10**400

_COUNT = [0, -1, 1.5, 2.0, "2", True, NAN, INF]
_COUNT_OR_NONE = [value for value in _COUNT if value is not None]
_BOOL = ["yes", 0, 1, None, 1.0]
_POSITIVE = [0, 0.0, -1.0, "1", True, NAN, INF, HUGE, 1j]
_NOT_NEGATIVE = [-1e-9, "1", True, NAN, INF, -INF, HUGE, 1j, [1.0]]

#: Parameter -> values it must refuse, and words of the message that say what is allowed.
BAD = {
    "residual_beta": ([*_NOT_NEGATIVE, None], ["0"]),
    "ffn_residual_beta": (_NOT_NEGATIVE, ["None", "0"]),
    "n_layers": ([*_COUNT, None], ["int", "1"]),
    "n_heads": ([*_COUNT, None], ["int", "1"]),
    "d_model": (_COUNT_OR_NONE, ["None", "int", "1"]),
    "d_qk": (_COUNT_OR_NONE, ["None", "int", "1"]),
    "d_ff": ([*_COUNT, None], ["int", "1"]),
    "activation": (
        ["swish", "ReLU", None, 1, torch.nn.functional.relu, ["relu"]],
        ["'relu'", "'gelu'", "'gelu_tanh'", "'tanh'", "'leaky_relu'", "'identity'"],
    ),
    "layer_norm": (_BOOL, ["bool"]),
    "causal": (_BOOL, ["bool"]),
    "pooling": (
        ["max", "Mean", None, 0, True, ["mean"]],
        ["'auto'", "'mean'", "'last'", "'flatten'"],
    ),
    "positional_encoding": (["rotary", True, False, 0], ["None", "'sinusoidal'", "'learned'"]),
    "n_tokens": ([*_COUNT, None, "all"], ["'auto'", "int", "1"]),
    "token_dim": (_COUNT_OR_NONE, ["None", "int", "1"]),
    "padding_value": (["0", INF, -INF, True, [0.0], 1j], ["None", "float"]),
    "standardize": (_BOOL, ["bool"]),
    "init": (["normal", None, 0, np.zeros(3)], ["'gaussian'", "'xavier'"]),
    "init_scale": ([*_POSITIVE, None], ["0"]),
    "loss": (["absolute_error", "mse", None, 1], ["'squared_error'"]),
    "learning_rate": (
        [*_POSITIVE, None, "constant", "invscaling"],
        ["'adaptive'", "'theory'", "0"],
    ),
    "momentum": ([*_NOT_NEGATIVE, None, 1, 1.0, 1.5], ["0", "1"]),
    "alpha": ([*_NOT_NEGATIVE, None], ["0"]),
    "max_iter": ([*_COUNT, None], ["int", "1"]),
    "tol": (_NOT_NEGATIVE, ["None", "0"]),
    "n_iter_no_change": ([*_COUNT, None], ["int", "1"]),
    "early_stopping": (["first", "True", None, 0, 1, 0.1], ["bool", "'last'"]),
    "validation_fraction": ([*_POSITIVE, None, 1, 1.0, 10], ["0", "1"]),
    "chunk_size": (_COUNT_OR_NONE, ["None", "int", "1"]),
    "diagnostics": (["all", None, 0, 1], ["bool", "'full'"]),
    "diagnostics_samples": ([*_COUNT, None], ["int", "1"]),
    "device": ([None, 0, True, "banana", "gpu", "cuda:99", ["cpu"]], ["'cpu'"]),
    "dtype": (
        ["float16", None, np.float32, torch.float64, 64],
        ["'auto'", "'float32'", "'float64'"],
    ),
    "warm_start": (_BOOL, ["bool"]),
    "callbacks": (["progress", 3, True], ["skorch"]),
    "random_state": ([-1, 1.0, "0", True, 2**32, np.random.default_rng(0)], ["None", "int"]),
    "verbose": ([-1, "yes", None, 1.5], ["int", "0"]),
    "class_weight": (
        ["equal", 1, True, [1, 2], {0: -1.0}, {0: np.nan}, {0: np.inf}, {0: "1"}],
        ["None", "'balanced'", "dict"],
    ),
}
#: Parameter -> unusual values that are fine.
GOOD = {
    "residual_beta": [0, 0.5, np.float32(0.5), np.int64(1), Fraction(1, 2)],
    "alpha": [0, np.float32(0.1), Fraction(1, 100)],
    "max_iter": [np.int64(3)],
    "padding_value": [0, np.nan, np.float32("nan")],
    "learning_rate": [1, np.float64(1e-3)],
    "early_stopping": [np.True_, "last"],
    "validation_fraction": [0.5],
    "random_state": [np.int32(3), np.random.RandomState(0), None],
    "verbose": [False],
    "callbacks": [(), []],
    "tol": [0, None],
    "device": ["cpu", torch.device("cpu")],
}


def _parameters(cls):
    return list(inspect.signature(cls.__init__).parameters)[1:]


def _cases(table):
    for name, entry in table.items():
        for i, value in enumerate(entry[0] if isinstance(entry, tuple) else entry):
            yield pytest.param(name, value, id=f"{name}-{i}-{str(value)[:12]}")


def _makers(name):
    makers = [(make_regressor, YR)] if name != "class_weight" else []
    return [*makers, (make_classifier, YC)]


def test_every_parameter_has_bad_values_here():
    assert set(BAD) == set(_parameters(BOTH[0])) | set(_parameters(BOTH[1]))


@pytest.mark.parametrize(("name", "value"), list(_cases(BAD)))
def test_bad_value_is_refused_by_name_with_what_is_allowed(name, value):
    for make, y in _makers(name):
        estimator = make(**{name: value})
        with pytest.raises((ValueError, TypeError)) as refused:
            estimator.fit(X2, y)
        message = str(refused.value)
        assert re.search(rf"\b{name}\b", message), message
        for words in BAD[name][1]:
            assert words in message
        assert not [n for n in vars(estimator) if n.endswith("_")]


@pytest.mark.parametrize(("name", "value"), list(_cases(GOOD)))
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_unusual_but_sensible_value_is_accepted(name, value):
    for make, y in _makers(name):
        assert len(make(**{"max_iter": 1, name: value}).fit(X2, y).predict(X2)) == len(y)


@pytest.mark.parametrize("number", [np.float32, Fraction])
@pytest.mark.parametrize("diagnostics", [True, "full"])
def test_numbers_of_other_libraries_end_as_plain_ones(number, diagnostics):
    """As a search over NumPy's ranges passes them: the diagnostics are fit for JSON."""
    names = ("residual_beta", "learning_rate", "momentum", "alpha", "tol", "init_scale")
    numbers = {name: number(1 / 64) for name in names}
    others = {"max_iter": np.int64(5), "d_ff": np.int64(8), "standardize": np.False_}
    X = X2.astype(np.float64)
    model = make_regressor(diagnostics=diagnostics, **numbers, **others).fit(X, YR)
    plain = {name: float(value) for name, value in numbers.items()} | {"standardize": False}
    same = make_regressor(**{"diagnostics": diagnostics} | others | plain).fit(X, YR)
    np.testing.assert_array_equal(model.predict(X), same.predict(X))
    seen = model.convergence_diagnostics_
    assert json.loads(json.dumps(seen.to_dict())) == same.convergence_diagnostics_.to_dict()
    assert seen.advice == same.convergence_diagnostics_.advice


def test_message_has_readable_bounds():
    """[0, 1) is what is meant, not the largest float below one."""
    for name in ("momentum", "validation_fraction"):
        with pytest.raises(ValueError, match=name) as refused:
            make_regressor(**{name: 2.0}).fit(X2, YR)
        assert "0.99999" not in str(refused.value)


@both
def test_value_set_after_construction_is_checked_at_fit(make, y):
    estimator = make().set_params(activation="swish")
    with pytest.raises(ValueError, match=r"'activation'.*'swish'"):
        estimator.fit(X2, y)
    estimator.set_params(activation="tanh").fit(X2, y)


def test_regressor_only_options_are_not_offered_by_the_classifier():
    with pytest.raises(ValueError, match="pooling") as refused:
        make_classifier(pooling="none").fit(X2, YC)
    assert "'mean'" in str(refused.value)
    with pytest.raises(ValueError, match="'squared_error'"):
        make_regressor(loss="log_loss").fit(X2, YR)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"n_heads": 3}, r"n_heads=3.*16"),
        ({"n_heads": 2, "d_model": 5}, r"n_heads=2.*5"),
        ({"n_tokens": 73}, r"n_tokens=73.*72"),
        ({"token_dim": 5}, r"72.*token_dim=5"),
        ({"token_dim": 7}, r"72.*token_dim=7"),
    ],
    ids=str,
)
def test_values_that_do_not_fit_the_data_are_refused_with_both(parameters, words):
    with pytest.raises(ValueError, match=words):
        make_regressor(**parameters).fit(X2, YR)


# --- documentation ---------------------------------------------------------------------------

#: What may differ between the two classes.
DIFFERENT = {"alpha", "pooling", "loss", "early_stopping", "class_weight"}


def _section(cls, title):
    """Return the entries of a numpydoc section: name -> (type line, description)."""
    text = inspect.getdoc(cls)
    body = re.search(rf"\n{title}\n-+\n(.*?)(?=\n\n[A-Z][\w ]+\n-+\n|\Z)", text, re.S)[1]
    entries = {}
    for block in re.split(r"\n(?=\S)", body):
        head, _, description = block.partition("\n")
        names, _, kind = head.partition(" : ")
        for name in names.split(", "):
            entries[name] = (kind, inspect.cleandoc(description))
    return entries


@pytest.mark.parametrize("cls", BOTH)
def test_docstring_lists_the_parameters_of_the_signature_in_order(cls):
    assert list(_section(cls, "Parameters")) == _parameters(cls)


@pytest.mark.parametrize("cls", BOTH)
def test_docstring_names_the_defaults_of_the_signature(cls):
    documented = _section(cls, "Parameters")
    for name, parameter in list(inspect.signature(cls.__init__).parameters.items())[1:]:
        written = re.search(r"default=(.+)$", documented[name][0])[1]
        assert eval(written) == parameter.default, name


@pytest.mark.parametrize("cls", BOTH)
def test_docstring_names_the_options_of_the_check(cls):
    """Each string a message offers is in the documentation of the parameter, and the reverse."""
    documented = _section(cls, "Parameters")
    for name in _parameters(cls):
        if name in ("device", "class_weight"):
            continue
        with pytest.raises((ValueError, TypeError)) as refused:
            cls(**{name: "no such value"}).fit(X2, YR)
        offered = set(re.findall(r"'(\w+)'", str(refused.value).partition("must be")[2]))
        offered.discard("no such value")
        written = set(re.findall(r'"(\w+)"', documented[name][0].partition("default=")[0]))
        assert offered == written, name


def test_docstrings_agree_word_for_word():
    for title in ("Parameters", "Attributes"):
        one, other = (_section(cls, title) for cls in BOTH)
        for name in (set(one) & set(other)) - DIFFERENT - {"loss_"}:
            assert one[name] == other[name], name
        assert (set(one) ^ set(other)) <= {"class_weight", "classes_"}


def test_shared_parameters_have_the_same_defaults_and_order():
    one, other = (
        {
            name: parameter.default
            for name, parameter in inspect.signature(cls.__init__).parameters.items()
            if name not in {"alpha", "class_weight", "loss", "self"}
        }
        for cls in BOTH
    )
    assert list(one.items()) == list(other.items())


@both
def test_documented_attributes_exist_after_fit(make, y):
    fitted = make().fit(X2, y)
    names = set(_section(type(fitted), "Attributes"))
    assert [n for n in names - {"feature_names_in_"} if not hasattr(fitted, n)] == []
    undocumented = {n for n in vars(fitted) if n.endswith("_") and not n.startswith("_")} - names
    assert undocumented == set()


@pytest.mark.parametrize("cls", BOTH)
def test_every_public_method_documents_its_arguments(cls):
    for name in ("fit", "predict", "score", "predict_proba", "decision_function"):
        method = getattr(cls, name, None)
        if method is None or not method.__module__.startswith("sklearn_restf"):
            continue
        text = inspect.getdoc(method)
        for argument in list(inspect.signature(method).parameters)[1:]:
            assert re.search(rf"^(\w+, )*{argument}(, \w+)* : ", text, re.M), (name, argument)


class _Short(BOTH[0]):
    def __init__(self, residual_beta=0.5, max_iter=5):
        super().__init__(residual_beta, max_iter=max_iter, tol=None, random_state=0)


def test_a_subclass_may_have_fewer_parameters():
    model = clone(_Short()).fit(X2, YR)
    assert model.n_iter_ == 5
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(X2), model.predict(X2))
    with pytest.raises(ValueError, match="max_iter"):
        _Short(max_iter=0).fit(X2, YR)


@pytest.mark.parametrize("name", ["alpha", "residual_beta", "ffn_residual_beta"])
def test_parameters_beyond_float32_are_refused_in_float32(name):
    with pytest.raises(ValueError, match=rf"{name}=1e\+300 is too large for training in float32"):
        ResidualTransformerRegressor(**FEW_STEPS, **{name: 1e300}, dtype="float32").fit(
            ROWS, ROW_LABELS
        )
