"""The residual Transformer: equations, cheapest forward pass, gradient, losses, initial weights."""

from sklearn_restf._model.forward import Parameters, Strength
from sklearn_restf._model.gpt2_files import CONFIG, may_be_model, open_model_files
from sklearn_restf._model.gpt2_weights import parameters_of, read_config
from sklearn_restf._model.gradient import ClosedForm, has_closed_form
from sklearn_restf._model.initialization import (
    NumpyState,
    ParameterViews,
    build_module,
    group_widths,
    initial_state,
    is_weight,
    state_of,
)
from sklearn_restf._model.linearization import LinearizedBatch, output_weights
from sklearn_restf._model.losses import Loss, binary_log_loss, multinomial_log_loss, squared_error
from sklearn_restf._model.matmul import add_reduction, product, products, silent
from sklearn_restf._model.module import (
    ACTIVATIONS,
    LAYER_NORM_EPS,
    Block,
    LayerOutput,
    ModuleConfig,
    ResidualTransformer,
    pool,
    sinusoidal_positions,
)
