"""Estimators that choose ``residual_beta`` by cross-validation, in the manner of RidgeCV."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.model_selection import BaseCrossValidator

from sklearn_restf._estimator.classification import ClassificationBase
from sklearn_restf._estimator.classifier import ResidualTransformerClassifier
from sklearn_restf._estimator.fitted import defaults_of
from sklearn_restf._estimator.regression import RegressionBase
from sklearn_restf._estimator.regressor import ResidualTransformerRegressor
from sklearn_restf._estimator.sklearn_callbacks import with_callbacks
from sklearn_restf.model_selection._cross_validation import BetaSweepMixin, sweep_constraints

BETAS = (0.0, 0.25, 0.5, 0.75, 1.0)
# the defaults of the plain estimators, said once
REGRESSOR = defaults_of(ResidualTransformerRegressor)
CLASSIFIER = defaults_of(ResidualTransformerClassifier)


class ResidualTransformerRegressorCV(BetaSweepMixin, RegressionBase):
    """Residual Transformer regressor whose residual strength is chosen by cross-validation.

    Trains one :class:`ResidualTransformerRegressor` for every value of
    `residual_betas` and every fold, chooses the value with the best mean score on held-out
    samples, and trains on all samples with it. The scores are those of
    ``GridSearchCV(ResidualTransformerRegressor(...), {"residual_beta": residual_betas})``.

    Small models are trained side by side in one batched run, which shares the cost of calling
    each operation; large ones, for which that cost does not matter, one by one (see Notes).

    Parameters
    ----------
    residual_betas : sequence of float, default=(0.0, 0.25, 0.5, 0.75, 1.0)
        The values of residual_beta to choose from.
    cv : int, cross-validation generator or iterable, default=None
        How samples are split, as in scikit-learn: None is 5 consecutive folds.
    scoring : str or callable, default=None
        A scikit-learn scorer, of which more is better. None: the
        estimator's ``score``, R^2. Weighted by `sample_weight` where the scorer takes weights.
    refit : bool or callable, default=True
        Whether to train on all samples with the chosen value. A callable chooses: it is
        called with ``cv_results_`` and returns an index into `residual_betas`.
    n_jobs : int, default=None
        How many jobs joblib runs in parallel; None is 1, -1 one per core.
    ffn_residual_beta : float, default=None
        Weight of the residual connection around the feed-forward network. None: the same as
        residual_beta, and swept with it.
    n_layers, n_heads, d_model, d_qk, d_ff, activation, layer_norm, causal, pooling, \
positional_encoding, n_tokens, token_dim, padding_value, standardize, init, init_scale : optional
        The model: see :class:`ResidualTransformerRegressor`.
    loss, learning_rate, momentum, alpha, max_iter, tol, n_iter_no_change, early_stopping, \
validation_fraction, chunk_size, diagnostics, diagnostics_samples, device, dtype : optional
        Training: see :class:`ResidualTransformerRegressor`. With early stopping every
        model holds out a part of its own training samples.
    callbacks : list, default=None
        skorch callbacks, for every model; models with callbacks are trained one by one.
    random_state : int, RandomState instance or None, default=None
        Seed of the initial weights and of the validation split, the same for every model.
    verbose : int, default=0
        Whether to report the progress of the final training.

    Attributes
    ----------
    residual_beta_ : float
        The chosen residual_beta.
    best_index_ : int
        Its position in `residual_betas`.
    best_score_ : float
        Its mean score on held-out samples.
    cv_results_ : dict of ndarray
        Scores and times of every value, in the format of scikit-learn's ``GridSearchCV``.
        Models trained side by side report their share of the time.
    cv_diagnostics_ : list of lists of ConvergenceDiagnostics
        Why the models converged as they did, ``cv_diagnostics_[beta][fold]``; None for one
        that diverged.
    n_splits_ : int
        Number of folds.
    convergence_diagnostics_, n_iter_, loss_, loss_curve_, module_, ... : various
        With ``refit``, the fitted attributes of :class:`ResidualTransformerRegressor`, for
        the model trained on all samples.

    See Also
    --------
    ResidualTransformerRegressor : One given residual_beta.
    ResidualTransformerClassifierCV : The same for classes.

    Notes
    -----
    warm_start is no parameter here: every model starts from the initial weights.

    A model trained side by side with others takes the steps it would take alone. In double
    precision its scores agree to 1e-4 and usually to ten digits; in single precision a step
    that lowers the loss by less than rounding may be judged differently, and late iterations
    differ as they do between two machines: after 200 iterations by up to 6e-3 in the scores
    where changing the last bit of X changes those of single fits by 8e-3.

    Models are trained side by side when one pass of one model takes less than 5 million
    multiply-adds in float32 (1,500 tokens of width 16 or so) or 2.5 million in float64 (half of
    that with several layers, several heads or LayerNorm; on a GPU always),
    there are no callbacks and no `chunk_size`: 5 to 13 of them at a time (on a GPU as many as
    have 2 GiB of intermediate results). Otherwise one by one. In both cases joblib spreads the
    work over `n_jobs` processes.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn_restf import ResidualTransformerRegressorCV
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = ResidualTransformerRegressorCV(
    ...     residual_betas=[0.0, 1.0], cv=3, max_iter=50, tol=None, random_state=0
    ... ).fit(X, y)
    >>> model.residual_beta_ in (0.0, 1.0)
    True
    >>> model.cv_results_["mean_test_score"].shape
    (2,)
    """

    __module__ = "sklearn_restf"  # lasting: saved models name it

    _plain = ResidualTransformerRegressor
    _parameter_constraints = sweep_constraints(ResidualTransformerRegressor._parameter_constraints)

    def __init__(
        self,
        residual_betas: Sequence[float] = BETAS,
        *,
        cv: int | BaseCrossValidator | Iterable[Any] | None = None,
        scoring: str | Callable[..., float] | None = None,
        refit: bool | Callable[[dict[str, Any]], int] = True,
        n_jobs: int | None = None,
        ffn_residual_beta: float | None = REGRESSOR["ffn_residual_beta"],
        n_layers: int = REGRESSOR["n_layers"],
        n_heads: int = REGRESSOR["n_heads"],
        d_model: int | None = REGRESSOR["d_model"],
        d_qk: int | None = REGRESSOR["d_qk"],
        d_ff: int = REGRESSOR["d_ff"],
        activation: str = REGRESSOR["activation"],
        layer_norm: bool = REGRESSOR["layer_norm"],
        causal: bool = REGRESSOR["causal"],
        pooling: str = REGRESSOR["pooling"],
        positional_encoding: str | None = REGRESSOR["positional_encoding"],
        n_tokens: int | str = REGRESSOR["n_tokens"],
        token_dim: int | None = REGRESSOR["token_dim"],
        padding_value: float | None = REGRESSOR["padding_value"],
        standardize: bool = REGRESSOR["standardize"],
        init: str = REGRESSOR["init"],
        init_scale: float = REGRESSOR["init_scale"],
        loss: str = REGRESSOR["loss"],
        learning_rate: float | str = REGRESSOR["learning_rate"],
        momentum: float = REGRESSOR["momentum"],
        alpha: float = REGRESSOR["alpha"],
        max_iter: int = REGRESSOR["max_iter"],
        tol: float | None = REGRESSOR["tol"],
        n_iter_no_change: int = REGRESSOR["n_iter_no_change"],
        early_stopping: bool | str = REGRESSOR["early_stopping"],
        validation_fraction: float = REGRESSOR["validation_fraction"],
        chunk_size: int | None = REGRESSOR["chunk_size"],
        diagnostics: bool | str = REGRESSOR["diagnostics"],
        diagnostics_samples: int = REGRESSOR["diagnostics_samples"],
        device: str | torch.device = REGRESSOR["device"],
        dtype: str = REGRESSOR["dtype"],
        callbacks: list[Any] | None = REGRESSOR["callbacks"],
        random_state: int | np.random.RandomState | None = REGRESSOR["random_state"],
        verbose: int = REGRESSOR["verbose"],
    ) -> None:
        self.residual_betas = residual_betas
        self.cv = cv
        self.scoring = scoring
        self.refit = refit
        self.n_jobs = n_jobs
        self.ffn_residual_beta = ffn_residual_beta
        self.n_layers = n_layers
        self.n_heads = n_heads
        self.d_model = d_model
        self.d_qk = d_qk
        self.d_ff = d_ff
        self.activation = activation
        self.layer_norm = layer_norm
        self.causal = causal
        self.pooling = pooling
        self.positional_encoding = positional_encoding
        self.n_tokens = n_tokens
        self.token_dim = token_dim
        self.padding_value = padding_value
        self.standardize = standardize
        self.init = init
        self.init_scale = init_scale
        self.loss = loss
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.alpha = alpha
        self.max_iter = max_iter
        self.tol = tol
        self.n_iter_no_change = n_iter_no_change
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.chunk_size = chunk_size
        self.diagnostics = diagnostics
        self.diagnostics_samples = diagnostics_samples
        self.device = device
        self.dtype = dtype
        self.callbacks = callbacks
        self.random_state = random_state
        self.verbose = verbose

    @with_callbacks
    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> ResidualTransformerRegressorCV:
        """Choose residual_beta by cross-validation, and train with it on all of X.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features) or (n_samples, n_tokens, features), \
or list of arrays of shape (n_tokens_i, features)
            Training samples.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets; with ``pooling="none"`` one per token.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights, in training and in scoring.
        groups : array-like of shape (n_samples,), default=None
            Group of each sample, for a `cv` that keeps groups together.

        Returns
        -------
        self : ResidualTransformerRegressorCV
            Fitted estimator.

        Raises
        ------
        ValueError
            For input that cannot be used; the message names the argument.
        DivergenceError
            When a constant learning rate makes every model diverge.
        """
        self._search(X, y, sample_weight, groups)
        return self


class ResidualTransformerClassifierCV(BetaSweepMixin, ClassificationBase):
    """Residual Transformer classifier whose residual strength is chosen by cross-validation.

    Trains one :class:`ResidualTransformerClassifier` for every value of
    `residual_betas` and every fold, chooses the value with the best mean score on held-out
    samples, and trains on all samples with it. The scores are those of
    ``GridSearchCV(ResidualTransformerClassifier(...), {"residual_beta": residual_betas})``.

    Small models are trained side by side in one batched run, which shares the cost of calling
    each operation; large ones, for which that cost does not matter, one by one (see Notes).

    Parameters
    ----------
    residual_betas : sequence of float, default=(0.0, 0.25, 0.5, 0.75, 1.0)
        The values of residual_beta to choose from.
    cv : int, cross-validation generator or iterable, default=None
        How samples are split, as in scikit-learn: None is 5 stratified folds.
    scoring : str or callable, default=None
        A scikit-learn scorer, of which more is better. None: the
        estimator's ``score``, the accuracy. Weighted by `sample_weight` where the scorer
        takes weights.
    refit : bool or callable, default=True
        Whether to train on all samples with the chosen value. A callable chooses: it is
        called with ``cv_results_`` and returns an index into `residual_betas`.
    n_jobs : int, default=None
        How many jobs joblib runs in parallel; None is 1, -1 one per core.
    ffn_residual_beta : float, default=None
        Weight of the residual connection around the feed-forward network. None: the same as
        residual_beta, and swept with it.
    n_layers, n_heads, d_model, d_qk, d_ff, activation, layer_norm, causal, pooling, \
positional_encoding, n_tokens, token_dim, padding_value, standardize, init, init_scale : optional
        The model: see :class:`ResidualTransformerClassifier`.
    loss, learning_rate, momentum, alpha, max_iter, tol, n_iter_no_change, early_stopping, \
validation_fraction, chunk_size, diagnostics, diagnostics_samples, device, dtype, \
class_weight : optional
        Training: see :class:`ResidualTransformerClassifier`. With early stopping every
        model holds out a part of its own training samples.
    callbacks : list, default=None
        skorch callbacks, for every model; models with callbacks are trained one by one.
    random_state : int, RandomState instance or None, default=None
        Seed of the initial weights and of the validation split, the same for every model.
    verbose : int, default=0
        Whether to report the progress of the final training.

    Attributes
    ----------
    residual_beta_ : float
        The chosen residual_beta.
    best_index_ : int
        Its position in `residual_betas`.
    best_score_ : float
        Its mean score on held-out samples.
    cv_results_ : dict of ndarray
        Scores and times of every value, in the format of scikit-learn's ``GridSearchCV``.
        Models trained side by side report their share of the time.
    cv_diagnostics_ : list of lists of ConvergenceDiagnostics
        Why the models converged as they did, ``cv_diagnostics_[beta][fold]``; None for one
        that diverged.
    n_splits_ : int
        Number of folds.
    convergence_diagnostics_, n_iter_, loss_, loss_curve_, module_, ... : various
        With ``refit``, the fitted attributes of :class:`ResidualTransformerClassifier`, for
        the model trained on all samples.

    See Also
    --------
    ResidualTransformerClassifier : One given residual_beta.
    ResidualTransformerRegressorCV : The same for numbers.

    Notes
    -----
    warm_start is no parameter here: every model starts from the initial weights.

    A model trained side by side with others takes the steps it would take alone. In double
    precision its scores agree to 1e-4 and usually to ten digits; in single precision a step
    that lowers the loss by less than rounding may be judged differently, and late iterations
    differ as they do between two machines: after 200 iterations by up to 6e-3 in the scores
    where changing the last bit of X changes those of single fits by 8e-3.

    Models are trained side by side when one pass of one model takes less than 5 million
    multiply-adds in float32 (1,500 tokens of width 16 or so) or 2.5 million in float64 (half of
    that with several layers, several heads or LayerNorm; on a GPU always),
    there are no callbacks and no `chunk_size`: 5 to 13 of them at a time (on a GPU as many as
    have 2 GiB of intermediate results). Otherwise one by one. In both cases joblib spreads the
    work over `n_jobs` processes.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn_restf import ResidualTransformerClassifierCV
    >>> X, y = load_iris(return_X_y=True)
    >>> model = ResidualTransformerClassifierCV(
    ...     residual_betas=[0.0, 1.0], cv=3, max_iter=50, tol=None, random_state=0
    ... ).fit(X, y)
    >>> model.predict(X[:2]).shape
    (2,)
    >>> model.best_score_ > 0.9
    True
    """

    __module__ = "sklearn_restf"  # lasting: saved models name it

    _plain = ResidualTransformerClassifier
    _parameter_constraints = sweep_constraints(ResidualTransformerClassifier._parameter_constraints)

    def __init__(
        self,
        residual_betas: Sequence[float] = BETAS,
        *,
        cv: int | BaseCrossValidator | Iterable[Any] | None = None,
        scoring: str | Callable[..., float] | None = None,
        refit: bool | Callable[[dict[str, Any]], int] = True,
        n_jobs: int | None = None,
        ffn_residual_beta: float | None = CLASSIFIER["ffn_residual_beta"],
        n_layers: int = CLASSIFIER["n_layers"],
        n_heads: int = CLASSIFIER["n_heads"],
        d_model: int | None = CLASSIFIER["d_model"],
        d_qk: int | None = CLASSIFIER["d_qk"],
        d_ff: int = CLASSIFIER["d_ff"],
        activation: str = CLASSIFIER["activation"],
        layer_norm: bool = CLASSIFIER["layer_norm"],
        causal: bool = CLASSIFIER["causal"],
        pooling: str = CLASSIFIER["pooling"],
        positional_encoding: str | None = CLASSIFIER["positional_encoding"],
        n_tokens: int | str = CLASSIFIER["n_tokens"],
        token_dim: int | None = CLASSIFIER["token_dim"],
        padding_value: float | None = CLASSIFIER["padding_value"],
        standardize: bool = CLASSIFIER["standardize"],
        init: str = CLASSIFIER["init"],
        init_scale: float = CLASSIFIER["init_scale"],
        loss: str = CLASSIFIER["loss"],
        learning_rate: float | str = CLASSIFIER["learning_rate"],
        momentum: float = CLASSIFIER["momentum"],
        alpha: float = CLASSIFIER["alpha"],
        max_iter: int = CLASSIFIER["max_iter"],
        tol: float | None = CLASSIFIER["tol"],
        n_iter_no_change: int = CLASSIFIER["n_iter_no_change"],
        early_stopping: bool | str = CLASSIFIER["early_stopping"],
        validation_fraction: float = CLASSIFIER["validation_fraction"],
        chunk_size: int | None = CLASSIFIER["chunk_size"],
        diagnostics: bool | str = CLASSIFIER["diagnostics"],
        diagnostics_samples: int = CLASSIFIER["diagnostics_samples"],
        device: str | torch.device = CLASSIFIER["device"],
        dtype: str = CLASSIFIER["dtype"],
        callbacks: list[Any] | None = CLASSIFIER["callbacks"],
        class_weight: dict[Any, float] | str | None = CLASSIFIER["class_weight"],
        random_state: int | np.random.RandomState | None = CLASSIFIER["random_state"],
        verbose: int = CLASSIFIER["verbose"],
    ) -> None:
        self.residual_betas = residual_betas
        self.cv = cv
        self.scoring = scoring
        self.refit = refit
        self.n_jobs = n_jobs
        self.ffn_residual_beta = ffn_residual_beta
        self.n_layers = n_layers
        self.n_heads = n_heads
        self.d_model = d_model
        self.d_qk = d_qk
        self.d_ff = d_ff
        self.activation = activation
        self.layer_norm = layer_norm
        self.causal = causal
        self.pooling = pooling
        self.positional_encoding = positional_encoding
        self.n_tokens = n_tokens
        self.token_dim = token_dim
        self.padding_value = padding_value
        self.standardize = standardize
        self.init = init
        self.init_scale = init_scale
        self.loss = loss
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.alpha = alpha
        self.max_iter = max_iter
        self.tol = tol
        self.n_iter_no_change = n_iter_no_change
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.chunk_size = chunk_size
        self.diagnostics = diagnostics
        self.diagnostics_samples = diagnostics_samples
        self.device = device
        self.dtype = dtype
        self.callbacks = callbacks
        self.class_weight = class_weight
        self.random_state = random_state
        self.verbose = verbose

    @with_callbacks
    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> ResidualTransformerClassifierCV:
        """Choose residual_beta by cross-validation, and train with it on all of X.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features) or (n_samples, n_tokens, features), \
or list of arrays of shape (n_tokens_i, features)
            Training samples.
        y : array-like of shape (n_samples,)
            Labels: strings, integers or booleans.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights, in training and in scoring.
        groups : array-like of shape (n_samples,), default=None
            Group of each sample, for a `cv` that keeps groups together.

        Returns
        -------
        self : ResidualTransformerClassifierCV
            Fitted estimator.

        Raises
        ------
        ValueError
            For input that cannot be used; the message names the argument.
        DivergenceError
            When a constant learning rate makes every model diverge.
        """
        self._search(X, y, sample_weight, groups)
        return self
