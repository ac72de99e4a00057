"""Token features from hashed n-grams, without a pretrained model."""

import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
from numpy.testing import assert_allclose
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import RidgeClassifier
from sklearn.model_selection import GridSearchCV, KFold, TimeSeriesSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_restf.preprocessing import HashedTokenEmbedder


class Mean(TransformerMixin, BaseEstimator):
    """Mean over the tokens, so that a linear model can follow."""

    def fit(self, X, y=None):
        self.fitted_ = True
        return self

    def transform(self, X):
        return np.stack([x.mean(axis=0) for x in X])


GOOD = ["fine", "great", "moving", "funny", "charming"]
BAD = ["dull", "bad", "boring", "silly", "tired"]


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    filler = [f"word{i}" for i in range(60)]
    sentences, labels = [], []
    for i in range(120):
        words = list(rng.choice(filler, size=rng.integers(2, 9)))
        words.insert(rng.integers(len(words)), rng.choice([BAD, GOOD][i % 2]))
        sentences.append(" ".join(words))
        labels.append(["neg", "pos"][i % 2])
    return sentences, np.array(labels)


@pytest.fixture
def small():
    return HashedTokenEmbedder(4, n_features=2**12, random_state=0)


def equal(a, b):
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def test_one_row_for_each_token(data, small):
    sentences, labels = data
    tokens = small.fit_transform(sentences, labels)
    assert isinstance(tokens, list)
    assert [len(t) for t in tokens] == [len(s.split()) for s in sentences]
    names = small.get_feature_names_out().tolist()
    assert names[:4] == ["score_word", "score_word2", "score_char", "latent0"]
    assert all(t.shape[1] == len(names) == 7 and t.dtype == np.float32 for t in tokens)
    assert small.classes_.tolist() == ["neg", "pos"]


def test_scores_point_to_the_class(data, small):
    small.fit(*data)
    (good,), (bad,) = (small.transform([w])[0] for w in ("great", "boring"))
    assert good[0] > 0 > bad[0]
    # A word never seen is known by its letters.
    (unseen,) = small.transform(["charmingly"])[0]
    assert unseen[0] == 0
    assert unseen[2] > 0


def test_training_scores_do_not_know_their_own_label(small):
    # Labels of pure chance: scores of the training data must not tell them.
    rng = np.random.default_rng(0)
    sentences = [" ".join(f"w{i}" for i in rng.integers(0, 3000, size=8)) for _ in range(300)]
    labels = rng.integers(0, 2, size=300)
    honest = Mean().transform(small.fit_transform(sentences, labels))[:, 0] > 0
    told = Mean().transform(small.transform(sentences))[:, 0] > 0
    assert np.mean(told == labels) > 0.9
    assert np.mean(honest == labels) < 0.6


def test_cross_fitting_equals_fitting_without_the_fold(data):
    # Weights of words come from all sentences, which does no harm; the regression must not.
    # So a plain refit on the other folds gives almost, not exactly, the same scores.
    sentences, labels = data
    cv = KFold(4)
    model = HashedTokenEmbedder(0, char_ngrams=None, word_ngrams=1, cv=cv, alpha=1e-3)
    tokens = model.fit_transform(sentences, labels)
    for train, test in cv.split(sentences):
        other = HashedTokenEmbedder(0, char_ngrams=None, word_ngrams=1, alpha=1e-3)
        other.fit([sentences[i] for i in train], labels[train])
        refit = np.concatenate(other.transform([sentences[i] for i in test]))
        crossed = np.concatenate([tokens[i] for i in test])
        assert np.corrcoef(refit[:, 0], crossed[:, 0])[0, 1] > 0.95


def test_a_pipeline_learns_and_is_searched(data, small):
    sentences, labels = data
    pipe = make_pipeline(small, Mean(), StandardScaler(), RidgeClassifier())
    search = GridSearchCV(pipe, {"hashedtokenembedder__n_components": [0, 4]}, cv=3)
    search.fit(sentences, labels)
    assert search.best_score_ > 0.95


def test_rows_are_independent_and_repeatable(data, small):
    sentences, labels = data
    tokens = small.fit_transform(sentences, labels)
    whole = small.transform(sentences)
    for part in ([5], [7, 3, 3]):
        for a, i in zip(small.transform([sentences[i] for i in part]), part, strict=True):
            np.testing.assert_allclose(a, whole[i], atol=1e-7)
    again = clone(small)
    assert equal(again.fit_transform(sentences, labels), tokens)
    assert equal(pickle.loads(pickle.dumps(small)).transform(sentences), whole)
    other = clone(small).set_params(random_state=1)
    assert not equal(other.fit_transform(sentences, labels), tokens)


def test_accepted_containers(data, small):
    sentences, labels = data
    expected = small.fit_transform(sentences, labels)
    for X in (
        np.array(sentences),
        np.array(sentences, dtype=object),
        tuple(sentences),
        pd.Series(sentences, index=range(500, 620)),
        pl.Series(sentences),
        pd.DataFrame({"text": sentences}),
        pl.DataFrame({"text": sentences}),
        (s for s in sentences),
    ):
        assert equal(clone(small).fit_transform(X, labels), expected)
    for y in (pd.Series(labels), labels.tolist(), labels[:, None]):
        assert equal(clone(small).fit_transform(sentences, y), expected)


def test_targets(data, small):
    sentences, _ = data
    rng = np.random.default_rng(0)
    three = rng.choice(["a", "b", "c"], size=120)
    assert clone(small).fit(sentences, three).get_feature_names_out().tolist()[:4] == [
        "score_word_a",
        "score_word_b",
        "score_word_c",
        "score_word2_a",
    ]
    number = np.array([sum(w in s for w in GOOD) for s in sentences]) + 0.5
    model = clone(small).fit(sentences, number)
    assert (model.target_type_, model.classes_) == ("regression", None)
    assert model.transform(["great"])[0][0, 0] > model.transform(["boring"])[0][0, 0]
    model = clone(small).set_params(target_type="regression").fit(sentences, number.astype(int))
    assert model.target_type_ == "regression"
    two = clone(small).fit_transform(sentences, np.c_[number, -number])
    np.testing.assert_allclose(two[0][:, 0], -two[0][:, 1], atol=1e-6)
    unsupervised = clone(small)
    assert unsupervised.fit_transform(sentences)[0].shape[1] == 4
    assert equal(unsupervised.fit_transform(sentences), unsupervised.transform(sentences))
    assert unsupervised.target_type_ is None


@pytest.mark.parametrize("labels", [["a"] * 6, ["a"] * 5 + ["b"], ["a", "b"] * 3])
def test_few_sentences_and_rare_classes(labels):
    sentences = ["one two", "three", "", "two two two", "!", "one"]
    model = HashedTokenEmbedder(2, n_features=256)
    tokens = model.fit_transform(sentences, labels)
    assert np.isfinite(np.concatenate(tokens)).all()
    # A sentence without a token is one token of zeros, which every classifier can take.
    assert tokens[2].shape[0] == 1
    assert not tokens[2].any()


def test_splitting_options():
    sentences = ["Don't PANIC!!", "a well-made film ..."]
    model = HashedTokenEmbedder(0, n_features=64).fit(sentences, [0, 1])
    assert [len(t) for t in model.transform(sentences)] == [3, 4]
    assert equal(model.transform(["PANIC"]), model.transform(["panic"]))
    model.set_params(max_tokens=2, token_pattern=r"\S+", lowercase=False).fit(sentences, [0, 1])
    assert [len(t) for t in model.transform(sentences)] == [2, 2]
    assert not equal(model.transform(["PANIC!!"]), model.transform(["panic!!"]))


@pytest.mark.parametrize(
    ("X", "error", "message"),
    [
        ("a sentence", ValueError, "single string"),
        ([], ValueError, "0 samples"),
        (["a", 3], TypeError, "row 1 is of type int"),
        (["a", None], ValueError, "row 1 is missing"),
        (["a", np.nan], ValueError, "row 1 is missing"),
        (pd.DataFrame({"u": ["a"], "v": ["b"]}), ValueError, "one column"),
        (3, TypeError, "iterable"),
    ],
)
def test_bad_sentences_are_named(X, error, message):
    with pytest.raises(error, match=message):
        HashedTokenEmbedder().fit(X)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_components": -1}, "n_components"),
        ({"n_features": 0}, "n_features"),
        ({"word_ngrams": 0}, "word_ngrams"),
        ({"char_ngrams": (5, 3)}, "char_ngrams"),
        ({"alpha": 0}, "alpha"),
        ({"cv": 1}, "cv"),
        ({"target_type": "multilabel"}, "target_type"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"cv": TimeSeriesSplit(2)}, "exactly one test fold"),
    ],
)
def test_bad_parameters_are_named(data, options, message):
    with pytest.raises(ValueError, match=message):
        HashedTokenEmbedder(**{"n_features": 256, **options}).fit_transform(*data)


def test_bad_targets_are_named(data):
    sentences, labels = data
    model = HashedTokenEmbedder(n_features=256)
    for y, message in (
        (labels[:5], "5 values for 120 sentences"),
        (np.full(120, np.nan), "NaN"),
        (np.ones((120, 2), dtype=int), "Unknown label type"),
    ):
        with pytest.raises(ValueError, match=message):
            model.fit(sentences, y)
    with pytest.raises(ValueError, match="n_components must be at least 1"):
        model.set_params(n_components=0).fit(sentences)
    with pytest.raises(NotFittedError):
        model.transform(sentences)


def test_containers_of_output_do_not_apply(data, small):
    sentences, labels = data
    with sklearn.config_context(transform_output="pandas"):
        assert isinstance(small.fit_transform(sentences, labels), list)
    pipe = make_pipeline(small).set_output(transform="polars")
    assert isinstance(pipe.fit_transform(sentences, labels), list)


@pytest.mark.usefixtures("random_state_unchanged")
def test_global_generator_is_left_alone(data, small):
    small.fit_transform(*data)


def test_reviews(real_data):
    folder = real_data / "sst2"
    if not folder.is_dir():
        pytest.skip(f"no sst2 in {real_data}")

    def load(name):
        lines = (folder / name).read_text(encoding="utf-8").splitlines()
        return [line[2:] for line in lines], np.array([int(line[0]) for line in lines])

    (train, y_train), (test, y_test) = load("train.txt"), load("test.txt")
    pipe = make_pipeline(
        HashedTokenEmbedder(random_state=0), Mean(), StandardScaler(), RidgeClassifier(alpha=100)
    ).fit(train, y_train)
    # A bag of words reaches 0.807.
    assert pipe.score(test, y_test) > 0.82


def test_sentences_of_no_word_at_all():
    with pytest.raises(ValueError, match="X has too few n-grams"):
        HashedTokenEmbedder().fit(["", ""])
    tokens = HashedTokenEmbedder().fit_transform(["", "", ""], [0, 1, 0])
    assert all(np.isfinite(sample).all() for sample in tokens)


def test_halves_of_characters_are_hashed():
    texts = ["good \ud800", "bad", "good"]
    assert len(HashedTokenEmbedder(1).fit_transform(texts, [1, 0, 1])[0]) == 2


@pytest.mark.parametrize("pattern", ["(", r"(\w)(\w)", None])
def test_unusable_patterns_of_tokens_are_named(pattern):
    with pytest.raises(ValueError, match="'token_pattern' parameter"):
        HashedTokenEmbedder(token_pattern=pattern).fit(["a", "b"], [0, 1])


@pytest.mark.parametrize("unit", [1e-300, 1e30])
def test_scores_are_in_the_units_of_any_target(unit):
    texts, y = ["a b", "b c", "c", "d a"], np.arange(4.0)
    one = HashedTokenEmbedder(0, target_type="regression", cv=2, random_state=0)
    expected = np.concatenate(one.fit_transform(texts, y))
    found = np.concatenate(one.fit_transform(texts, unit * y).copy())
    assert_allclose(found, (unit * expected.astype("f8")).astype("f4"), rtol=1e-5)
    with pytest.raises(ValueError, match="rescale y"):
        one.fit_transform(texts, 1e300 * y)
