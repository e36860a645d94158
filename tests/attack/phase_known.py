"""What a server knows about its answers: receipts, quotes, energy, records, batches and starts, asked for and damaged.

Owns: the server that has all of it, hostile requests about it, directories that are spoilt before a start, and commands with
damaged files. Never does: send the rows of other themes, which the corpus has.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from tests.attack.arena import Arena
from tests.attack.make import completion, nested
from tests.attack.phase_disks import mounted
from tests.attack.results import Clock, Phase
from tests.attack.row import CLOSED, KEY, Row, problems
from tests.attack.send import Target, send
from tests.attack.server import ROOT, Server

FOREIGN_KEY = "foreign-key"
EDGE = "edge"
FORM = (("Content-Type", f"multipart/form-data; boundary={EDGE}".encode()),)
QUOTE = "/v1/quote?path="
BATCHES, FILES = "/v1/batches", "/v1/files"
LINE = b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "Hi", "max_tokens": 2}}\n'
LONG_TEXT = 1 << 16
PIECES = 4096
COMMAND_LIMIT_S = 60.0
START_LIMIT_S = 120.0
SLOW_S = 20.0
"""Limit of a row that reads a file or waits for a step of the engine."""


def run(arena: Arena, phase: Phase, seconds: float) -> None:
    """Rows first, then directories and files."""
    steps = {
        "requests": partial(requests, arena, phase),
        "spoilt directories": partial(spoilt, arena, phase),
        "a full disk": partial(full_disk, arena, phase),
        "commands": partial(commands, arena, phase),
    }
    arena.each(phase, steps, Clock(seconds))


def part(name: str, data: bytes, file: str | None = None) -> bytes:
    """One part of a form."""
    more = "" if file is None else f'; filename="{file}"'
    head = f'--{EDGE}\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'
    return head.encode() + data + b"\r\n"


def endless() -> Iterator[bytes]:
    """A form whose file never ends."""
    yield part("purpose", b"batch") + part("file", b"", "in.jsonl")[:-2]
    for _ in range(PIECES):
        yield LINE * 512


def quotes() -> list[Row]:
    """Questions about requests that are none, and paths that cannot be quoted."""
    paths = ["", "/", "/v1/quote", "/v1/models", "//evil", "../v1/completions", "/v1/chat/completions%00", "x" * 4000]
    rows = [Row(f"a quote of path {path[:24]!r}", QUOTE + path, completion(), seconds=SLOW_S) for path in paths]
    bodies = {
        "nothing": b"",
        "no object": b"[]",
        "deep nesting": nested(10_000).encode(),
        "a negative length": completion(max_tokens=-1),
        "a huge length": completion(max_tokens=10**30),
        "a prompt of another type": completion(prompt={"a": 1}),
        "a timeout of words": completion(timeout="soon"),
    }
    rows += [
        Row(f"a quote of {name}", f"{QUOTE}/v1/completions", body, seconds=SLOW_S) for name, body in bodies.items()
    ]
    no_key = Row("a quote without a key", f"{QUOTE}/v1/completions", completion(), keyed=False)
    return [*rows, _allowing(no_key, 401)]


def fields() -> list[Row]:
    """Fields of the wrong type."""
    wrong: list[tuple[str, Any]] = [
        (name, value)
        for name in ("receipt", "energy", "service_tier", "explain")
        for value in ([], {"a": 1}, -1, "x" * LONG_TEXT)
    ]
    return [
        Row(
            f"{name} is a {type(value).__name__}",
            "/v1/completions",
            completion(**{name: value}),
            names=(name,),
            seconds=SLOW_S,
        )
        for name, value in wrong
    ]


def uploads() -> list[Row]:
    """Forms and batches that are none, and names of other people's files."""
    end = f"--{EDGE}--\r\n".encode()
    purpose, file = part("purpose", b"batch"), part("file", LINE, "in.jsonl")
    forms = {
        "without an end": purpose + file,
        "without a file": purpose + end,
        "without a purpose": file + end,
        "with another purpose": part("purpose", b"fine-tune") + file + end,
        "with 10,000 parts": part("x", b"") * 10_000 + purpose + file + end,
        "with a head that never ends": f"--{EDGE}\r\n".encode() + b"X: " + b"y" * (1 << 20),
        "that expires before it comes": purpose + part("expires_after[seconds]", b"-5") + file + end,
    }
    rows = [Row(f"an upload {name}", FILES, body, FORM, seconds=SLOW_S) for name, body in forms.items()]
    rows = [_allowing(row, 400, 413) for row in rows]
    rows.append(
        _allowing(Row("an upload that never ends", FILES, endless, FORM, seconds=60.0, large=True), 400, 413, CLOSED)
    )
    names = ["..", "%2e%2e%2f%2e%2e%2fetc%2fpasswd", "file-" + "a" * 3000, "file-%00", "batch_../../x"]
    for name in names:
        for place in (f"{FILES}/{name}", f"{FILES}/{name}/content", f"{BATCHES}/{name}"):
            rows.append(_allowing(Row(f"GET {place[:40]}", place, method="GET", plain=True), 400, 404, 405))
    body: dict[str, Any] = {"input_file_id": "file-none", "endpoint": "/v1/completions", "completion_window": "24h"}
    changed = {
        "a file that is none": {},
        "a window of a thousand years": {"completion_window": "365000d"},
        "a negative window": {"completion_window": "-1h"},
        "an endpoint that is none": {"endpoint": "/v1/models"},
        "an endpoint elsewhere": {"endpoint": "http://127.0.0.1:1/"},
        "metadata without an end": {"metadata": {str(number): "x" * 600 for number in range(100)}},
    }
    for name, more in changed.items():
        data = json.dumps({**body, **more}).encode()
        rows.append(_allowing(Row(f"a batch with {name}", BATCHES, data), 400, 404))
    huge = b'["' + b"x" * (24 << 20) + b'"]'
    rows.append(_allowing(Row("a batch of 24 MB", BATCHES, huge, seconds=SLOW_S, large=True), 413, CLOSED))
    return rows


def _allowing(row: Row, *statuses: int) -> Row:
    return Row(**{name: getattr(row, name) for name in Row.__slots__} | {"allowed": frozenset(statuses)})


def requests(arena: Arena, phase: Phase) -> None:
    """All rows on a server that has everything; afterwards good requests of the same kinds are answered."""
    home = arena.home / "known"
    options = {
        "api_key": [KEY, FOREIGN_KEY],
        "quotes": True,
        "receipts": "ask",
        "record_traffic": home / "traffic",
        "record_share": 1,
        "batch_directory": home / "batches",
        "state_canary": home / "canary",
        "audit_share": 0.2,
        "audit_budget": 50,
        "audit_dump": home / "audit",
        "async_scheduling": None,
    }
    with arena.server(**options) as server:
        arena.check_tokens(phase, server.target, "before")
        for row in [*quotes(), *fields(), *uploads()]:
            found = problems(row, send(server.target, row, row.seconds + 10))
            phase.check(row.name, not found, "", "a sentence", "; ".join(found)[:400])
        good = {
            "a quote": Row("quote", f"{QUOTE}/v1/completions", completion()),
            "a receipt": Row("receipt", "/v1/completions", completion(receipt=True)),
            "energy": Row("energy", "/v1/completions", completion(energy=True)),
            "the batch class": Row("flex", "/v1/completions", completion(service_tier="flex")),
        }
        for name, row in good.items():
            answer = send(server.target, row, SLOW_S)
            phase.check(f"{name} afterwards", answer.status == 200, answer.outcome, 200, answer.body[:200].decode())
        arena.check_tokens(phase, server.target)
        health = json.loads(send(server.target, Row("health", "/health", method="GET"), SLOW_S).body)
        phase.check("audits found nothing", not health.get("audit_mismatches"), health.get("audit_mismatches"), 0)
        phase.check("no traceback in the log", "Traceback" not in server.log())


def spoilt(arena: Arena, phase: Phase) -> None:
    """Directories with files that are none of ours: a sentence and no start, or a start that says what it leaves out."""
    for argument, file in {
        "record_traffic": "1.journal",
        "state_canary": "quarantine.json",
        "batch_directory": "owner/batch_1.json",
        "shared_limits": "a.keycnts1",
    }.items():
        home = Path(tempfile.mkdtemp(dir=arena.home, prefix=argument))
        (home / file).parent.mkdir(parents=True, exist_ok=True)
        (home / file).write_bytes(b"\xff{" * 4096)
        more = {"quarantine_plugins": True} if argument == "state_canary" else {}
        starts(arena, phase, f"{argument} with a damaged file", {argument: home, **more})
        home.chmod(0o755)
        (arena.home / "a-file").write_text("")
        starts(arena, phase, f"{argument} below a file", {argument: arena.home / "a-file" / "x"}, may_serve=False)


def starts(arena: Arena, phase: Phase, name: str, options: dict[str, Any], *, may_serve: bool = True) -> None:
    """A server starts and serves, or ends with a sentence."""
    server = Server(arena.home, **options)
    try:
        with suppress(RuntimeError):
            server.wait(START_LIMIT_S)
            answer = send(server.target, Row("hi", "/v1/completions", completion()), SLOW_S)
            phase.check(f"a server serves with {name}", may_serve and answer.status == 200, answer.outcome, 200)
            return
        code, words = server.process.poll(), server.log()
        good = code == 2 and "Traceback" not in words
        phase.check(f"a sentence for {name}", good, f"{code}: {words[-200:]}", "2 and a sentence")
    finally:
        server.kill()


def full_disk(arena: Arena, phase: Phase) -> None:
    """Records and uploads on a disk of 1 MB: answers go on, uploads are refused."""
    with mounted(arena.home / "small", 1) as path:
        if path is None:
            phase.notes.append("Nothing can be mounted here, so no disk was full.")
            return
        options = {"record_traffic": path / "traffic", "record_share": 1, "batch_directory": path / "batches"}
        with arena.server(**options) as server:
            (path / "filler").write_bytes(bytes((1 << 20) - (64 << 10)))
            body = part("purpose", b"batch") + part("file", LINE * 4000, "in.jsonl") + f"--{EDGE}--\r\n".encode()
            row = _allowing(Row("upload", FILES, body, FORM, seconds=SLOW_S), 503)
            found = problems(row, send(server.target, row, SLOW_S + 10))
            phase.check("an upload to a full disk", not found, "", 503, "; ".join(found)[:300])
            statuses = [_completed(server.target, f"{number} " + "long " * 900) for number in range(8)]
            phase.check("answers while records find no room", set(statuses) == {200}, statuses, "200 each")
            phase.check("no traceback with a full disk", "Traceback" not in server.log(), server.log()[-300:])
            arena.check_tokens(phase, server.target, "with a full disk")


def _completed(target: Target, prompt: str) -> int:
    return send(target, Row("fill", "/v1/completions", completion(prompt=prompt)), SLOW_S).status


def commands(arena: Arena, phase: Phase) -> None:
    """Commands with damaged or contradictory files and values: a sentence and exit code 2."""
    folder = Path(tempfile.mkdtemp(dir=arena.home))
    files = {
        "bomb.yaml": "a: &a [x, x]\n"
        + "".join(f"{chr(98 + n)}: &{chr(98 + n)} [*{chr(97 + n)}, *{chr(97 + n)}]\n" for n in range(20)),
        "list.yaml": "- 1\n- 2\n",
        "deep.yaml": "[" * 5000,
        "models.yaml": "- {model: none-such-model.gguf}\n",
        "receipt.json": '{"receipt": {"version": 99}, "opening": "zz"}',
        "body.json": "{",
        "empty.jsonl": "",
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    path = {name: str(folder / name) for name in files}
    words = {
        "--config with aliases of aliases": ["serve", "--config", path["bomb.yaml"]],
        "--config with a list": ["serve", "--config", path["list.yaml"]],
        "--config nested deeply": ["serve", "--config", path["deep.yaml"]],
        "--models with a model that is not there": ["serve", "--models", path["models.yaml"]],
        "--models with no list": ["serve", "--models", path["body.json"]],
        "a budget below the largest model": ["serve", "--models", path["models.yaml"], "--model-budget", "1MiB"],
        "a receipt of a newer version": ["verify", path["receipt.json"], "--request", path["body.json"]],
        "a receipt that is a directory": ["verify", str(folder), "--request", path["body.json"]],
        "records that are none": ["diff", str(folder), "--right", "x"],
        "goals that contradict": ["tune", "--goal", "ttft:0,itl:-1"],
        "a goal that is none": ["tune", "--goal", "speed:9"],
        "an empty dataset": ["tune", "--dataset", path["empty.jsonl"]],
        "a doctor without records": ["plugins", "doctor", "--state-canary", str(folder / "none")],
    }
    for name, arguments in words.items():
        command = [sys.executable, "-P", "-m", "core", *arguments]
        with suppress(subprocess.TimeoutExpired):
            done = subprocess.run(
                command,
                cwd=folder,
                env={"PATH": "/usr/bin", "PYTHONPATH": str(ROOT), "HOME": str(folder), "HF_HUB_OFFLINE": "1"},
                capture_output=True,
                timeout=COMMAND_LIMIT_S,
                check=False,
            )
            told = done.stderr.decode(errors="replace")
            good = done.returncode == 2 and "Traceback" not in told and bool(told.strip())
            phase.check(name, good, f"{done.returncode}: {told[-300:]}", "2 and a sentence")
            continue
        phase.check(name, False, f"still runs after {COMMAND_LIMIT_S:g} s", "2 and a sentence")
