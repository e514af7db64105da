"""The server that runs one environment in another Python interpreter; `bridge.BridgeEnv` starts it.

It is run as a script by an interpreter that may be as old as Python 3.8, so it imports the standard library, NumPy and
the environment only. Two processes run it: the environment's own, and its supervisor, which ends the environment and
everything that it started (such as Java) when the parent closes its pipe or dies in any way.

The server first sends its process id. Then the parent sends one request at a time and waits for the reply. Each is a
header (kind, length) and a JSON object, which is empty for a step. Observations, actions and rewards are in shared
memory. Nothing is read from or written to stdin and stdout, which belong to the environment.
"""

from __future__ import annotations

import base64
import contextlib
import inspect
import json
import mmap
import os
import select
import signal
import struct
import sys
import time
import traceback
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Json = dict[str, Any]
    Path = tuple[Any, ...]

HEADER = struct.Struct("<BI")
"""The kind of a message and the length of its JSON text."""
MAKE, ATTACH, RESET, STEP, RENDER, CLOSE = range(6)
"""Requests."""
OK, ERROR = range(2)
"""Replies."""
GRACE_S = 1.5
"""When the parent is gone, the environment has this time to close before it is killed."""
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


class Pipes:
    """The two pipes to the parent."""

    def __init__(self, requests: int, replies: int) -> None:
        self._requests, self._replies = requests, replies

    def receive(self) -> tuple[int, Json]:
        """The next request; CLOSE at the end of the pipe."""
        header = self._read(HEADER.size)
        if header is None:
            return CLOSE, {}
        kind, size = HEADER.unpack(header)
        text = self._read(size) if size else b"{}"
        return (kind, json.loads(text.decode())) if text is not None else (CLOSE, {})

    def reply(self, kind: int, content: Json) -> None:
        """Send a reply in one piece."""
        text = json.dumps(content).encode() if content else b""
        rest = memoryview(HEADER.pack(kind, len(text)) + text)
        while rest:
            rest = rest[os.write(self._replies, rest) :]

    def _read(self, size: int) -> bytes | None:
        found = b""
        while len(found) < size:
            part = os.read(self._requests, size - len(found))
            if not part:
                return None
            found += part
        return found


class Server:
    """One environment, of gym or gymnasium, with the old or the new API."""

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._env: Any = None
        self._obs: list[tuple[Path, Json, Any]] = []
        """Path, description and array in shared memory of each part of an observation."""
        self._actions: Json = {}
        self._action_arrays: list[Any] = []
        self._mask: Any = None
        self._results: Any = None
        """Reward, terminated and truncated."""
        self._mask_of: Callable[[], Any] | None = None
        self._seeds_reset = self._options_reset = False

    def handle(self, kind: int, given: Json) -> Json:
        """Execute a request and return the content of the reply."""
        handlers = {
            MAKE: self._make,
            ATTACH: self._attach,
            RESET: self._reset,
            STEP: self._step,
            RENDER: self._render,
        }
        return handlers[kind](given)

    def close(self) -> None:
        """Close the environment."""
        if self._env is not None and hasattr(self._env, "close"):
            self._env.close()

    def _make(self, given: Json) -> Json:
        """Make the environment and describe its spaces."""
        if given["modules"]:
            sys.path.append(given["folder"])
        try:
            import_module("numpy")
            package = next((name for name in given["packages"] if find_spec(name) is not None), given["packages"][0])
            gym = import_module(package)
            for name in given["imports"]:
                import_module(name)
            for name in given["modules"]:
                if find_spec(name) is not None:
                    import_module(name)
        except ImportError as error:
            raise MissingPackage(str(error)) from error
        self._env = env = make_env(gym.make, given["id"], given["options"])
        parameters = inspect.signature(getattr(env, "unwrapped", env).reset).parameters
        any_keyword = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
        self._seeds_reset, self._options_reset = ("seed" in parameters or any_keyword), ("options" in parameters)
        mask_of = _attribute(env, "action_masks")
        self._mask_of = mask_of if callable(mask_of) else None
        self._actions = describe(env.action_space)
        observed = describe(env.observation_space)
        self._obs = [(path, part, None) for path, part in leaves(observed)]
        tasks = {name: _attribute(env, name) for name in ("tasks", "target")}
        return {
            "observation": observed,
            "action": self._actions,
            "masked": self._mask_of is not None,
            "attributes": {name: plain(value) for name, value in tasks.items() if value is not None},
            "render_fps": plain((getattr(env, "metadata", None) or {}).get("render_fps")),
            "python": ".".join(map(str, sys.version_info[:3])),
        }

    def _attach(self, given: Json) -> Json:
        """Map the shared memory; the parent sends where each array is."""
        import numpy as np

        memory = mmap.mmap(self._memory, given["nbytes"])
        os.close(self._memory)

        def view(place: Json) -> Any:
            count = 1
            for length in place["shape"]:
                count *= length
            flat = np.frombuffer(memory, np.dtype(place["dtype"]), count, place["offset"])
            return flat.reshape(place["shape"])

        arrays = [view(place) for place in given["obs"]]
        self._obs = [(path, part, arrays[k]) for k, (path, part, _) in enumerate(self._obs)]
        self._action_arrays = [view(place) for place in given["action"]]
        self._results = view(given["results"])
        self._mask = view(given["mask"]) if self._mask_of is not None else None
        return {}

    def _reset(self, given: Json) -> Json:
        seed, arguments = given.get("seed"), {}
        if seed is not None:
            if self._seeds_reset:
                arguments["seed"] = seed
            elif hasattr(self._env, "seed"):
                self._env.seed(seed)
        if self._options_reset and given.get("options") is not None:
            arguments["options"] = given["options"]
        result = self._env.reset(**arguments)
        has_info = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)
        obs, info = result if has_info else (result, {})
        return self._store(obs, info)

    def _step(self, _: Json) -> Json:
        arrays = iter(self._action_arrays)
        result = self._env.step(read_action(self._actions, arrays))
        if len(result) == 5:
            obs, reward, terminated, truncated, info = result
        else:
            obs, reward, done, info = result
            truncated = bool(done) and bool(info.get("TimeLimit.truncated", False))
            terminated = bool(done) and not truncated
        self._results[:] = float(reward), bool(terminated), bool(truncated)
        return self._store(obs, info)

    def _render(self, _: Json) -> Json:
        """The image that the env draws now; empty if it draws none."""
        env = self._env
        if not hasattr(env, "render"):
            return {}
        if _attribute(env, "render_mode") is None:  # the old API
            takes_mode = "mode" in inspect.signature(getattr(env, "unwrapped", env).render).parameters
            image = env.render(mode="rgb_array") if takes_mode else None
        else:
            image = env.render()
        if image is None or str(getattr(image, "dtype", "")) != "uint8" or image.ndim != 3:
            return {}
        return {"shape": list(image.shape), "data": base64.b64encode(image.tobytes()).decode()}

    def _store(self, obs: Any, info: Any) -> Json:
        for path, part, array in self._obs:
            write_leaf(path, part, find(obs, path), array)
        if self._mask_of is not None:
            self._mask[:] = self._mask_of()
        found = plain(info) if info else {}
        return found if isinstance(found, dict) else {}


def make_env(make: Callable[..., Any], name: str, options: Json) -> Any:
    """Make an environment; old packages take no `render_mode`, for they give it to `render`."""
    try:
        return make(name, **options)
    except TypeError as error:
        if "render_mode" not in options or "render_mode" not in str(error):
            raise
    return make(name, **{key: value for key, value in options.items() if key != "render_mode"})


class MissingPackage(Exception):
    """A package cannot be imported by this interpreter."""


def describe(space: Any) -> Json:
    """A space as JSON, read from its attributes, so that it may be of any package."""
    parts, kind = getattr(space, "spaces", None), type(space).__name__
    if parts is not None and kind != "OneOf":
        if hasattr(parts, "items"):
            return {"kind": "dict", "parts": [[str(key), describe(part)] for key, part in parts.items()]}
        return {"kind": "tuple", "parts": [describe(part) for part in parts]}
    if hasattr(space, "values") and hasattr(space, "n"):
        return {"kind": "enum", "values": [str(value) for value in space.values], "shape": [], "dtype": "int64"}
    if hasattr(space, "nvec"):
        nvec, start = space.nvec, getattr(space, "start", None)
        more = {} if start is None else {"start": start.tolist()}
        return {"kind": "multi_discrete", "nvec": nvec.tolist(), "shape": list(nvec.shape), "dtype": "int64", **more}
    if hasattr(space, "low") and hasattr(space, "high"):
        shape, dtype = [int(length) for length in space.shape], str(space.dtype)
        return {"kind": "box", "low": _bound(space.low), "high": _bound(space.high), "shape": shape, "dtype": dtype}
    if hasattr(space, "n"):
        if getattr(space, "shape", None):
            return {"kind": "multi_binary", "shape": [int(length) for length in space.shape], "dtype": "int8"}
        start = int(getattr(space, "start", 0))
        return {"kind": "discrete", "n": int(space.n), "start": start, "shape": [], "dtype": "int64"}
    return {"kind": "unsupported", "name": kind, "shape": [], "dtype": "int64"}


def _bound(values: Any) -> Any:
    """A bound of a Box: one number if all are equal."""
    first = values.flat[0] if values.size else values.dtype.type(0)
    return first.item() if (values == first).all() else values.tolist()


def leaves(described: Json, path: Path = ()) -> Iterator[tuple[Path, Json]]:
    """The parts of a described space that are neither dicts nor tuples, with their paths."""
    if described["kind"] == "dict":
        for key, part in described["parts"]:
            yield from leaves(part, (*path, key))
    elif described["kind"] == "tuple":
        for index, part in enumerate(described["parts"]):
            yield from leaves(part, (*path, index))
    else:
        yield path, described


def find(value: Any, path: Path) -> Any:
    """A part of a nested value."""
    for key in path:
        value = value[key]
    return value


def read_action(described: Json, arrays: Iterator[Any]) -> Any:
    """The action in shared memory, as the environment takes it."""
    kind = described["kind"]
    if kind == "dict":
        return {key: read_action(part, arrays) for key, part in described["parts"]}
    if kind == "tuple":
        return tuple(read_action(part, arrays) for part in described["parts"])
    array = next(arrays)
    if kind == "enum":
        return described["values"][int(array)]
    return int(array) if kind == "discrete" else array.copy()


def write_leaf(path: Path, described: Json, value: Any, array: Any) -> None:
    """Write a part of an observation to shared memory; its size must be that of the space."""
    if described["kind"] == "enum" and not isinstance(value, int):
        value = _code(path, value, described["values"])
    if not hasattr(value, "reshape"):
        import numpy as np

        value = np.asarray(value)
    if value.size != array.size:
        name, shape = "/".join(map(str, path)), list(value.shape)
        raise ValueError(f"The observation {name!r} has the shape {shape}, but its space has {described['shape']}.")
    array[...] = value.reshape(array.shape)


def _code(path: Path, value: Any, values: list[str]) -> Any:
    """The number of a word, or the number itself: MineRL's enumerations are either."""
    if getattr(getattr(value, "dtype", None), "kind", "U") != "U":
        return value
    word = str(value)
    if word not in values:
        raise ValueError(f"The observation {'/'.join(map(str, path))!r} is {word!r}, which is none of: {values}.")
    return values.index(word)


def plain(value: Any) -> Any:
    """A value as JSON; what JSON cannot hold is left out of dicts, and None elsewhere."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items() if part is None or plain(part) is not None}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if hasattr(value, "tolist") and getattr(value, "dtype", None) is not None and value.dtype.kind in "biufU":
        return value.tolist()
    return None


def _attribute(env: Any, name: str) -> Any:
    """An attribute of the env or of a wrapped env; None if it does not exist."""
    try:
        return env.get_wrapper_attr(name) if hasattr(env, "get_wrapper_attr") else getattr(env, name, None)
    except AttributeError:
        return None


def serve(requests: int, replies: int, memory: int) -> None:
    """The environment's process: answer requests until the parent sends CLOSE or is gone."""
    pipes, server = Pipes(requests, replies), Server(memory)
    pipes.reply(OK, {"pid": os.getpid()})
    while True:
        kind, given = pipes.receive()
        if kind == CLOSE:
            break
        try:
            content, answer = server.handle(kind, given), OK
        except (Exception, SystemExit) as error:
            bases = [one.__name__ for one in type(error).__mro__]
            content, answer = {"kinds": bases, "message": str(error), "report": traceback.format_exc()}, ERROR
        pipes.reply(answer, content)
    server.close()


def supervise(server: int, lifeline: int, wake: int) -> int:
    """Wait until the server ends or the parent is gone, end everything that the server started; return its exit code.

    That is minus the number of the signal if one killed it. `lifeline` is a pipe that ends with the parent, `wake` one
    that a signal about a child writes to.
    """
    code: int | None = None
    limit = float("inf")
    while code is None and time.monotonic() < limit:
        waiting = limit < float("inf")
        watched = [wake] if waiting else [wake, lifeline]
        ready = select.select(watched, [], [], max(0.0, limit - time.monotonic()) if waiting else None)[0]
        if lifeline in ready and not os.read(lifeline, 1):
            limit = time.monotonic() + GRACE_S
        if wake in ready:
            os.read(wake, 64)
        code = _reap(server)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(server, signal.SIGKILL)
    while True:  # what left the process group became a child of this process when its parent was killed
        for child in _children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return 0 if code is None else code
        if pid == server:
            code = _exit_code(status)


def _reap(server: int) -> int | None:
    """Reap the children that ended; the exit code of the server if it is one of them."""
    found = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        if pid == server:
            found = _exit_code(status)


def _exit_code(status: int) -> int:
    """The exit code of a process; minus the number of the signal that killed it."""
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _children() -> list[int]:
    """The child processes of this process; empty on systems without /proc."""
    own, found = os.getpid(), []
    for name in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                with open(f"/proc/{name}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
                if parent == own:
                    found.append(int(name))
    return found


def _prctl(option: int, value: int) -> None:
    """On Linux, set an attribute of this process."""
    if sys.platform.startswith("linux"):
        with contextlib.suppress(Exception):
            import ctypes

            ctypes.CDLL(None).prctl(option, value)


def end_with(code: int) -> None:
    """End this process with an exit code, or by a signal, without a core dump."""
    if code < 0:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(abs(code))


def main() -> None:
    """Start the environment's process and supervise it."""
    requests, replies, memory = (int(word) for word in sys.argv[1:4])
    for descriptor in (requests, replies, memory):
        os.set_inheritable(descriptor, False)
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    supervisor, server = os.getpid(), os.fork()
    if server:
        with contextlib.suppress(OSError):  # the child does the same; the first of them succeeds
            os.setpgid(server, server)
        for descriptor in (requests, replies, memory):
            os.close(descriptor)
        end_with(supervise(server, 0, wake))
    os.setpgid(0, 0)
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:
        os._exit(0)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.close(wake)
    os.close(woken)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    serve(requests, replies, memory)


if __name__ == "__main__":
    # Python puts the folder of a script first on its path. Modules there have names of packages, such as `gymnasium`.
    own = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [place for place in sys.path if os.path.abspath(place or ".") != own]
    main()
