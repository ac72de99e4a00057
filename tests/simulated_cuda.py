"""A CUDA device played by the CPU, for machines without one.

Tensors of the device are wrapped, so that what would fail on a GPU fails here: operations on
tensors of two devices, NumPy's reading of device memory, whatever waits for the device while a
graph is captured. A captured graph repeats the operations it saw on the memory they had, as
CUDA does: numbers that Python computed stay as they were, and memory that was given back
meanwhile is an error. What is not played: speed, streams, the amount of memory, rounding.
"""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import torch
import torch._dynamo  # modes import it, and it looks at what is replaced below
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map_only

CUDA, CPU = torch.device("cuda:0"), torch.device("cpu")
# what makes the host wait: it needs numbers, or a shape that depends on numbers
WAITS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "unique_dim"}
TRANSFERS = {"copy_"}  # between devices


class DeviceTensor(torch.Tensor):
    """A tensor that says it is on the device; `inner` has its numbers."""

    @staticmethod
    def __new__(cls, inner):
        layout = {"strides": inner.stride(), "storage_offset": inner.storage_offset()}
        wrapped = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, device=CPU, **layout
        )
        wrapped.inner = inner
        return wrapped

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), options=None):
        return _call(function, arguments, options or {})

    __torch_function__ = torch._C._disabled_torch_function_impl


def _on_device(value):
    return isinstance(value, DeviceTensor)


def _tensors(value):
    return [leaf for leaf in tree_flatten(value)[0] if isinstance(leaf, torch.Tensor)]


def _inner(value):
    return tree_map_only(DeviceTensor, lambda tensor: tensor.inner, value)


class _Machine:
    """What the device is doing."""

    capturing = None  # the graph
    creates = False  # new tensors on the device
    raises_when_waiting = False

    def wait(self, reason):
        if self.capturing is not None:
            raise RuntimeError(f"operation not permitted when stream is capturing: {reason}")
        if self.raises_when_waiting:
            raise RuntimeError(f"called a synchronizing CUDA operation: {reason}")


machine = _Machine()


def _call(function, arguments, options):
    """Run one operation of ATen."""
    tensors = _tensors((arguments, options))
    here = [v for v in tensors if _on_device(v)]
    if not here and not (machine.creates and not tensors):
        return function(*arguments, **options)
    name = function.overloadpacket.__name__
    _check_devices(name, arguments, tensors)
    if name in WAITS or (name.startswith("index") and _boolean_index(arguments)):
        machine.wait(name)
    arguments_, options_ = _inner(arguments), _inner(options)
    result = function(*arguments_, **options_)
    if name == "_local_scalar_dense" or (here and not _on_device(here[0])):
        return result
    if name in TRANSFERS and not _on_device(arguments[0]):
        return arguments[0]
    wrapped = tree_map_only(torch.Tensor, DeviceTensor, result)
    if machine.capturing is not None:
        elsewhere = [tensor for tensor in tensors if not _on_device(tensor)]
        machine.capturing.record(function, arguments_, options_, result, elsewhere)
    return return_and_correct_aliasing(function, arguments, options, wrapped)


def _check_devices(name, arguments, tensors):
    elsewhere = [v for v in tensors if not _on_device(v)]
    if name in TRANSFERS:
        if elsewhere:
            machine.wait(f"{name} between devices")
        return
    if name.startswith("index") and _on_device(arguments[0]) and isinstance(arguments[1], list):
        indices = {id(v) for v in arguments[1]}
        if any(id(v) in indices for v in elsewhere):
            machine.wait("indices are copied to the device")
        elsewhere = [v for v in elsewhere if id(v) not in indices]
    if any(v.ndim > 0 for v in elsewhere):
        raise RuntimeError(
            f"{name}: Expected all tensors to be on the same device, but found at least two "
            "devices, cuda:0 and cpu!"
        )


def _boolean_index(arguments):
    indices = arguments[1] if len(arguments) > 1 and isinstance(arguments[1], list) else []
    return any(v is not None and v.dtype in (torch.bool, torch.uint8) for v in indices)


class _Transfer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, device):
        ctx.device = CUDA if _on_device(tensor) else CPU
        if device.type == "cuda":
            machine.wait("copy to the device")
            return DeviceTensor(tensor.detach().clone())
        machine.wait("copy to the host")
        return tensor.inner.clone()

    @staticmethod
    def backward(ctx, gradient):
        return _move(gradient, ctx.device), None


def _move(tensor, device):
    if device is None or (device.type == "cuda") == _on_device(tensor):
        return tensor
    return _Transfer.apply(tensor, device)


class _Operations(TorchDispatchMode):
    """Sees the operations that no tensor of the device takes part in."""

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        return _call(function, arguments, options or {})


class _Functions(TorchFunctionMode):
    """Translates what names the device."""

    def __torch_function__(self, function, types, arguments=(), options=None):
        options = dict(options or {})
        name = getattr(function, "__name__", "")
        of_tensor = arguments and isinstance(arguments[0], torch.Tensor)
        if of_tensor and name == "__get__":
            return self._attribute(function, arguments)
        if name == "__set__" and _on_device(arguments[1]) and self._name(function) == "data":
            arguments[0].inner = arguments[1].inner
        if of_tensor and name in ("to", "cpu", "cuda"):
            return self._to(name, *arguments, **options)
        if of_tensor and _on_device(arguments[0]):
            if name in ("numpy", "__array__", "data_ptr"):
                raise TypeError("can't convert cuda:0 device type tensor to numpy. Use .cpu()")
            if name == "tolist":
                return _move(arguments[0], CPU).tolist()
        device = options.pop("device", None)
        # autograd makes the zeros of what was not used
        differentiates = function is torch.autograd.grad and any(
            map(_on_device, _tensors(arguments))
        )
        if not differentiates and (device is None or torch.device(device).type != "cuda"):
            return function(*arguments, **options)
        if name in ("tensor", "as_tensor"):
            return _move(function(*arguments, **options), CUDA)
        machine.creates = True
        try:
            return function(*arguments, **options)
        finally:
            machine.creates = False

    @staticmethod
    def _name(function):
        return resolve_name(function).split(".")[-2]

    def _attribute(self, function, arguments):
        here = _on_device(arguments[0])
        attribute = self._name(function)
        if here and attribute in ("device", "is_cuda", "is_cpu"):
            return {"device": CUDA, "is_cuda": True, "is_cpu": False}[attribute]
        return function(*arguments)

    @staticmethod
    def _to(name, tensor, *arguments, **options):
        if name != "to":
            return _move(tensor, CPU if name == "cpu" else CUDA)
        if arguments and isinstance(arguments[0], torch.Tensor):
            device, dtype = (CUDA if _on_device(arguments[0]) else CPU), arguments[0].dtype
        else:
            device, dtype, *_ = torch._C._nn._parse_to(*arguments, **options)
        moved = _move(tensor, device)
        if dtype is not None and dtype != moved.dtype:
            moved = moved.to(dtype=dtype)
        return moved.clone() if options.get("copy") and moved is tensor else moved


class _Outside:
    """A tensor that a graph works on and does not own."""

    def __init__(self, tensor):
        self.storage = StorageWeakRef(tensor.untyped_storage())
        self.dtype = tensor.dtype
        self.layout = tensor.storage_offset(), tensor.shape, tensor.stride()

    def tensor(self):
        """Return it; an error once its memory was given back."""
        storage = None
        if not self.storage.expired():
            storage = torch.UntypedStorage._new_with_weak_ptr(self.storage.cdata)
        if storage is None:
            raise RuntimeError("a graph works on memory that was given back")
        return torch.empty(0, dtype=self.dtype).set_(storage, *self.layout)


class Graph:
    """Plays ``torch.cuda.CUDAGraph``."""

    def __init__(self):
        self.operations, self.made = [], set()

    def capture_begin(self, **options):
        """From now on operations are recorded."""
        machine.capturing = self

    def capture_end(self):
        """Let go of what is not the graph's own."""
        machine.capturing = None

        def own(tensor):
            return tensor if tensor.untyped_storage()._cdata in self.made else _Outside(tensor)

        self.operations = tree_map_only(torch.Tensor, own, self.operations)

    def record(self, function, arguments, options, result, elsewhere):
        """Keep one operation, with the numbers of the host that took part."""
        read = {t.untyped_storage()._cdata for t in _tensors((arguments, options))}
        self.made |= {t.untyped_storage()._cdata for t in _tensors(result)} - read
        self.made |= {t.untyped_storage()._cdata for t in elsewhere}
        # aliases: the shape of a tensor may be changed in place later
        operation = tree_map_only(torch.Tensor, torch.Tensor.detach, (arguments, options, result))
        self.operations.append((function, *operation))

    def replay(self):
        """Repeat the operations on the same memory."""
        for operation in self.operations:
            function, arguments, options, result = tree_map_only(
                _Outside, _Outside.tensor, operation
            )
            again = function(*arguments, **options)
            for old, new in zip(_tensors(result), _tensors(again), strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def _inference_mode(mode=True):
    """Leave gradients out; torch's own refuses views of wrapped tensors."""
    return torch.no_grad() if mode else contextlib.nullcontext()


def _sync_debug_mode(mode):
    machine.raises_when_waiting = mode == "error"


@contextlib.contextmanager
def simulated_cuda(patch):
    """Have a CUDA device within; `patch` is a ``pytest.MonkeyPatch``."""
    stream = SimpleNamespace(wait_stream=lambda other: None, synchronize=lambda: None)
    memory = 2**33
    for name, value in {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "synchronize": lambda device=None: None,
        "empty_cache": lambda: None,
        "mem_get_info": lambda device=None: (memory // 2, memory),
        "memory_allocated": lambda device=None: 0,
        "max_memory_allocated": lambda device=None: 0,
        "reset_peak_memory_stats": lambda device=None: None,
        "get_device_name": lambda device=None: "a simulated device",
        "set_sync_debug_mode": _sync_debug_mode,
        "is_current_stream_capturing": lambda: machine.capturing is not None,
        "Stream": lambda device=None: stream,
        "current_stream": lambda device=None: stream,
        "stream": lambda which: contextlib.nullcontext(),
        "device": lambda which: contextlib.nullcontext(),
        "CUDAGraph": Graph,
    }.items():
        patch.setattr(torch.cuda, name, value)
    compatible = torch._has_compatible_shallow_copy_type

    def same_kind(tensor, other):
        return _on_device(tensor) == _on_device(other) and compatible(tensor, other)

    patch.setattr(torch, "inference_mode", _inference_mode)
    patch.setattr(torch, "_has_compatible_shallow_copy_type", same_kind)
    with _Functions(), _Operations():
        yield
