"""Computation of :class:`ConvergenceDiagnostics` from weights, samples and a training run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sklearn_restf._diagnostics.certificate import Certificate, certify, smallest_singular_value
from sklearn_restf._diagnostics.convergence_diagnostics import (
    LAYER_QUANTITIES,
    ConvergenceDiagnostics,
)
from sklearn_restf._diagnostics.convergence_rate import measure_rate
from sklearn_restf._diagnostics.singular_values import (
    Spectra,
    centred_residual,
    numerically_zero,
    singular_values,
    spectra,
)
from sklearn_restf._model import ModuleConfig, ResidualTransformer, pool
from sklearn_restf._training import TrainingResult


@dataclass(frozen=True)
class LayerSpectra:
    """Spectra of the layer's input, of Z, and of the attention output alone."""

    inputs: Spectra
    Z: Spectra
    attention: Spectra


@dataclass(frozen=True)
class ModelSpectra:
    """The spectra of every layer, and what is common to all samples.

    `sample_residual` tells how much the rows that the readout sees differ; `feature_ratio`
    is the squared inverse condition number of the features that come in.
    """

    layers: list[LayerSpectra]
    sample_residual: float
    feature_ratio: float


def model_spectra(module: ResidualTransformer, x: Tensor, mask: Tensor | None) -> ModelSpectra:
    """Return the spectra of a module; `module` and `x` in float64 on the CPU."""
    with torch.no_grad():
        inputs = spectra(_per_sample(module.embed(x), mask))
        layers = []
        outputs = module.layers(x, mask)
        for output in outputs:
            Z = spectra(_per_sample(output.Z, mask))
            attention = spectra(_per_sample(output.attention_output, mask))
            layers.append(LayerSpectra(inputs, Z, attention))
            if len(layers) < len(outputs):
                inputs = spectra(_per_sample(output.F, mask))
        readout_rows = outputs[-1].F
        if module.config.pooling == "none":
            readout_rows = pool(readout_rows, mask, "mean")
        else:
            readout_rows = pool(readout_rows, mask, module.config.pooling)
    alone = len(readout_rows) == 1  # nothing to differ from
    residual = math.nan if alone else float(centred_residual(readout_rows.numpy()))
    return ModelSpectra(layers, residual, _feature_ratio(module.config, x, mask))


def _feature_ratio(config: ModuleConfig, x: Tensor, mask: Tensor | None) -> float:
    """Return (sigma_min / norm)^2 of the features, all samples stacked; nan if there are few."""
    if config.embedding == "grouped":
        # padded groups have columns of zeros that are no features
        features = x.flatten(1)[:, (x != 0).any(0).flatten()]
    else:
        features = x.flatten(0, 1) if mask is None else x[mask]
    if len(features) < 2 * features.shape[1] or not features.shape[1]:
        return math.nan
    values = singular_values(features.numpy())
    return float((values[-1] / values[0]) ** 2) if values[0] > 0 else math.nan


def _per_sample(tensor: Tensor, mask: Tensor | None) -> np.ndarray | list[np.ndarray]:
    arrays: np.ndarray = tensor.numpy()
    if mask is None:
        return arrays
    return [array[: int(length)] for array, length in zip(arrays, mask.sum(1), strict=True)]


def spectral_fields(
    start: ModelSpectra, end: ModelSpectra | None
) -> tuple[dict[str, Any], dict[str, str]]:
    """Collect the fields of :class:`ConvergenceDiagnostics` that come from spectra."""
    values: dict[str, Any] = {}
    layers: dict[str, np.ndarray] = {}
    for prefix, moment in (("", start), ("final_", end)):
        if moment is None:
            continue
        for name in LAYER_QUANTITIES:
            layers[prefix + name] = np.array([_reduce(layer.Z, name) for layer in moment.layers])
            values[prefix + name] = float(layers[prefix + name][-1])
        for name in ("sigma_min", "rank1_residual", "effective_rank", "stable_rank"):
            per_layer = np.array([_reduce(layer.attention, name) for layer in moment.layers])
            layers[f"{prefix}attention_{name}"] = per_layer
            if not prefix:
                values[f"attention_{name}"] = float(per_layer[-1])
        values[f"{prefix}sample_residual"] = moment.sample_residual
    values["layers"] = layers
    for name in ("norm", "rank1_residual"):
        values[f"input_{name}"] = _reduce(start.layers[0].inputs, name)
    values["input_condition_ratio"] = start.feature_ratio
    values["sigma_min_per_sample"] = np.stack([layer.Z.sigma_min for layer in start.layers])
    values["norm_per_sample"] = np.stack([layer.Z.norm for layer in start.layers])
    values["singular_values_start"] = start.layers[-1].Z.singular_values
    if end is not None:
        values["singular_values_end"] = end.layers[-1].Z.singular_values
    reasons = {
        name: "Z is zero, or its singular value decomposition did not converge"
        for name in LAYER_QUANTITIES
        if math.isnan(values[name])
    }
    return values, reasons


def _reduce(spectrum: Spectra, name: str) -> float:
    """Reduce a per-sample quantity: worst case for the theorem's, median for the others."""
    if name == "sigma_min":
        return float(spectrum.sigma_min.min())
    if name == "norm":
        return float(spectrum.norm.max())
    if name == "condition_ratio":
        low, high = spectrum.sigma_min.min(), spectrum.norm.max()
        return float((low / high) ** 2) if high > 0 else math.nan
    return float(np.median(getattr(spectrum, name)))


def history_fields(
    result: TrainingResult, *, momentum: float, eps: float
) -> tuple[dict[str, Any], dict[str, str]]:
    """Collect the fields that come from the history of a run; `eps` of its dtype."""
    loss = np.array(result.losses[: len(result.gradient_norms)])
    gradient_norm = np.array(result.gradient_norms)
    rates = np.array(result.learning_rates[: len(loss) - 1])
    with np.errstate(divide="ignore", invalid="ignore"):
        local_pl = np.where(loss > 0, gradient_norm**2 / (2 * loss), np.nan)
        armijo = (loss[:-1] - loss[1:]) / (rates * gradient_norm[:-1] ** 2)
        # r_t >= 1/2 up to the rounding of the loss: predictions are rounded at the size of the
        # targets, however small the errors
        promised = 0.5 * rates * gradient_norm[:-1] ** 2
        rounding = 16 * eps * np.sqrt(np.abs(loss[:-1] * loss[:1]))
        descended = loss[:-1] - loss[1:] >= promised - rounding
    estimate = measure_rate(loss)
    values = {
        "loss": loss,
        "gradient_norm": gradient_norm,
        "learning_rates": rates,
        "local_pl": local_pl,
        "armijo": armijo,
        "rate": estimate.rate,
        "rate_r2": estimate.r2,
        "rate_window": estimate.window,
        "certified": bool(momentum == 0 and len(armijo) > 0 and descended.all()),
        "n_iter": result.n_iter,
        "stop_reason": result.stop_reason,
    }
    return values, {"rate": estimate.reason} if estimate.reason else {}


def prediction_fields(
    certificate: Certificate | None, reason: str, *, smallest_weight: float, learning_rate: float
) -> tuple[dict[str, Any], dict[str, str]]:
    """Collect the fields of the theorem's prediction.

    `smallest_weight` turns the bound for the sum over samples into one for the weighted
    mean: ``lambda_min(W^1/2 K W^1/2) >= min(w) lambda_min(K)``.
    """
    if certificate is None:
        return {}, {"alpha_cert": reason, "predicted_rate": reason}
    alpha = smallest_weight * certificate.alpha
    values: dict[str, Any] = {
        "alpha_cert": alpha,
        "alpha_cert_blocks": {
            name: smallest_weight * getattr(certificate, name)
            for name in ("readout", "ffn_out", "ffn_in", "value")
        },
    }
    reasons = {"alpha_cert": certificate.reason} if certificate.reason else {}
    why = reason or certificate.reason
    if why:
        reasons["predicted_rate"] = why
    else:
        values["predicted_rate"] = 1.0 - learning_rate * alpha
    return values, reasons


def certificate_of(
    module: ResidualTransformer, x: Tensor, mask: Tensor | None
) -> tuple[Certificate, float]:
    """Return the certificate and the stacked sigma_min, from all training samples."""
    with torch.no_grad():
        outputs = module.layers(x, mask)
        inputs = outputs[-2].F if len(outputs) > 1 else module.embed(x)
    certificate = certify(module, inputs, outputs[-1], mask)
    Z = outputs[-1].Z
    stacked = (Z.flatten(0, 1) if mask is None else Z[mask]).numpy()
    rank = len(stacked)
    return certificate, smallest_singular_value(stacked, rank)


def collapsed(spectrum: LayerSpectra, shape: tuple[int, int], eps: float) -> bool:
    """Tell whether Z lost rank that its input had: then a larger residual_beta helps."""
    lost = numerically_zero(spectrum.Z, shape, eps)
    had = ~numerically_zero(spectrum.inputs, shape, eps)
    return bool((lost & had).any())


def assemble(*parts: tuple[dict[str, Any], dict[str, str]], **more: Any) -> ConvergenceDiagnostics:
    """Merge fields and reasons."""
    values: dict[str, Any] = dict(more)
    reasons: dict[str, str] = {}
    for fields, why in parts:
        values |= fields
        reasons |= why
    return ConvergenceDiagnostics(**values, reasons=reasons)
