"""Random samples, targets and weights, in every container and of every magnitude."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import torch
from hypothesis import strategies as st

# what a channel, a target or a weight is multiplied by; the first is what shrinking arrives at
MAGNITUDES = [1.0, 1e-300, 1e300, 5e-324, 1.7e308, 1e-40, 3e38, 1e150, 1e-150, 1e8, 0.0]
OFFSETS = [0.0, 0.0, 0.0, 1e8, -1e16, 1e300, 1e-308]
FLOATS = ["f8", "f8", "f4", "f2", ">f8", "longdouble"]
INTEGERS = ["i8", "i1", "u1", "u8", "?", "i4"]


def rarely(draw, probability=4):
    """Return True in one case of `probability`; False is what shrinking arrives at."""
    return draw(st.integers(0, probability - 1)) == probability - 1


def draw_numbers(draw, rng, shape, dtypes=(*FLOATS, *INTEGERS)):
    """Return an array of random numbers, its last axis of various magnitudes."""
    values = rng.standard_normal(shape)
    if rarely(draw, 3):
        magnitudes = draw(st.lists(st.sampled_from(MAGNITUDES), min_size=1, max_size=3))
        size = shape if rarely(draw) else shape[-1:] if rarely(draw, 2) else ()
        with np.errstate(over="ignore"):
            values = np.clip(values * rng.choice(magnitudes, size=size), -1.79e308, 1.79e308)
    if rarely(draw, 5):
        values = values + draw(st.sampled_from(OFFSETS))
    if rarely(draw, 6):
        values[..., rng.integers(shape[-1])] = values.flat[0] if values.size else 0.0
    if rarely(draw, 6):
        values[...] = values[:1]  # all samples alike
    if rarely(draw, 6):
        values[..., -1] = values[..., 0]
    dtype = draw(st.sampled_from(dtypes)) if rarely(draw, 2) else "f8"
    return cast(values, dtype)


def cast(values, dtype):
    """Return values in another dtype, within its range."""
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return values > 0
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        if dtype.kind == "f":
            limits = np.finfo(dtype)
            return np.clip(values, float(max(limits.min, -1.79e308)),
                           float(min(limits.max, 1.79e308))).astype(dtype)  # fmt: skip
        limits = np.iinfo(dtype)
        return np.clip(np.round(3 * values), limits.min, limits.max // 2).astype(dtype)


def draw_array_layout(draw, values):
    """Return the same numbers in another memory layout."""
    layout = draw(st.sampled_from(["C", "F", "strided", "reversed", "readonly", "swapped"]))
    if layout == "F":
        return np.asfortranarray(values)
    if layout == "strided":
        wide = np.zeros((*values.shape[:-1], 2 * values.shape[-1]), values.dtype)
        wide[..., ::2] = values
        return wide[..., ::2]
    if layout == "reversed":
        return values[::-1].copy()[::-1]
    if layout == "readonly":
        values = values.copy()
        values.flags.writeable = False
    if layout == "swapped" and values.ndim == 3:
        return np.ascontiguousarray(values.swapaxes(0, 1)).swapaxes(0, 1)
    return values


def draw_container(draw, values):
    """Return an array of numbers as a user may have it."""
    if not rarely(draw, 2):
        return draw_array_layout(draw, values) if rarely(draw, 2) else values
    kinds = ["list", "object", "torch"]
    if values.ndim == 2:
        kinds += ["pandas", "polars", "pandas with integer names", "torch with gradient"]
    if values.ndim == 1:
        kinds += ["series", "column"]
    kind = draw(st.sampled_from(kinds))
    if kind == "list":
        return values.tolist()
    if kind == "object":
        return values.astype(object)
    if kind == "series":
        return pd.Series(
            values.astype(values.dtype.newbyteorder("=")), index=range(7, 7 + len(values))
        )
    if kind == "column":
        return values[:, None]
    native = values.astype(
        "f8" if values.dtype == np.longdouble else values.dtype.newbyteorder("=")
    )
    if kind.startswith("torch"):
        tensor = torch.from_numpy(native)
        floating = tensor.is_floating_point() and "gradient" in kind
        return tensor.requires_grad_() if floating else tensor
    names = [f"f{i}" for i in range(values.shape[1])]
    if kind == "polars":
        return pl.DataFrame(
            native.astype("f4") if native.dtype == np.float16 else native, schema=names
        )
    return pd.DataFrame(native, columns=names if kind == "pandas" else None)


def draw_list(draw, samples):
    """Return samples of unequal length as a user may have them."""
    kind = draw(
        st.sampled_from(["list", "list", "tuple", "object array", "torch", "frames", "mixed"])
    )
    if kind == "tuple":
        return tuple(samples)
    if kind == "object array":
        array = np.empty(len(samples), dtype=object)
        array[:] = samples
        return array
    if kind == "torch":
        return [torch.from_numpy(np.ascontiguousarray(s, dtype="f8")) for s in samples]
    if kind == "frames":
        return [pd.DataFrame(s) for s in samples]
    if kind == "mixed":
        return [
            cast(s, "f4") if i % 2 and np.isfinite(s).all() else s for i, s in enumerate(samples)
        ]
    return samples


def draw_labels(draw, rng, n):
    """Return n class labels."""
    kind = draw(
        st.sampled_from(
            ["int", "str", "bool", "object", "whole floats", "big", "pandas", "bytes-free"]
        )
    )
    k = draw(st.sampled_from([2, 2, 2, 3, 1, 5, max(n, 1)]))
    index = rng.integers(k, size=n)
    if not rarely(draw, 5):
        index[: min(n, k)] = np.arange(min(n, k))
    if kind == "str":
        return np.array(["b", "a", "ü", "", "long label"])[index % 5]
    if kind == "bool":
        return index % 2 == 1
    if kind == "object":
        return np.array(["x", "y", "z"], dtype=object)[index % 3]
    if kind == "whole floats":
        return index.astype(draw(st.sampled_from(["f8", "f4"]))) - 1
    if kind == "big":
        return index * (2**60) - 2**62
    if kind == "pandas":
        letters = np.array(list("pqrst"))[index % 5]
        return pd.Series(letters, dtype=draw(st.sampled_from(["object", "category", "string"])))
    return index.tolist() if rarely(draw, 3) else index


def draw_weights(draw, rng, n):
    """Return usable sample weights, or None."""
    kind = draw(st.sampled_from(["none", "none", "none", "ones", "zeros among", "random", "extreme",
                                 "tiny", "huge", "scalar", "integers", "one"]))  # fmt: skip
    if kind == "none":
        return None
    if kind == "scalar":
        return draw(st.sampled_from([1.0, 1e-300, 7]))
    weight = np.ones(n)
    if kind == "zeros among":
        weight[rng.random(n) < 0.5] = 0.0
    elif kind == "random":
        weight = rng.random(n) + 1e-3
    elif kind == "extreme":
        weight = rng.choice([1e-300, 1.0, 1e300, 5e-324], size=n)
    elif kind in ("tiny", "huge"):
        weight *= 5e-324 if kind == "tiny" else 1.7e308
    elif kind == "integers":
        weight = rng.integers(1, 9, size=n)
    elif kind == "one":
        weight[1:] = 0.0
    if not weight.any():
        weight[0] = 1.0
    return draw(
        st.sampled_from([weight, weight.tolist(), pd.Series(weight), cast(weight, "f4") + 1])
    )
