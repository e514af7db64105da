"""Runs commands in forked children of one process that has imported the package, so that a command starts at once.

The documentation has more than a hundred commands. Each would import the package again, which takes longer than most of
them run. `CommandServer` starts this file as a process and writes two small programs, `slipstream` and `python`, into a
folder for the PATH. They pass arguments, folder, environment and standard streams to the server, which forks.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

CLIENT = """#!{python} -IS
import json, os, socket, sys
program = {program!r}
if program == "python" and sys.argv[1:] != ["-"]:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    request = {{"program": program, "arguments": sys.argv[1:], "folder": os.getcwd(), "environment": dict(os.environ)}}
    socket.send_fds(server, [json.dumps(request).encode() + b"\\n"], [0, 1, 2])
    answer = server.recv(16)
sys.exit(int(answer or b"70"))
"""


class CommandServer:
    """The server process and the folder of programs that use it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "bin"
        self.folder.mkdir(parents=True)
        address = str(folder / "commands")
        for program in ("slipstream", "python"):
            file = self.folder / program
            file.write_text(CLIENT.format(python=sys.executable, program=program, address=address))
            file.chmod(0o755)
        self._process = subprocess.Popen([sys.executable, __file__, address])
        while not os.path.exists(address):
            assert self._process.poll() is None
            time.sleep(0.05)

    def close(self) -> None:
        """End the server."""
        self._process.terminate()
        self._process.wait()


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Read a request and its three streams."""
    data, streams, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    while not data.endswith(b"\n"):
        data += connection.recv(1 << 20)
    return json.loads(data), list(streams)


def run_command(request: dict[str, Any], streams: list[int]) -> None:
    """Become the command: run it and exit with its code."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.argv = [request["program"], *request["arguments"]]
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115 (they are the process's own)
    code = 0
    try:
        if request["program"] == "python":
            sys.path.insert(0, "")
            names = {"__name__": "__main__", "__builtins__": __builtins__}
            exec(compile(sys.stdin.read(), "<stdin>", "exec"), names)
        else:
            from slipstream.cli import main

            main()
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 0 if leaving.code is None else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def serve(address: str) -> None:
    """Answer requests until the process is ended, or its parent is gone."""
    import slipstream.api
    import slipstream.cli
    import slipstream.training.runner  # noqa: F401 (all of these are for the children)

    parent = os.getppid()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address + ".new")
        server.listen()
        server.settimeout(5.0)
        os.rename(address + ".new", address)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while os.getppid() == parent:
            try:
                connection, _ = server.accept()
            except TimeoutError:
                continue
            with connection:
                if os.fork():
                    continue
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                server.close()
                connection.settimeout(None)
                request, streams = receive(connection)
                child = os.fork()
                if child == 0:
                    connection.close()
                    run_command(request, streams)
                _, status = os.waitpid(child, 0)
                code = os.waitstatus_to_exitcode(status)
                connection.sendall(str(code if code >= 0 else 128 - code).encode())
                os._exit(0)


if __name__ == "__main__":
    serve(sys.argv[1])
