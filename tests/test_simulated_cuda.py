"""The CUDA device that the CPU plays is as strict as a real one."""

import pytest
import torch

from tests.simulated_cuda import simulated_cuda


@pytest.fixture(autouse=True)
def device(monkeypatch):
    if torch.cuda.is_available():
        pytest.skip("there is a real device")
    with simulated_cuda(monkeypatch):
        yield


def captured(function):
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin()
    try:
        function()
    finally:
        graph.capture_end()
    return graph


@pytest.mark.parametrize("operation", [
    lambda here, there: here + there,
    lambda here, there: torch.where(here > 0, here, there),
    lambda here, there: torch.mul(here, 2.0, out=there),
    lambda here, there: here.index_select(0, there.long()),
    lambda here, there: there[here.long()],
])  # fmt: skip
def test_two_devices_in_one_operation_are_an_error(operation):
    with pytest.raises(RuntimeError, match="same device"):
        operation(torch.ones(3, device="cuda"), torch.ones(3))


def test_the_host_reads_by_copies_only():
    here = torch.arange(3.0, device="cuda")
    with pytest.raises(TypeError, match="cpu"):
        here.numpy()
    assert (here.device.type, here.is_cuda, here.is_cpu) == ("cuda", True, False)
    assert here.cpu().numpy().tolist() == here.tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("wait", [
    lambda x: x[0].item(),
    lambda x: float(x.sum()),
    lambda x: bool(x.any()),
    lambda x: x.cpu(),
    lambda x: x.copy_(torch.zeros(3)),
    lambda x: torch.nonzero(x),
    lambda x: x[x > 0],
    lambda x: torch.tensor([1.0], device="cuda"),
])  # fmt: skip
def test_a_graph_under_capture_must_not_wait(wait):
    x = torch.ones(3, device="cuda")
    wait(x)
    with pytest.raises(RuntimeError, match="capturing"):
        captured(lambda: wait(x))
    torch.cuda.set_sync_debug_mode("error")
    try:
        with pytest.raises(RuntimeError, match="synchronizing"):
            wait(x)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_graph_repeats_its_operations_on_the_same_memory():
    x, y = torch.ones(2, device="cuda"), torch.zeros(2, device="cuda")
    factor = [2.0]

    def work():
        fresh = torch.zeros(2, device="cuda")
        fresh.add_(x[:1], alpha=factor[0])
        torch.add(y, fresh, out=y)
        x.mul_(3.0)

    graph = captured(work)
    factor[0] = 100.0  # what Python computed stays as it was
    x.fill_(1.0)
    y.zero_()
    graph.replay()
    graph.replay()
    assert (x.tolist(), y.tolist()) == ([9.0, 9.0], [8.0, 8.0])


def test_a_graph_must_not_outlive_its_memory():
    memory = {"x": torch.ones(2, device="cuda")}
    graph = captured(lambda: memory["x"].add_(1.0))
    graph.replay()
    del memory["x"]
    with pytest.raises(RuntimeError, match="given back"):
        graph.replay()
