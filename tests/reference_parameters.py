"""Random parameters of the model under the names of its state dict."""


def random_parameters(
    rng, width, *, n_layers=1, n_heads=1, d_qk=3, d_ff=5, n_outputs=2, layer_norm=False
):
    """Gaussian parameters of every shape the model has, without an embedding."""
    shapes = {"readout": (width, n_outputs), "readout_bias": (n_outputs,)}
    for layer in range(n_layers):
        matrices = {
            "query": (width, n_heads * d_qk),
            "key": (width, n_heads * d_qk),
            "value": (width, width),
            "ffn_in": (width, d_ff),
            "ffn_out": (d_ff, width),
        }
        if n_heads > 1 or layer_norm:
            matrices["output"] = (width, width)
        for name, shape in matrices.items():
            shapes[f"blocks.{layer}.{name}"] = shape
            if layer_norm:
                shapes[f"blocks.{layer}.{name}_bias"] = shape[1:]
        if layer_norm:
            for name in ("norm1_weight", "norm1_bias", "norm2_weight", "norm2_bias"):
                shapes[f"blocks.{layer}.{name}"] = (width,)
    return {name: 0.6 * rng.standard_normal(shape) for name, shape in shapes.items()}
