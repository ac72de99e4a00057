"""The classifier: its parameters, and fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from sklearn_restf._estimator.classification import ClassificationBase
from sklearn_restf._estimator.fit import TrainableBase
from sklearn_restf._estimator.sklearn_callbacks import with_callbacks


class ResidualTransformerClassifier(ClassificationBase, TrainableBase):
    """Residual Transformer classifier trained by full-batch gradient descent.

    A Transformer with single- or multi-head softmax attention and weighted residual
    connections [1]_::

        A      = softmax(F W_Q (F W_K)^T / sqrt(d_qk))
        Z      = beta F + A F W_V
        F'     = gamma Z + phi(Z W_1) W_2
        logits = pool(F') W_U + b

    minimises the log-loss (or the squared error on one-hot targets, the paper's setting). The
    rows of F are the tokens of a sample, A holds the attention weights, phi is `activation`,
    the W and b are trained. Every iteration uses the exact gradient over all samples, and
    ``convergence_diagnostics_`` tells why training converged as it did.

    X is a table (n_samples, n_features), whose columns are grouped into tokens, windows
    (n_samples, n_tokens, features), or a list of (n_tokens_i, features) arrays.

    Parameters
    ----------
    residual_beta : float, default=1.0
        Weight beta >= 0 of the residual connection around the attention:
        ``Z = beta F + A F W_V``. 1 is the ordinary Transformer, 0 removes the connection. Most
        gains come between 0 and 0.5; let cross-validation choose.
    ffn_residual_beta : float, default=None
        Weight gamma of the residual connection around the feed-forward network. None:
        the same as `residual_beta`.
    n_layers : int, default=1
        Number of layers. The theorem is about one, and one (with one head) is the fastest.
    n_heads : int, default=1
        Number of attention heads; must divide the token width. More than one head adds an
        output projection.
    d_model : int, default=None
        Token width inside the model. None: 16 for tables; for windows and sequences
        the number of features per token, without an embedding. A number adds a linear
        input map.
    d_qk : int, default=None
        Width of queries and keys per head. None: token width / `n_heads`.
    d_ff : int, default=64
        Width of the feed-forward network.
    activation : {"relu", "gelu", "gelu_tanh", "tanh", "leaky_relu", "identity"}, \
default="relu"
        Activation of the feed-forward network. "gelu_tanh" is GPT-2's approximation of "gelu".
    layer_norm : bool, default=False
        Whether to normalise tokens before the attention and before the feed-forward network,
        as GPT-2's block does, its biases included. For several layers, in which the signal
        would otherwise grow or vanish.
    causal : bool, default=False
        Whether a token attends only to itself and earlier tokens.
    pooling : {"auto", "mean", "last", "flatten"}, default="auto"
        What the readout sees of the tokens: their mean, the last real one, or all of them
        side by side (samples of equal length only). "auto": the mean for
        ragged input, else all of them side by side.
    positional_encoding : {None, "sinusoidal", "learned"}, default=None
        Positions added to the tokens, without which attention does not see their order (the
        readout of pooling="flatten" does, and so does `causal`). "sinusoidal" goes for any
        length, "learned" up to that of the longest training sample.
    n_tokens : int or "auto", default="auto"
        For 2-D tables: number of groups of adjacent features, each a token with its own
        linear embedding. "auto": ``min(n_features, 4)``. n_features: one token per feature;
        1: nothing to attend to, a plain network.
    token_dim : int, default=None
        Read 2-D X as windows: each row holds ``n_features / token_dim`` consecutive tokens
        of `token_dim` numbers.
    padding_value : float, default=None
        For 3-D X: a token all of whose features equal this value (NaN allowed) is padding,
        and is ignored.
    standardize : bool, default=True
        Whether to centre and scale each channel of X inside (weighted, real tokens only).
    init : {"gaussian", "xavier"}, str or path-like, default="gaussian"
        Initial weights: variance ``1 / fan_in``, or ``2 / (fan_in + fan_out)``. Or the local
        folder or hub name of a GPT-2 model, whose first blocks are loaded (safetensors
        only); :func:`sklearn_restf.pretrained.gpt2_parameters` gives the parameters that fit.
    init_scale : float, default=0.7
        Factor on the standard deviation of the initial weights. Smaller starts nearer to a
        constant prediction.
    loss : {"log_loss", "squared_error"}, default="log_loss"
        Negative log-likelihood of the true class, or half the squared error on one-hot targets;
        mean over samples.
    learning_rate : float, "adaptive" or "theory", default="adaptive"
        "adaptive": grows by 1.1 after each step; a step that would increase the loss is not
        taken: momentum is dropped, then the rate halved. A float: constant, the theorem's
        setting; too large a one ends in a DivergenceError. "theory": ``1 / ||J||^2`` with the
        Jacobian J of the predictions in the initial weights (by power iteration), halved
        whenever a step would increase the loss.
    momentum : float, default=0.9
        Heavy-ball momentum in [0, 1). 0 is gradient descent proper, of which the theorem
        speaks.
    alpha : float, default=8e-3
        Strength of the L2 penalty ``alpha / 2 * ||weights||^2`` on weight matrices (not on
        biases); it is added to the mean loss, so it does not depend on the number of
        samples. Raise it (0.05, 0.5) for few or noisy samples.
    max_iter : int, default=200
        Largest number of gradient-descent iterations; each uses all samples.
    tol : float, default=1e-4
        Training ends when `n_iter_no_change` iterations improved the objective (the
        validation loss with early stopping) by less than `tol` relative to its value. None:
        exactly `max_iter` iterations, and no warning about it.
    n_iter_no_change : int, default=10
        See `tol`.
    early_stopping : bool or "last", default=False
        Whether to watch the loss on held-out samples and to restore the weights that were
        best there. True: drawn at random, stratified by class; "last": the last block of rows, for
        time series.
    validation_fraction : float, default=0.1
        Share of the samples that `early_stopping` holds out; not used if fit is given X_val.
    chunk_size : int, default=None
        Samples per chunk. The gradient is summed over chunks before a step is taken: same
        result, less memory. None chooses by memory.
    diagnostics : bool or "full", default=True
        Whether to compute the spectra of ``convergence_diagnostics_``; "full" uses all
        samples and adds ``||J||^2``, the tangent kernel's smallest eigenvalue and a
        prediction of the loss curve, and takes several times as long as the fit (2 to 7
        times on small data, 40 times with pooling="last", whose fit is cheap).
    diagnostics_samples : int, default=64
        Samples used for the spectra.
    device : str or torch.device, default="auto"
        "auto": CUDA if there is a device, else the CPU. Otherwise a name such as "cuda:0".
    dtype : {"auto", "float32", "float64"}, default="auto"
        Training precision. "auto": float32 for float32 X, else float64. Prediction is in
        float64.
    warm_start : bool, default=False
        Whether fit goes on from the weights, rate and momentum of the previous fit.
    callbacks : list, default=None
        Callbacks of skorch, also those of :mod:`sklearn_restf.callbacks`. Copies are used; see
        the fitted attribute ``callbacks_``.
    class_weight : dict, "balanced" or None, default=None
        Weights by class, multiplied with the sample weights. "balanced": inversely
        proportional to class frequencies, in which samples count by their weights.
    random_state : int, RandomState instance or None, default=None
        Seed of the initial weights and of the validation split. Pass an int for the same model
        every time.
    verbose : int, default=0
        0 is silent; else a progress bar on a terminal and plain lines elsewhere.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels, sorted.
    convergence_diagnostics_ : ConvergenceDiagnostics
        Why training converged as it did.
    n_features_in_ : int
        Number of features: columns of 2-D X, features per token otherwise.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns, if X was a DataFrame with string names.
    n_outputs_ : int
        Number of outputs.
    n_tokens_ : int or None
        Tokens per sample; None for ragged input.
    n_iter_ : int
        Iterations of the last call of fit.
    loss_ : float
        Training objective at the fitted weights: mean loss per sample plus penalty.
    best_loss_ : float
        Lowest training objective visited.
    best_iteration_ : int
        Iteration (0: the initial weights) with the lowest validation loss, or the lowest
        objective without validation.
    loss_curve_ : list of float
        Objective after every iteration; goes on over calls with `warm_start`.
    validation_curve_ : list of float
        Validation loss after every iteration; empty without early stopping.
    learning_rate_ : float
        Learning rate at the end.
    stop_reason_ : str
        "max_iter", "tol", "early_stopping", "stationary", "stalled", "callback" or
        "interrupted".
    device_, dtype_ : str
        Where and in which precision the model was trained.
    module_ : ResidualTransformer
        The fitted torch module, rebuilt from the stored weights on access.
    net_ : skorch.NeuralNet
        A net around `module_` with the training history, rebuilt on access.
    callbacks_ : list
        The skorch callbacks as fit used them.

    See Also
    --------
    ResidualTransformerRegressor : The same model for numbers.

    References
    ----------
    .. [1] Z. Qin, J. Zhou, J. Jiang, Z. Zhu, "On the Convergence of Gradient Descent on
       Learning Transformers with Residual Connections", arXiv:2506.05249v4, 2026.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn_restf import ResidualTransformerClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = ResidualTransformerClassifier(random_state=0).fit(X, y)
    >>> model.predict_proba(X[:2]).shape
    (2, 3)
    >>> model.score(X, y) > 0.95
    True
    """

    __module__ = "sklearn_restf"  # lasting: saved models name it

    def __init__(
        self,
        residual_beta: float = 1.0,
        *,
        ffn_residual_beta: float | None = None,
        n_layers: int = 1,
        n_heads: int = 1,
        d_model: int | None = None,
        d_qk: int | None = None,
        d_ff: int = 64,
        activation: str = "relu",
        layer_norm: bool = False,
        causal: bool = False,
        pooling: str = "auto",
        positional_encoding: str | None = None,
        n_tokens: int | str = "auto",
        token_dim: int | None = None,
        padding_value: float | None = None,
        standardize: bool = True,
        init: str = "gaussian",
        init_scale: float = 0.7,
        loss: str = "log_loss",
        learning_rate: float | str = "adaptive",
        momentum: float = 0.9,
        alpha: float = 8e-3,
        max_iter: int = 200,
        tol: float | None = 1e-4,
        n_iter_no_change: int = 10,
        early_stopping: bool | str = False,
        validation_fraction: float = 0.1,
        chunk_size: int | None = None,
        diagnostics: bool | str = True,
        diagnostics_samples: int = 64,
        device: str | torch.device = "auto",
        dtype: str = "auto",
        warm_start: bool = False,
        callbacks: list[Any] | None = None,
        class_weight: dict[Any, float] | str | None = None,
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ) -> None:
        self.residual_beta = residual_beta
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
        self.warm_start = warm_start
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
        X_val: ArrayLike | None = None,
        y_val: ArrayLike | None = None,
        sample_weight_val: ArrayLike | None = None,
    ) -> ResidualTransformerClassifier:
        """Train on all of X.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features) or (n_samples, n_tokens, features), \
or list of arrays of shape (n_tokens_i, features)
            Training samples.
        y : array-like of shape (n_samples,)
            Labels: strings, integers or booleans.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights; only their ratios matter, and a sample of weight 0 is as good as absent.
        X_val, y_val, sample_weight_val : array-like, default=None
            Validation samples in the form of X, y and sample_weight. If given, they are watched in
            place of held-out ones, whatever `early_stopping` says.

        Returns
        -------
        self : ResidualTransformerClassifier
            Fitted estimator.

        Raises
        ------
        ValueError
            For input that cannot be used; the message names the argument.
        DivergenceError
            When a constant learning rate makes the loss diverge.
        RankError
            When the fit of another process of the group fails.

        Notes
        -----
        Within an initialised ``torch.distributed`` process group every process calls `fit` with
        its part of the samples, and gets the model of all of them: see
        :mod:`sklearn_restf.distributed`, also for how to train in one process there.
        """
        self._fit(X, y, sample_weight, X_val, y_val, sample_weight_val)
        return self
