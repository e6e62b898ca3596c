"""Hands a Python process that the shared Spark starts over to a fork of `warm_python.py`.

Python runs this at its start, because the tests put this folder on its path. Any other process goes on untouched.
"""

import os
import sys

_SERVER = os.environ.get("WARM_PYTHON")

if _SERVER and sys.orig_argv[1] == "-m" and sys.orig_argv[2].startswith("pyspark."):
    import json
    import socket

    with socket.socket(socket.AF_UNIX) as _server:
        _server.connect(_SERVER)
        _wanted = {"arguments": sys.orig_argv[2:], "environment": dict(os.environ), "folder": os.getcwd()}
        _text = json.dumps(_wanted).encode()
        socket.send_fds(_server, [b"%08d" % len(_text)], [0, 1, 2])
        _server.sendall(_text)
        # The fork runs for as long as this process does; nothing but its status comes back.
        os._exit(int(_server.recv(4) or b"1"))
