"""Sources of AWS credentials whose keys a test replaces, as a platform rotates them."""

from __future__ import annotations

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

__all__ = ["Container", "Process", "SharedFile", "Source"]


class Source:
    """A source of credentials: the environment that names it, and how often it was asked."""

    environment: dict[str, str]

    def rotate(self, key: str) -> None:
        """Give this access key id from now on."""
        raise NotImplementedError

    def asked(self) -> int:
        """How often it has been asked for credentials."""
        raise NotImplementedError

    def close(self) -> None:
        """End it."""


class SharedFile(Source):
    """The file ~/.aws/credentials, which somebody writes anew."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "credentials"
        self.environment = {"AWS_SHARED_CREDENTIALS_FILE": str(self._path)}

    def rotate(self, key: str) -> None:
        lines = ["[default]", f"aws_access_key_id = {key}", "aws_secret_access_key = secret-{key}"]
        self._path.write_text("\n".join([*lines, f"aws_session_token = token-{key}"]))


class Process(Source):
    """A `credential_process` of the configuration file; its credentials end in a far future."""

    def __init__(self, folder: Path) -> None:
        self._answer, self._log = folder / "answer.json", folder / "asked"
        script = folder / "credentials.py"
        script.write_text(
            f"open({str(self._log)!r}, 'a').write('.'); print(open({str(self._answer)!r}).read())"
        )
        config = folder / "config"
        config.write_text(f"[default]\ncredential_process = {sys.executable} -S {script}\n")
        self.environment = {"AWS_CONFIG_FILE": str(config)}

    def rotate(self, key: str) -> None:
        names = {"AccessKeyId": key, "SecretAccessKey": f"secret-{key}", "SessionToken": f"token-{key}"}
        self._answer.write_text(json.dumps({"Version": 1, "Expiration": "2999-01-01T00:00:00Z"} | names))

    def asked(self) -> int:
        return len(self._log.read_text())


class Container(Source):
    """The endpoint of a container on loopback; `down`: how often it fails first."""

    def __init__(self, key: str = "AKID") -> None:
        self.down = 0
        self._key, self._asked = key, 0
        container = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                container.down -= 1
                container._asked += 1
                self.send_response(500 if container.down >= 0 else 200)
                self.end_headers()
                if container.down < 0:
                    key = container._key
                    found = {"AccessKeyId": key, "SecretAccessKey": f"secret-{key}", "Token": f"token-{key}"}
                    self.wfile.write(json.dumps(found | {"Expiration": "2999-01-01T00:00:00Z"}).encode())

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        url = f"http://127.0.0.1:{self._server.server_port}/credentials"
        self.environment = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": url}
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def rotate(self, key: str) -> None:
        self._key = key

    def asked(self) -> int:
        return self._asked

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
