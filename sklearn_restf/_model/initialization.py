"""Initial weights, and the way between a torch module and NumPy arrays.

Fitted estimators store their weights as NumPy arrays: free of devices, small, and safe
to pickle; modules are rebuilt from them on demand.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn

from sklearn_restf._model.gpt2_weights import gpt2_block_state
from sklearn_restf._model.module import ModuleConfig, ResidualTransformer

NumpyState = dict[str, np.ndarray]


def is_weight(name: str) -> bool:
    """Tell whether a parameter is a weight matrix: those carry the L2 penalty."""
    leaf = name.rpartition(".")[2]
    return not leaf.endswith("_bias") and not leaf.startswith("norm") and leaf != "position"


class ParameterViews:
    """Names and shapes of the parameters that a flat vector holds one after another.

    The vector may have a leading model axis: (*S, P).
    """

    def __init__(self, module: nn.Module) -> None:
        self.shapes = {name: tuple(p.shape) for name, p in module.named_parameters()}
        self.sizes = [math.prod(shape) for shape in self.shapes.values()]

    def __call__(self, theta: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return one view of the vector per parameter."""
        pieces = torch.split(theta, self.sizes, dim=-1)
        return {
            name: piece.view(*theta.shape[:-1], *shape)
            for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)
        }

    def flatten(self, state: NumpyState) -> np.ndarray:
        """Return the vector of some parameters."""
        return np.concatenate([state[name].reshape(-1) for name in self.shapes])

    def state(self, theta: torch.Tensor) -> NumpyState:
        """Copy the parameters of one vector into NumPy arrays."""
        return {name: view.cpu().numpy().copy() for name, view in self(theta.detach()).items()}

    def decay(self, alpha: float) -> torch.Tensor:
        """Return alpha at the weights, which carry the L2 penalty, and 0 elsewhere; float64."""
        values = [alpha * is_weight(name) for name in self.shapes]
        return torch.tensor(values, dtype=torch.float64).repeat_interleave(torch.tensor(self.sizes))


def initial_state(
    config: ModuleConfig, random_state: np.random.RandomState, *, init: str, init_scale: float
) -> NumpyState:
    """Draw the initial weights, always in float64 on the CPU.

    Every device and dtype therefore starts from the same point. Weight matrices are
    N(0, s^2 / fan_in) for ``init="gaussian"`` and N(0, 2 s^2 / (fan_in + fan_out)) for
    ``init="xavier"`` with s = `init_scale`; biases are zero, LayerNorm weights one. Any other
    `init` names a GPT-2 model, whose weights take the place of the blocks' Gaussian draws.
    """
    # first, as weights that do not fit would else be drawn in vain, in whatever size they claim
    pretrained = {} if init in ("gaussian", "xavier") else gpt2_block_state(init, config)
    try:
        module = ResidualTransformer(config)
    except RuntimeError as error:  # torch's word for it
        raise MemoryError(
            f"The weights do not fit into memory at n_layers={config.n_layers}, "
            f"d_model={config.d_model}, d_qk={config.d_qk}, d_ff={config.d_ff}: {error}"
        ) from error
    state = {}
    for name, parameter in module.named_parameters():
        shape = tuple(parameter.shape)
        leaf = name.rpartition(".")[2]
        if leaf in ("norm1_weight", "norm2_weight"):
            state[name] = np.ones(shape)
        elif leaf == "position":
            # small beside unit-variance tokens, as in BERT and GPT-2
            state[name] = 0.02 * random_state.standard_normal(shape)
        elif not is_weight(name):
            state[name] = np.zeros(shape)
        else:
            fan_in, fan_out = shape[-2:]
            variance = 2 / (fan_in + fan_out) if init == "xavier" else 1 / fan_in
            scale = init_scale * math.sqrt(variance)
            state[name] = scale * random_state.standard_normal(shape)
    if config.embedding == "grouped":
        # narrow groups are padded with zero columns: their weights must not count as weights
        for group, width in enumerate(group_widths(config)):
            state["embedding_weight"][group, width:] = 0.0
    return state | pretrained


def build_module(
    config: ModuleConfig,
    state: NumpyState,
    *,
    dtype: torch.dtype = torch.float64,
    device: str | torch.device = "cpu",
) -> ResidualTransformer:
    """Build the module of `config` with the weights of `state`."""
    module = ResidualTransformer(config)
    # cast on the CPU first: some devices have no float64
    module.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in state.items()})
    return module.to(dtype).to(device).eval()


def state_of(module: nn.Module) -> NumpyState:
    """Copy the parameters of `module` into NumPy arrays."""
    return {
        name: parameter.detach().cpu().numpy().copy()
        for name, parameter in module.named_parameters()
    }


def group_widths(config: ModuleConfig) -> list[int]:
    """Return how many features each group of a table has (as ``np.array_split`` cuts)."""
    assert config.n_tokens is not None
    return [len(group) for group in np.array_split(np.arange(config.n_features), config.n_tokens)]
