"""Launches a scalar function for every index on the device of its arrays: in a compiled loop, or as a GPU kernel.

The functions are those that the CPU runs; numba compiles them again for the GPU. With `exact`, products and sums are
rounded separately there as well, so that games are the same bit for bit; otherwise they are fused for speed.
"""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from slipstream.errors import MachineError
from slipstream.system.numba_compile import compiled, compiled_here, twin

BLOCK = 128
_exact = [False]
"""Whether the kernel that is being compiled must round like the CPU."""
_capturing = threading.Lock()
"""A capture begins by synchronising with the GPU, which would break a capture by another thread."""


@dataclass(frozen=True, eq=False)
class EmptyArray:
    """Scratch memory of kernels, initially zero. Its contents do not affect results, so it is not saved."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class KernelCall:
    """A call of `one(index, *args)` for every index below `count`; arrays may be shared with other calls."""

    one: Callable[..., Any]
    count: int
    args: tuple[Any, ...]


@dataclass(frozen=True)
class OnDevice:
    """The kernels of a game: a step of every env, and optional ones before a rollout and after each step."""

    step: KernelCall
    """Its arguments are followed by the action and the output arrays."""
    before: KernelCall | None = None
    after: KernelCall | None = None


def launch(
    one: Callable[..., Any], count: int, args: Sequence[Any], *, exact: bool = False, block: int = BLOCK
) -> None:
    """Run `one(index, *args)` for every index below `count`.

    The tensors among the arguments determine the device: all are on the CPU, or all on one GPU. There the current
    stream is used, so launches can be captured in a graph after the first one, which compiles. Other arguments are
    passed as numbers.
    """
    parts = (part for arg in args for part in (arg if isinstance(arg, tuple) else (arg,)))
    device = next((part.get_device() for part in parts if getattr(part, "is_cuda", False)), None)
    if device is None:
        _loop(one)(count, tuple(_map_tensors(lambda tensor: tensor.numpy(), arg) for arg in args))
        return
    import torch

    cuda = gpu_compiler()
    given: Any = tuple(_map_tensors(lambda tensor: cuda.as_cuda_array(tensor, sync=False), arg) for arg in args)
    stream = cuda.external_stream(torch.cuda.current_stream(device).cuda_stream)
    _exact[0] = exact
    try:
        _kernel(one, exact)[-(-count // block), block, stream](count, given)
    finally:
        _exact[0] = False


def _map_tensors(convert: Callable[[Any], Any], arg: Any) -> Any:
    """An argument with every tensor converted, in NamedTuples too."""
    if isinstance(arg, tuple):
        members = (_map_tensors(convert, part) for part in arg)
        return type(arg)(*members) if hasattr(arg, "_fields") else tuple(members)
    return convert(arg) if hasattr(arg, "is_cuda") else arg


@dataclass(frozen=True)
class Graph:
    """A captured CUDA graph, and the function that it captured, which keeps its tensors alive."""

    graph: Any
    work: Callable[[], None]

    def replay(self) -> None:
        """Launch the graph on the current stream."""
        self.graph.replay()


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Collect garbage now and not within the block: freeing GPU memory of old objects would end a capture."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def capture(work: Callable[[], None], warmups: int = 0, changed: Sequence[Any] = ()) -> Graph:
    """Capture the launches of `work` as a CUDA graph, after `warmups` calls; then restore the tensors `changed`.

    Warm-up calls compile kernels and let libraries choose algorithms, which is not possible during a capture. The
    capture uses the current stream, or a new one if that is the default stream. Other threads may keep using the GPU.
    """
    import torch

    now: Any = torch.cuda.current_stream()
    stream: Any = torch.cuda.Stream() if now == torch.cuda.default_stream() else now  # type: ignore[no-untyped-call]
    saved = [tensor.clone() for tensor in changed]
    stream.wait_stream(now)
    with torch.cuda.stream(stream):
        for _ in range(warmups):
            work()
        for tensor, old in zip(changed, saved, strict=True):
            tensor.copy_(old)
        with _capturing, _without_garbage_collection():
            stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                work()
    now.wait_stream(stream)
    return Graph(graph, work)


cuda: Any = None
one: Any = None
"""Globals of `_at_index` and `_at_every_index`; each kernel and each loop is a copy with its own."""


def _at_index(count: int, args: Any) -> None:
    """Call a function with the index of this thread."""
    index = cuda.grid(1)
    if index < count:
        one(index, *args)


def _at_every_index(count: int, args: Any) -> None:
    """Call a function with every index."""
    for index in range(count):
        one(index, *args)


def _name(function: Any) -> tuple[str, bool]:
    """The name under which a function's loop and kernel are cached, and whether they are.

    The cache only notices changes in our own sources.
    """
    plain = getattr(function, "py_func", function)
    name = f"{plain.__module__}.{plain.__qualname__}"
    return name, name.startswith("slipstream.")


@cache
def _loop(function: Any) -> Any:
    """Return the compiled loop of a function on the CPU."""
    name, cached = _name(function)
    return (compiled if cached else compiled_here)(twin(_at_every_index, f"{name}_loop", one=function))


@cache
def _kernel(function: Any, exact: bool) -> Any:
    """Return the kernel of a function, from the cache if possible, which distinguishes kernels by name."""
    compiler, (name, cached) = gpu_compiler(), _name(function)
    at_index = twin(_at_index, f"{name}{'_exact' if exact else ''}", cuda=compiler, one=function)
    return compiler.jit(at_index, lto=False, cache=cached)  # link-time optimisation would fuse multiply-adds


@cache
def gpu_compiler() -> Any:
    """Return `numba.cuda`, patched to round exactly on request and to support `np.floor`."""
    if not hasattr(np, "row_stack"):
        setattr(np, "row_stack", np.vstack)  # noqa: B010 (numba-cuda uses a name that NumPy 2.5 removed)
    try:
        from numba import cuda
        from numba.core.event import trigger_event
        from numba.cuda import ufuncs
        from numba.cuda.cudadrv import nvvm
    except ImportError as error:
        raise MachineError(
            f"Games on the GPU need numba-cuda: {error}.", 'pip install -c constraints.txt "slipstream[gpu]"'
        ) from error
    warnings.filterwarnings("ignore", message=".*under-utilization")  # small launches are intended
    plain: Any = nvvm.compile_ir

    def compile_rounding(llvmir: Any, **options: Any) -> Any:
        with trigger_event("numba:compile", {}):  # as numba does on the CPU, for the notice that compiling takes long
            return plain(llvmir, **({"fma": False} if _exact[0] else {}), **options)

    def floor(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.call(builder.module.declare_intrinsic("llvm.floor", [args[0].type]), args)

    nvvm.compile_ir = compile_rounding
    ufuncs.ufunc_db()[np.floor] = {"f->f": floor, "d->d": floor}
    return cuda
