"""One scalar function for every index, on whatever device its arrays are: a compiled loop, or a kernel on a GPU.

The functions are those that the CPU runs: numba compiles them once more, for the GPU. With `exact`, products and sums
are rounded one by one there as well, so that games are the same to the bit; where speed matters more, they are fused.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from slipstream.errors import MachineError
from slipstream.system.numba_compile import twin

BLOCK = 128
_exact = [False]
"""Whether what is being compiled must round as the CPU does."""
_capturing = threading.Lock()
"""A capture begins by waiting for the whole GPU, which would break one that another thread has begun."""


@dataclass(frozen=True, eq=False)
class EmptyArray:
    """Memory that functions work in, zero at first. Whatever it holds, the results are the same: nobody saves it."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class KernelCall:
    """A function `one(index, *args)` for every index below `count`; arrays and rooms are shared with other work."""

    one: Callable[..., Any]
    count: int
    args: tuple[Any, ...]


@dataclass(frozen=True)
class OnDevice:
    """How a game is played on a GPU: a step of every env, and what is done before a rollout and after each step."""

    step: KernelCall
    """Its arguments are followed by the action and what is written."""
    before: KernelCall | None = None
    after: KernelCall | None = None


def launch(
    loop: Callable[..., Any], one: Callable[..., Any], count: int, args: Sequence[Any], *, exact: bool = False,
    block: int = BLOCK,
) -> None:  # fmt: skip
    """Run `one(index, *args)` for every index below `count`; on the CPU by `loop(*args)`, which does the same.

    Tensors among the arguments say where: all are on the CPU, or all on one GPU, whose current stream is used, so that
    launches can be captured in a graph once they have been made before. What is none stays a number.
    """
    if not any(getattr(arg, "is_cuda", False) for arg in args):
        loop(*(arg.numpy() if hasattr(arg, "is_cuda") else arg for arg in args))
        return
    import torch

    cuda = gpu_compiler()
    given: Any = tuple(cuda.as_cuda_array(arg, sync=False) if hasattr(arg, "is_cuda") else arg for arg in args)
    stream = cuda.external_stream(torch.cuda.current_stream().cuda_stream)
    _exact[0] = exact
    try:
        _kernel(one, exact)[-(-count // block), block, stream](count, given)
    finally:
        _exact[0] = False


@dataclass(frozen=True)
class Graph:
    """Work that was captured, and what does it: a graph keeps none of the tensors that were made outside of it."""

    graph: Any
    work: Callable[[], None]

    def replay(self) -> None:
        """Start all of it once more, on the current stream."""
        self.graph.replay()


def capture(work: Callable[[], None], tries: int = 0, changed: Sequence[Any] = ()) -> Graph:
    """Capture what `work` starts as a CUDA graph, after so many tries of it; then `changed` is put back.

    In a try, kernels are compiled and libraries settle on their ways, which cannot be done within a capture. It is made
    on the current stream, or on one of its own where that is the default one. Other threads may go on meanwhile.
    """
    import torch

    now: Any = torch.cuda.current_stream()
    stream: Any = torch.cuda.Stream() if now == torch.cuda.default_stream() else now  # type: ignore[no-untyped-call]
    kept = [tensor.clone() for tensor in changed]
    stream.wait_stream(now)
    with torch.cuda.stream(stream):
        for _ in range(tries):
            work()
        for tensor, old in zip(changed, kept, strict=True):
            tensor.copy_(old)
        with _capturing:
            stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                work()
    now.wait_stream(stream)
    return Graph(graph, work)


cuda: Any = None
one: Any = None
"""What `_at_index` calls: each kernel is a twin of it that has its own."""


def _at_index(count: int, args: Any) -> None:
    """Call a function for the index of this thread."""
    index = cuda.grid(1)
    if index < count:
        one(index, *args)


@cache
def _kernel(function: Any, exact: bool) -> Any:
    """The kernel of a function, from the cache if it was compiled before, which tells kernels apart by their names."""
    compiler, plain = gpu_compiler(), getattr(function, "py_func", function)
    name = f"{plain.__module__}.{plain.__qualname__}{'_exact' if exact else ''}"
    ours = name.startswith("slipstream.")  # only of our own sources is it known when they change
    at_index = twin(_at_index, name, cuda=compiler, one=function)
    return compiler.jit(at_index, lto=False, cache=ours)  # the linker's own code would fuse what must not be


@cache
def gpu_compiler() -> Any:
    """`numba.cuda`, taught two things: to round exactly when asked to, and what `np.floor` is."""
    if not hasattr(np, "row_stack"):
        setattr(np, "row_stack", np.vstack)  # noqa: B010 (numba-cuda asks for a name that NumPy 2.5 has dropped)
    try:
        from numba import cuda
        from numba.core.event import trigger_event
        from numba.cuda import ufuncs
        from numba.cuda.cudadrv import nvvm
    except ImportError as error:
        raise MachineError(
            f"Games on the GPU need numba-cuda: {error}.", 'pip install -c constraints.txt "slipstream[gpu]"'
        ) from error
    warnings.filterwarnings("ignore", message=".*under-utilization")  # small launches are meant
    plain: Any = nvvm.compile_ir

    def compile_rounding(llvmir: Any, **options: Any) -> Any:
        with trigger_event("numba:compile", {}):  # as numba does it on the CPU: whoever waits long is told
            return plain(llvmir, **({"fma": False} if _exact[0] else {}), **options)

    def floor(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.call(builder.module.declare_intrinsic("llvm.floor", [args[0].type]), args)

    nvvm.compile_ir = compile_rounding
    ufuncs.ufunc_db()[np.floor] = {"f->f": floor, "d->d": floor}
    return cuda
