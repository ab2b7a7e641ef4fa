"""An MCP server of notes over stdio, written from the protocol; some tools misbehave.

    python notes_server.py FOLDER

Notes are files of the folder. It asks for a ping before its first answer, lists its
tools in two pages, and writes a line that is no JSON now and then.
"""

import json
import os
import sys
import time
from pathlib import Path

FOLDER = Path(sys.argv[1])
CALLS = []  # state in memory: calls since the server was started


def text_type(*names):
    properties = {name: {"type": "string"} for name in names}
    return {"type": "object", "properties": properties, "required": list(names)}


TOOLS = [
    ("put", "Write a note. Longer story.", text_type("name", "text")),
    ("get", "Read a note", text_type("name")),
    ("where", "Say where the notes are", text_type()),
    ("count", "Count the calls", text_type()),
    ("crash", "End the server", text_type()),
    ("hang", "Never answer", text_type()),
    ("shout", "Answer at length", text_type()),
    (
        "typed",
        "Take all types",
        {
            "type": "object",
            "properties": {
                "kind": {"enum": ["a", "b"]},
                "number": {"type": "integer"},
                "list": {"type": "array", "items": {"type": "number"}},
                "maybe": {"type": ["string", "null"]},
                "limit": {"type": "integer", "default": 3},
                "from": {"type": "string"},
                "anything": {},
            },
            "required": ["kind", "number", "list", "maybe", "anything"],
        },
    ),
]


def send(message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def receive():
    line = sys.stdin.readline()
    if not line:
        if "saves" in sys.argv:
            (FOLDER / "saved.txt").write_text("at the end")
        sys.exit(0)
    return json.loads(line)


def description(row):
    return dict(zip(("name", "description", "inputSchema"), row, strict=True))


def page(cursor):
    if not cursor:
        return {"tools": [description(row) for row in TOOLS[:5]], "nextCursor": "5"}
    return {"tools": [description(row) for row in TOOLS[5:]]}


def run(name, arguments):
    CALLS.append(name)
    if name == "put":
        (FOLDER / arguments["name"]).write_text(arguments["text"])
        return f"wrote {FOLDER}/{arguments['name']}"
    if name == "get":
        path = Path(arguments["name"])
        return (path if path.is_absolute() else FOLDER / path).read_text()
    if name == "where":
        return str(FOLDER)
    if name == "count":
        return f"call {len(CALLS)}"
    if name == "crash":
        os._exit(3)
    if name == "hang":
        time.sleep(60)
    if name == "shout":
        return "a" * 50_000
    return json.dumps(arguments)


def main():
    while True:
        request = receive()
        method, number = request.get("method"), request.get("id")
        if number is None:
            continue
        if method == "initialize":
            send({"id": "p", "method": "ping"})
            assert receive() == {"jsonrpc": "2.0", "id": "p", "result": {}}
            send({"id": "r", "method": "roots/list"})
            assert receive()["error"]["code"] == -32601
            info = {"name": "notes", "version": "1"}
            version = request["params"]["protocolVersion"]
            result = {"protocolVersion": version, "capabilities": {}}
            send({"id": number, "result": {**result, "serverInfo": info}})
        elif method == "tools/list":
            send({"id": number, "result": page(request["params"].get("cursor"))})
        elif method == "tools/call":
            print("this is no JSON", flush=True)
            send({"method": "notifications/message", "params": {}})
            p = request["params"]
            try:
                text, failed = run(p["name"], p["arguments"]), False
            except OSError as error:
                text, failed = f"{type(error).__name__}: {error.filename}", True
            content = [{"type": "text", "text": text}]
            send({"id": number, "result": {"content": content, "isError": failed}})
        else:
            send({"id": number, "error": {"code": -32601, "message": "unknown"}})


main()
