"""The script of a `ScriptedKinesis` over HTTP, for other processes.

`POST /_script/<command>` with the arguments of the method of that name as a JSON object:

    curl -X POST http://127.0.0.1:4567/_script/split -d '{"stream": "orders", "shard": "shardId-000000000000"}'
    curl -X POST http://127.0.0.1:4567/_script/script \
        -d '{"call": "GetRecords", "fault": {"type": "refuse", "code": "ExpiredIteratorException"}, "times": 2}'

The answer is what the method returns, as JSON; with status 400 it is `{"error": ...}`.
"""

from __future__ import annotations

import inspect
from typing import get_type_hints

import msgspec

from kinesis_trident.spout.kinesis import KinesisError
from kinesis_trident.spout.testing.server import Reply, Request

ADMIN_PATH = "/_script/"

COMMANDS = (
    "accept",
    "advance",
    "clear",
    "create_stream",
    "distribute",
    "expire_iterators",
    "forget",
    "garble",
    "gap",
    "limit",
    "merge",
    "put",
    "recreate",
    "script",
    "shards",
    "split",
    "trim",
)
"""The methods of `ScriptedKinesis` that can be called; `put` takes its data as base64."""


def run_command(kinesis: object, request: Request) -> Reply:
    """Answer a request to `ADMIN_PATH` of a `ScriptedKinesis`."""
    command = request.path.removeprefix(ADMIN_PATH)
    if command not in COMMANDS:
        return _reply(400, {"error": f"no command {command!r}; there are: {', '.join(COMMANDS)}"})
    method = getattr(kinesis, command)
    hints = get_type_hints(method)
    wanted = {
        name: (hints[name], parameter.default)
        for name, parameter in inspect.signature(method).parameters.items()
    }
    arguments = msgspec.defstruct(
        command,
        [
            (name, kind) if default is inspect.Parameter.empty else (name, kind, default)
            for name, (kind, default) in wanted.items()
        ],
        kw_only=True,
        forbid_unknown_fields=True,
    )
    try:
        given = msgspec.json.decode(request.body or b"{}", type=arguments)
        result = method(**msgspec.structs.asdict(given))
    except (msgspec.DecodeError, KinesisError) as error:
        return _reply(400, {"error": f"{command}: {error}"})
    return _reply(200, result)


def _reply(status: int, body: object) -> Reply:
    return Reply(status, {"Content-Type": "application/json"}, msgspec.json.encode(body))
