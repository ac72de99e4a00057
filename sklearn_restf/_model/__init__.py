"""The residual Transformer: equations, cheapest forward pass, gradient, losses, initial weights."""
