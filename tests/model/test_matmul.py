"""Products by every library against the same products through ``torch.matmul`` in float64."""

import itertools

import pytest
import torch
from torch.testing import assert_close

from sklearn_restf._model import add_reduction, matmul, product, products, silent

SIZES = [1, 7, 64, 130]


@pytest.fixture
def one_thread(set_torch_threads):
    set_torch_threads(1)


@pytest.fixture(params=["one_dnn", "numpy", "torch"])
def route(request, monkeypatch, one_thread):
    """Every way a product can take."""
    if request.param == "torch":
        monkeypatch.setattr(matmul, "_numpy_serves", lambda a: False)
    if request.param == "one_dnn":
        monkeypatch.setattr(matmul, "SMALL_PRODUCT", 0)
        monkeypatch.setattr(matmul, "SMALL_REDUCTION", 0)
        monkeypatch.setattr(matmul, "NARROW", 0)
    else:
        monkeypatch.setattr(matmul, "_one_dnn", lambda: None)
    return request.param


def random_factor(rows, columns, dtype, transposed):
    generator = torch.Generator().manual_seed(rows + 1000 * columns)
    shape = (columns, rows) if transposed else (rows, columns)
    factor = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    return factor.T if transposed else factor


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("transposed", [False, True])
def test_product(route, dtype, transposed):
    for n, k, m in itertools.product([1, 50, 400], SIZES, SIZES):
        a, b = random_factor(n, k, dtype, False), random_factor(k, m, dtype, transposed)
        tolerance = 1e-12 if dtype == torch.float64 else 1e-6
        with torch.no_grad():
            found = product(a, b)
        exact = a.double() @ b.double()
        assert_close(found.double(), exact, rtol=tolerance, atol=tolerance * float(exact.norm()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_reduction_is_added_to_the_target(route, dtype):
    for n, m, k in itertools.product([1, 50, 400], SIZES, SIZES):
        a, b = random_factor(n, m, dtype, False), random_factor(n, k, dtype, False)
        target = random_factor(m, k, dtype, False)
        exact = target.double() + a.double().T @ b.double()
        tolerance = 1e-12 if dtype == torch.float64 else 1e-6
        with torch.no_grad():
            add_reduction(target, a, b)
        assert_close(target.double(), exact, rtol=tolerance, atol=tolerance * float(exact.norm()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_many_products(route, dtype):
    for n, k, m in itertools.product([1, 50], SIZES, SIZES):
        a = torch.stack([random_factor(n, k, dtype, False) for _ in range(3)])
        b = torch.stack([random_factor(m, k, dtype, False) for _ in range(3)]).transpose(1, 2)
        memory = torch.full((3, n * m + 5), torch.nan, dtype=dtype)  # like views of parameters
        found = products(a, b, out=memory[:, 2:-3].view(3, n, m))
        exact = a.double() @ b.double()
        tolerance = 1e-12 if dtype == torch.float64 else 1e-6
        assert_close(found.double(), exact, rtol=tolerance, atol=tolerance * float(exact.norm()))
        assert torch.equal(memory[:, 2:-3].view(3, n, m), found)
        assert memory[:, :2].isnan().all()
        assert memory[:, -3:].isnan().all()


def test_overflow_is_silent_and_not_finite(route):
    a = torch.full((2, 3, 3), 1e200, dtype=torch.float64)
    assert silent(products)(a, a).isinf().all()
    assert silent(product)(a[0], a[0]).isinf().all()


def test_numpy_serves_one_thread_only(one_thread):
    a = torch.zeros(2, 2)
    assert matmul._numpy_serves(a)
    torch.set_num_threads(2)
    assert not matmul._numpy_serves(a)


def test_an_entry_that_changed_is_not_used(monkeypatch):
    def entry(*args):
        raise TypeError("other arguments")

    find = matmul._one_dnn.__wrapped__
    assert (find() is not None) is torch.backends.mkldnn.is_available()
    monkeypatch.setattr(torch.ops.mkldnn._linear_pointwise, "default", entry)
    assert find() is None


@pytest.mark.skipif(matmul._one_dnn() is None, reason="this build of torch has no oneDNN")
def test_large_float32_products_go_to_one_dnn(monkeypatch):
    calls = []
    entry = matmul._one_dnn()
    monkeypatch.setattr(matmul, "_one_dnn", lambda: lambda *args: calls.append(1) or entry(*args))
    for dtype, size, expected in (
        (torch.float32, 200, 2),
        (torch.float32, 20, 0),
        (torch.float64, 200, 0),
    ):
        calls.clear()
        a = torch.randn(size, size, dtype=dtype)
        product(a, a)
        add_reduction(torch.zeros_like(a), a, a)
        assert len(calls) == expected
