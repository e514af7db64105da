"""A bridge to an environment in another Python interpreter, such as the real MineRL in Python 3.8.

`BridgeEnv` starts `bridge_server` in the interpreter that the flag `--python` names, and is a Gymnasium environment
here, so that every vector, adapter and fault handler treats it like any other. A step is one exchange over two pipes;
observations, actions and rewards are in anonymous shared memory.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
from gymnasium import spaces

from slipstream.contracts import Array
from slipstream.envs.adapters import bridge_server as server
from slipstream.envs.adapters.action_spaces import action_spec
from slipstream.errors import ConfigError, EnvEnded, EnvError, MachineError
from slipstream.system.slab import Field, Slab, allocate

CLOSE_S = 10.0
"""The environment has this time to close before it is killed."""
DEADLINE_S = 60.0
"""The interpreter has this time to start the server, and the environment for a step."""
SLOW_S = 600.0
"""The environment has this time at least to be made and to reset: Minecraft starts slowly."""
STOP_S = 5.0
"""A request that is under way when Ctrl-C or SIGTERM asks to stop has this time to end."""
POLL_MS = 100
MARK = "SLIPSTREAM_BRIDGE"
"""The variable by which all processes of an interpreter are found."""
NAMES = {
    server.MAKE: "make",
    server.ATTACH: "make",
    server.RESET: "reset",
    server.STEP: "step",
    server.RENDER: "render",
}
"""What a request calls."""
GYM_PACKAGES = ("gymnasium", "gym")
"""The packages that make an environment; the first that the interpreter has is used."""


class Enum(spaces.Discrete):
    """A choice of words, as MineRL's enumerations: actions and observations are the words themselves."""

    def __init__(self, values: Sequence[str]) -> None:
        super().__init__(len(values))
        self.values = tuple(values)


class ServerError(Exception):
    """The environment raised in its own interpreter; the message has its traceback."""


class BridgeEnv(gymnasium.Env[Any, Any]):
    """An environment that runs in the interpreter `python`."""

    def __init__(
        self,
        python: str,
        name: str,
        options: Mapping[str, Any],
        *,
        packages: Sequence[str] = GYM_PACKAGES,
        imports: Sequence[str] = (),
        modules: Sequence[str] = (),
        deadline_s: float = DEADLINE_S,
    ) -> None:
        """Start the interpreter and make the environment `name` there, after importing `imports` and `modules`.

        `modules` are those of the flag `--import`; one that the interpreter does not find is skipped there. A step that
        takes longer than `deadline_s` ends the environment.
        """
        self._process: subprocess.Popen[bytes] | None = None
        self._server, self._mark = 0, uuid.uuid4().hex
        slow_s = max(SLOW_S, deadline_s)
        self._limits_s = {server.STEP: deadline_s, server.MAKE: slow_s, server.RESET: slow_s}
        self._pipes = (-1, -1)
        self._python, self._broken = python, False
        self._slab: Slab | None = None
        memory = self._start()
        try:
            described = self._make(name, options, packages, imports, modules)
            self.observation_space = _space(described["observation"])
            self.action_space = _space(described["action"])
            self.metadata = {"render_fps": described["render_fps"]}
            for key, value in described["attributes"].items():  # `tasks` and `target`
                setattr(self, key, value)
            self._attach(memory, described)
        except BaseException:
            self._broken = True
            self.close()
            if self._slab is None:
                os.close(memory)
            raise

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        info = self._ask(server.RESET, {"seed": seed, "options": options})
        return self._read(), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step once: one request and one reply."""
        for path, described, array in self._action:
            value = server.find(action, path)
            array[...] = described["values"].index(str(value)) if described["kind"] == "enum" else value
        info = self._ask(server.STEP)
        reward, terminated, truncated = self._results.tolist()
        return self._read(), reward, bool(terminated), bool(truncated), info

    def render(self) -> Any:
        """The image that the environment draws; None if it draws none."""
        image = self._ask(server.RENDER)
        if not image:
            return None
        return np.frombuffer(base64.b64decode(image["data"]), np.uint8).reshape(image["shape"])

    def close(self) -> None:
        """Close the environment, then end its interpreter and everything that it started; may be called twice."""
        process, self._process = self._process, None
        if process is None:
            return
        if not self._broken:
            with contextlib.suppress(OSError):
                self._send(server.CLOSE)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(CLOSE_S)
        for descriptor in self._pipes:
            os.close(descriptor)
        self._end(process)
        if self._slab is not None:
            self._slab.close()

    def _start(self) -> int:
        """Start the interpreter; return the descriptor of the shared memory."""
        if os.name != "posix":
            raise MachineError("--python needs POSIX pipes.", "use it on Linux or macOS")
        memory = allocate(0)
        assert isinstance(memory, int)
        requests, replies = os.pipe(), os.pipe()
        given = (requests[0], replies[1], memory)
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
        clean[MARK] = self._mark
        try:
            self._process = subprocess.Popen(
                [self._python, server.__file__, *map(str, given)],
                stdin=subprocess.PIPE,
                stdout=2,  # what the environment prints goes to stderr
                env=clean,
                pass_fds=given,
                start_new_session=True,
            )
        except OSError as error:
            for descriptor in (requests[1], replies[0], memory):
                os.close(descriptor)
            raise ConfigError(
                f"--python {self._python} cannot be started: {error.strerror}.",
                "give the path of a Python interpreter, such as /opt/minerl/bin/python",
            ) from error
        finally:
            for descriptor in (requests[0], replies[1]):
                os.close(descriptor)
        self._pipes = requests[1], replies[0]
        self._replies = select.poll()
        self._replies.register(replies[0], select.POLLIN)
        return memory

    def _make(
        self,
        name: str,
        options: Mapping[str, Any],
        packages: Sequence[str],
        imports: Sequence[str],
        modules: Sequence[str],
    ) -> dict[str, Any]:
        request = {
            "id": name,
            "options": dict(options),
            "packages": list(packages),
            "imports": list(imports),
            "modules": list(modules),
            "folder": str(Path.cwd()),
        }
        started = False
        try:
            self._server = self._wait_for_reply("start", DEADLINE_S)["pid"]
            started = True
            return self._ask(server.MAKE, request)
        except EnvEnded as error:
            hint = error.hint if started else f"check that it is Python 3.8 or newer: {self._python} --version"
            raise EnvError(f"{error.message} That was before it made `{name}`.", hint) from None

    def _attach(self, memory: int, described: Mapping[str, Any]) -> None:
        """Lay out the shared memory for the spaces, and send the layout."""
        parts = {key: list(server.leaves(described[space])) for key, space in (("obs", "observation"), ("action",) * 2)}
        fields = {
            f"{key}/{number}": Field(tuple(part["shape"]), part["dtype"])
            for key, found in parts.items()
            for number, (_, part) in enumerate(found)
        }
        options = action_spec(self.action_space, "this env", masked=True).options if described["masked"] else 0
        fields |= {"results": Field((3,), "float64"), "mask": Field((options,), "uint8")}
        self._slab = slab = Slab(fields, memory)

        def place(name: str) -> dict[str, Any]:
            field = slab.fields[name]
            offset = slab.offset(name) if field.nbytes else 0
            return {"offset": offset, "shape": list(field.shape), "dtype": field.dtype}

        layout: dict[str, Any] = {key: [place(f"{key}/{k}") for k in range(len(of))] for key, of in parts.items()}
        self._ask(server.ATTACH, layout | {"nbytes": slab.nbytes, "results": place("results"), "mask": place("mask")})
        self._described, self._results = described["observation"], slab["results"]
        self._obs = [slab[f"obs/{k}"] for k in range(len(parts["obs"]))]
        self._action = [(path, part, slab[f"action/{k}"]) for k, (path, part) in enumerate(parts["action"])]
        if described["masked"]:
            mask = slab["mask"]
            self.action_masks = mask.copy
            """The mask after the last step, as an environment with masked actions has it."""

    def _ask(self, kind: int, content: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a request and wait for its reply."""
        if self._process is None:
            raise EnvError("The environment is closed.", "make a new one")
        try:
            self._send(kind, content)
        except BrokenPipeError:
            pass  # the end of the replies says the same
        except BaseException:  # interrupted
            self._broken = True
            raise
        return self._wait_for_reply(NAMES[kind], self._limits_s.get(kind, DEADLINE_S))

    def _wait_for_reply(self, what: str, limit_s: float) -> dict[str, Any]:
        try:
            answer, size = server.HEADER.unpack(self._receive(server.HEADER.size, what, limit_s))
            reply: dict[str, Any] = json.loads(self._receive(size, what, limit_s)) if size else {}
        except EOFError:
            self._broken = True
            raise EnvEnded(*self._how_it_ended()) from None
        except BaseException:  # interrupted between request and reply, or too late
            self._broken = True
            raise
        if answer == server.ERROR:
            self._raise(reply)
        return reply

    def _send(self, kind: int, content: Mapping[str, Any] | None = None) -> None:
        text = json.dumps(content).encode() if content else b""
        rest = memoryview(server.HEADER.pack(kind, len(text)) + text)
        while rest:
            rest = rest[os.write(self._pipes[0], rest) :]

    def _receive(self, size: int, what: str, limit_s: float) -> bytes:
        found = b""
        while len(found) < size:
            if not self._replies.poll(POLL_MS):
                self._wait(what, limit_s)
            part = os.read(self._pipes[1], size - len(found))
            if not part:
                raise EOFError
            found += part
        return found

    def _wait(self, what: str, limit_s: float) -> None:
        """Wait until the server writes; raise at the deadline, and soon after a signal that asks to stop."""
        limit = time.monotonic() + limit_s
        with _noted_signals() as signals:
            while not self._replies.poll(POLL_MS):
                now = time.monotonic()
                if now > limit:
                    raise EnvEnded(
                        f"The interpreter {self._python} did not return from `{what}` within {limit_s:g} s.",
                        "see what it printed above; if steps are slow, raise plan.deadline_s",
                    )
                if signals and now > signals[0] + STOP_S:
                    raise EnvEnded(
                        f"The interpreter {self._python} did not return from `{what}` within {STOP_S:g} s after the "
                        "signal to stop.",
                        "resume from the last checkpoint, if the run has one",
                    )

    def _how_it_ended(self) -> tuple[str, str]:
        assert self._process is not None
        code = self._end(self._process)
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return f"The interpreter {self._python} {how}.", "see what it printed above; it may have run out of memory"

    def _end(self, process: subprocess.Popen[bytes]) -> int:
        """End the interpreter and everything that it started; return its exit code, or minus the signal."""
        assert process.stdin is not None
        process.stdin.close()  # the supervisor kills what is left
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(server.GRACE_S + (CLOSE_S if self._server else 0.0))
        if process.returncode is None or process.returncode < 0:  # there is no supervisor, or it may have been killed
            for group in {process.pid, self._server} - {0}:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(group, signal.SIGKILL)
            _kill_marked(self._mark)
            self._server = 0
        return process.wait()

    def _raise(self, error: Mapping[str, Any]) -> None:
        """Raise what the environment raised in its interpreter."""
        if "MissingPackage" in error["kinds"]:
            raise EnvError(
                f"{self._python} cannot import what the environment needs: {error['message']}.",
                f"install it there: {self._python} -m pip install PACKAGE",
            )
        if "UnregisteredEnv" in error["kinds"]:
            raise EnvError(
                f"{self._python} has no such environment: {error['message']}",
                "check its name, or install the package that registers it there",
            )
        raise ServerError(f"the environment raised in {self._python}:\n{error['report'].rstrip()}")

    def _read(self) -> Any:
        """Copy the observation out of the shared memory."""
        return _nested(self._described, iter(self._obs))


@contextlib.contextmanager
def _noted_signals() -> Iterator[list[float]]:
    """The times at which SIGINT and SIGTERM arrive, for which the handlers are called as before."""
    times: list[float] = []
    if threading.current_thread() is not threading.main_thread():
        yield times
        return
    handlers = {n: handler for n in (signal.SIGINT, signal.SIGTERM) if callable(handler := signal.getsignal(n))}

    def note(number: int, frame: Any) -> None:
        times.append(time.monotonic())
        handlers[signal.Signals(number)](number, frame)

    for number in handlers:
        signal.signal(number, note)
    try:
        yield times
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _kill_marked(mark: str) -> None:
    """Kill the processes whose environment has this mark, whatever their session and their parent."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == mark:
                process.kill()


def _nested(described: Mapping[str, Any], arrays: Iterator[Array]) -> Any:
    kind = described["kind"]
    if kind == "dict":
        return {key: _nested(part, arrays) for key, part in described["parts"]}
    if kind == "tuple":
        return tuple(_nested(part, arrays) for part in described["parts"])
    array = next(arrays)
    if kind == "enum":
        return described["values"][int(array)]
    return int(array) if kind == "discrete" else array.copy()


def _space(described: Mapping[str, Any]) -> spaces.Space[Any]:
    """The Gymnasium space of a description."""
    kind = described["kind"]
    if kind == "dict":
        return spaces.Dict({key: _space(part) for key, part in described["parts"]})
    if kind == "tuple":
        return spaces.Tuple([_space(part) for part in described["parts"]])
    if kind == "enum":
        return Enum(described["values"])
    if kind == "multi_discrete":
        return spaces.MultiDiscrete(np.array(described["nvec"]), start=described.get("start"))
    if kind == "multi_binary":
        return spaces.MultiBinary(described["shape"])
    if kind == "discrete":
        return spaces.Discrete(described["n"], start=described["start"])
    if kind == "box":
        shape, dtype = tuple(described["shape"]), np.dtype(described["dtype"])
        low, high = (np.broadcast_to(np.array(described[side], dtype), shape) for side in ("low", "high"))
        return spaces.Box(low, high, shape, dtype.type)
    raise EnvError(f"Spaces of the class {described['name']} are not supported.", "use a space of gymnasium.spaces")
