"""Initial weights from a pretrained GPT-2 model (extra: ``text``).

With ``n_heads``, ``layer_norm``, ``causal`` and ``activation="gelu_tanh"`` a layer of the residual
Transformer is a GPT-2 block, so that the weights of one fit the other. With
``residual_beta=1`` the model then computes what GPT-2 computes.
"""

from __future__ import annotations

import os
from typing import Any

from sklearn_restf._model import CONFIG, open_model_files, parameters_of, read_config

__all__ = ["gpt2_parameters"]


def gpt2_parameters(
    model: str | os.PathLike[str], *, n_layers: int | None = None
) -> dict[str, Any]:
    """Return the estimator parameters with which a GPT-2 model's weights can be loaded.

    Only the model's ``config.json`` is read.

    Parameters
    ----------
    model : str or path-like
        Folder of a GPT-2 model in Hugging Face's format, or its name on the hub.
    n_layers : int, default=None
        Use the first `n_layers` blocks; all of them by default.

    Returns
    -------
    parameters : dict
        ``init``, ``n_layers``, ``n_heads``, ``d_ff``, ``activation``, ``layer_norm``, ``causal``.
        The tokens must be as wide as the model (768 for the smallest GPT-2), or ``d_model``
        must be set to that width.

    Raises
    ------
    OSError
        If there is no such model.
    ValueError
        If it is not a GPT-2 model, or `n_layers` is more than it has.

    See Also
    --------
    sklearn_restf.preprocessing.TextTokenEmbedder : With ``layer=0``, the input of the first
        block.

    Notes
    -----
    Only blocks are loaded. The readout, and the input map if there is one, start from Gaussian
    draws as with ``init="gaussian"``, scaled by ``init_scale``; so does a learned table of
    positions, because the estimator's tokens are features, not words. GPT-2's final LayerNorm is
    not part of the model.

    Examples
    --------
    Sentences, what GPT-2 makes of them before its first block, and six trainable blocks:

    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn_restf import ResidualTransformerClassifier
    >>> from sklearn_restf.preprocessing import TextTokenEmbedder
    >>> from sklearn_restf.pretrained import gpt2_parameters
    >>> model = make_pipeline(
    ...     TextTokenEmbedder("gpt2", layer=0),
    ...     ResidualTransformerClassifier(
    ...         standardize=False, pooling="last", **gpt2_parameters("gpt2", n_layers=6)
    ...     ),
    ... )  # doctest: +SKIP
    """
    config = read_config(open_model_files(model).require(CONFIG), model)
    if n_layers is not None and not 1 <= n_layers <= config["n_layer"]:
        raise ValueError(
            f"n_layers={n_layers}: the model {str(model)!r} has {config['n_layer']} blocks."
        )
    parameters = parameters_of(config)
    del parameters["token width"]
    return {"init": model, "n_layers": n_layers or config["n_layer"], **parameters}
