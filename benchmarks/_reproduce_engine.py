"""Gradient descent of many one-layer models at once, by the package's own engine.

Without biases; beta is an axis like the seed and the step, so that a whole sweep is one batched
run. M models, N samples, T tokens, D width, K query width.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch

from sklearn_restf._model import ClosedForm, ModuleConfig, ResidualTransformer, squared_error
from sklearn_restf._model.forward import forward
from sklearn_restf._training import (
    BatchedDescent,
    Objective,
    StackedSamples,
    StepRule,
    TrainingSettings,
)

NAMES = ("query", "key", "value", "ffn_in", "ffn_out", "readout")


@dataclass(frozen=True)
class Sizes:
    """Widths of a one-layer model, and how its weights are drawn."""

    d: int
    d_ff: int
    d_qk: int
    ffn_out_scale: float = 1.0
    wide_logits: bool = False  # W_Q, W_K of variance 1/d_qk instead of 1/d


def draw_weights(sizes, seeds):
    """Return float64 Gaussian fan-in weights, one set per seed: dict of (M, in, out)."""
    shapes = {
        "query": (sizes.d, sizes.d_qk),
        "key": (sizes.d, sizes.d_qk),
        "value": (sizes.d, sizes.d),
        "ffn_in": (sizes.d, sizes.d_ff),
        "ffn_out": (sizes.d_ff, sizes.d),
        "readout": (sizes.d, 1),
    }
    drawn = {name: [] for name in NAMES}
    for seed in seeds:
        rng = np.random.default_rng(seed)
        for name, shape in shapes.items():
            variance = 1 / shape[0]
            if sizes.wide_logits and name in ("query", "key"):
                variance = 1 / sizes.d_qk
            scale = np.sqrt(variance) * (sizes.ffn_out_scale if name == "ffn_out" else 1.0)
            drawn[name].append(scale * rng.standard_normal(shape))
    return {name: torch.from_numpy(np.stack(values)) for name, values in drawn.items()}


def config_of(weights, T, pooling, beta=1.0):
    """Return the shape that all models share."""
    _, D, K = weights["query"].shape
    return ModuleConfig(
        n_tokens=T, token_width=D, d_model=D, n_outputs=1, n_features=D, embedding="none",
        d_qk=K, d_ff=weights["ffn_in"].shape[-1], pooling=pooling, max_tokens=T,
        residual_beta=beta,
    )  # fmt: skip


def parameters(weights):
    """Return the weights by their names in the module, and a bias of zero."""
    named = {f"blocks.0.{name}": weights[name] for name in NAMES[:-1]}
    bias = torch.zeros_like(weights["readout"][:, 0])
    return named | {"readout": weights["readout"], "readout_bias": bias}


def attention_output(weights, x, beta):
    """Return Z (M, N, T, D)."""
    layer = ClosedForm(config_of(weights, x.shape[1], "none"), beta.view(-1, 1, 1), 1.0)
    layer.bind(x.expand(len(beta), *x.shape), None).forward(parameters(weights))
    return layer.saved["Z"].view(len(beta), *x.shape)


def predict(weights, x, beta, pooling):
    """Return predictions (M, N) or, with pooling "none", (M, N * T)."""
    config, every = config_of(weights, x.shape[1], pooling), x.expand(len(beta), *x.shape)
    y = forward(config, parameters(weights), every, beta=beta.view(-1, 1, 1), gamma=1.0)
    return y.reshape(len(beta), -1)


class WithoutBias(Objective):
    """Half the squared error, summed over tokens, mean over samples; no bias is trained."""

    @classmethod
    def of(cls, weights, x, y, beta, pooling):
        """Return the objective of all models, each on the same samples."""
        module = ResidualTransformer(config_of(weights, x.shape[1], pooling))
        named, M = parameters(weights), len(beta)
        theta = [named[name].reshape(M, -1) for name, _ in module.named_parameters()]
        y = y.view(*x.shape[:2], 1) if pooling == "none" else y.view(-1, 1)
        share = torch.full((len(x),), 1 / len(x), dtype=x.dtype)
        samples = StackedSamples(
            x.expand(M, *x.shape), None, y.expand(M, *y.shape), share.expand(M, -1)
        )
        strengths = beta.view(-1, 1, 1), torch.ones_like(beta).view(-1, 1, 1)
        return cls(
            module, samples, squared_error, 0.0, theta=torch.cat(theta, 1), strengths=strengths
        )

    def of_one(self, model, beta):
        """Return the objective of one of the models by itself."""
        (batch,) = self.batches
        module = ResidualTransformer(replace(self.config, residual_beta=beta))
        views = self.views(self.theta[model])
        for name, parameter in module.named_parameters():
            parameter.data = views[name].clone()
        samples = StackedSamples(batch.x[model], None, batch.y[model], batch.weight[model])
        return WithoutBias(module, samples, squared_error, 0.0)

    def differentiate(self):
        """Write the gradient, which is zero at the bias."""
        super().differentiate()
        self.views(self.gradient)["readout_bias"].zero_()

    def gauss_newton_product(self, vector):
        """Return the product on the other parameters."""
        vector = vector.clone()
        self.views(vector)["readout_bias"].zero_()
        product = super().gauss_newton_product(vector)
        self.views(product)["readout_bias"].zero_()
        return product


def jacobian_norms(weights, x, beta, pooling, n_iter=60):
    """Return ||J||^2 / N of every model, by power iteration."""
    y = torch.zeros(x.shape[:2] if pooling == "none" else len(x), dtype=x.dtype)
    objective = WithoutBias.of(weights, x, y, beta, pooling)
    models = [objective.of_one(model, float(value)) for model, value in enumerate(beta)]
    return torch.tensor([model.gauss_newton_norm(n_iter, tol=1e-6) for model in models]).to(x)


def train(weights, x, y, beta, rate, pooling, n_iter):
    """Run gradient descent with one constant rate per model; return losses (n_iter + 1, M).

    A model that diverges has losses of inf from then on.
    """
    settings = TrainingSettings(
        squared_error, 0.0, momentum=0.0, alpha=0.0, max_iter=n_iter, tol=None,
        n_iter_no_change=n_iter,
    )  # fmt: skip
    rules = [StepRule(float(value), 0.0, guarded=False, growth=1.0) for value in rate]
    objective = WithoutBias.of(weights, x, y, beta, pooling)
    history = np.full((n_iter + 1, len(beta)), np.inf)
    for model, result in enumerate(BatchedDescent(objective, rules, settings).run()):
        losses = result.losses[:-1] if result.stop_reason == "diverged" else result.losses
        history[: len(losses), model] = losses
    return history
