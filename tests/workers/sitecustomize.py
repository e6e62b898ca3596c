"""Hands a Python process that a Spark of the tests starts over to a fork of `warm_python.py`.

Python runs this at its start, because the tests put this folder on its path. Where WARM_PYTHON is not set, the daemon
of the workers imports what they need before it forks them. Any other process goes on untouched.
"""

import os
import sys

# Each JVM, which is the parent of these processes, has a server of its own, which ends with it.
_SERVER = os.environ.get("WARM_PYTHON") and f"{os.environ['WARM_PYTHON']}.{os.getppid()}"


def _hand_over() -> None:
    """Let a fork run instead of this process, for as long as it lives; return where there is no server yet."""
    import json
    import socket

    with socket.socket(socket.AF_UNIX) as server:
        try:
            server.connect(_SERVER)
        except (FileNotFoundError, ConnectionRefusedError):
            return
        wanted = {"arguments": sys.orig_argv[2:], "environment": dict(os.environ), "folder": os.getcwd()}
        text = json.dumps(wanted).encode()
        socket.send_fds(server, [b"%08d" % len(text)], [0, 1, 2])
        server.sendall(text)
        # Nothing but the status comes back.
        os._exit(int(server.recv(4) or b"1"))


def _start_server() -> None:
    """Start the server below this process, so that its forks are below Spark's JVM like the processes they replace.

    It lives as long as the JVM: Spark ends a daemon that answers too late, and the forks are not only its own.
    """
    import subprocess

    try:
        os.close(os.open(f"{_SERVER}.starts", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    program = os.path.join(os.path.dirname(__file__), "warm_python.py")
    # Spark reads from the standard output of this process.
    command = [sys.executable, program, _SERVER, str(os.getppid())]
    subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


if _SERVER and sys.orig_argv[1] == "-m" and sys.orig_argv[2].startswith("pyspark."):
    _hand_over()
    # Others are too short-lived for the wait.
    if sys.orig_argv[2] == "pyspark.daemon":
        _start_server()
elif sys.orig_argv[1:] == ["-m", "pyspark.daemon", "pyspark.worker"]:
    import warm_modules

    warm_modules.import_all()
