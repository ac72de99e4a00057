"""Attention weights as a matrix of cells."""

from importlib import import_module

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import TransformedTargetRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_restf import ResidualTransformerClassifier, ResidualTransformerRegressor
from sklearn_restf.inspection import AttentionDisplay
from tests.builders import FEW_STEPS, ROW_LABELS, ROWS
from tests.inspection.conftest import FAST


def test_attention_is_that_of_the_module(windows):
    X, y = windows
    model = ResidualTransformerRegressor(n_layers=2, n_heads=2, **FAST).fit(X, y)
    x = (X - X.mean((0, 1))) / X.std((0, 1))
    module = model.module_
    torch = import_module("torch")
    with torch.no_grad():
        layers = [layer.attention.numpy() for layer in module.layers(torch.from_numpy(x))]
    shown = AttentionDisplay.from_estimator(model, X, sample=5)
    np.testing.assert_allclose(shown.attention, layers[1][5].mean(axis=0))
    assert shown.ax_.get_title() == "Attention: layer 2 of 2, mean of 2 heads"
    shown = AttentionDisplay.from_estimator(model, X, sample=-1, layer=1, head=2)
    np.testing.assert_allclose(shown.attention, layers[0][-1][1])
    np.testing.assert_array_equal(shown.im_.get_array(), shown.attention)
    assert shown.ax_.get_title() == "Attention: layer 1 of 2, head 2 of 2"
    assert [tick.get_text() for tick in shown.ax_.get_yticklabels()] == list("123456")


def test_attention_of_a_ragged_sample_has_its_own_tokens_only(ragged):
    X, y = ragged
    model = ResidualTransformerClassifier(causal=True, **FAST).fit(X, y > 0)
    display = AttentionDisplay.from_estimator(model, X, sample=3, token_names=list("abcde"))
    assert display.attention.shape == (5, 5)
    np.testing.assert_allclose(display.attention.sum(axis=1), 1.0)
    np.testing.assert_array_equal(np.triu(display.attention, k=1), 0.0)
    assert [tick.get_text() for tick in display.ax_.get_xticklabels()] == list("abcde")


@pytest.mark.parametrize(
    ("n_tokens", "names"),
    [
        (5, ["age", "height", "income", "weight", "zone"]),
        (2, ["age … income", "weight, zone"]),
        (1, ["age … zone"]),
    ],
)
def test_tokens_of_a_table_are_named_after_its_features(table, n_tokens, names):
    X, y = table
    columns = ["age", "height", "income", "weight", "zone"]
    frame = pd.DataFrame(X, columns=columns)
    model = ResidualTransformerRegressor(n_tokens=n_tokens, **FAST)
    assert AttentionDisplay.from_estimator(model.fit(frame, y), frame).token_names == names
    pipeline = make_pipeline(StandardScaler(), model).fit(frame, y)
    assert AttentionDisplay.from_estimator(pipeline, frame).token_names == names
    target = TransformedTargetRegressor(pipeline, transformer=StandardScaler()).fit(frame, y)
    assert AttentionDisplay.from_estimator(target, frame).token_names == names
    unnamed = AttentionDisplay.from_estimator(model.fit(X, y), X).token_names
    assert unnamed[0].startswith("x0")


def test_numbers_in_the_cells(fitted, table):
    display = AttentionDisplay.from_estimator(fitted, table[0])
    assert display.text_[1, 2].get_text() == f"{display.attention[1, 2]:.2f}"
    assert AttentionDisplay(np.eye(20)).plot().text_ is None
    assert AttentionDisplay(np.eye(20)).plot(include_values=True).text_.shape == (20, 20)


def test_many_tokens_with_long_names_stay_readable():
    display = AttentionDisplay(np.full((100, 100), 0.01), token_names=["x" * 50] * 100).plot()
    names = [tick.get_text() for tick in display.ax_.get_xticklabels()]
    assert len(names) <= 25
    assert max(map(len, names)) <= 24
    width, height = display.figure_.get_size_inches()
    assert max(width, height) < 10


def test_a_few_large_weights_do_not_hide_the_others():
    attention = np.tril(np.ones((40, 40)))
    attention /= attention.sum(axis=1, keepdims=True)
    display = AttentionDisplay(attention).plot()
    assert display.im_.get_clim()[1] < 0.2
    display = AttentionDisplay(attention).plot(vmax=1.0)
    assert display.im_.get_clim() == (0.0, 1.0)


def test_unusable_arguments_of_the_attention(windows):
    X, y = windows
    model = ResidualTransformerRegressor(n_layers=2, n_heads=2, **FAST).fit(X, y)
    for arguments, message in (
        ({"sample": 50}, r"'sample' parameter .* an int in \[-50, 49\]. Got 50"),
        ({"layer": 3}, r"'layer' parameter .* None or an int in \[1, 2\]. Got 3"),
        ({"head": 0}, r"'head' parameter .* None or an int in \[1, 2\]. Got 0"),
        ({"token_names": ["a"]}, "The sample has 6 tokens, but token_names has 1"),
    ):
        with pytest.raises(ValueError, match=message):
            AttentionDisplay.from_estimator(model, X, **arguments)
    with pytest.raises(ValueError, match=r"must have shape \(n_tokens, n_tokens\)"):
        AttentionDisplay(np.ones((2, 3)))


@pytest.mark.parametrize(
    ("name", "value"), [("sample", 1.5), ("layer", "a"), ("head", [0]), ("ax", 3)]
)
def test_unusable_places_and_axes_are_named(name, value):
    pytest.importorskip("matplotlib", reason="the extra plot is not installed")
    windows = ROWS.reshape(6, 2, 2)
    model = ResidualTransformerRegressor(**FEW_STEPS).fit(windows, ROW_LABELS)
    with pytest.raises(TypeError, match=rf"\b{name}\b"):
        AttentionDisplay.from_estimator(model, windows, **{name: value})
