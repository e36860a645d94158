"""Request journals that somebody hands to `core diff` and `core kv audit`: their files, and what good frames hold.

Owns: writing good ones, and reading as both commands read. Called by: the table of targets.
"""

from pathlib import Path
from typing import Any

import msgspec

from core.api.errors import CoreError
from core.api.sampling_params import SamplingParams
from core_apis.journal.records import Accepted, Begun, FileHead, Kind, framed
from core_apis.prepare.prepared import PreparedChat, PreparedCompletion, Prompt
from core_apis.protocol.chat import ChatRequest
from core_apis.protocol.completions import CompletionRequest
from core_commands.kv.journal_log import read_journal
from core_commands.replay.journal import is_journal, read_requests
from core_commands.replay.servers import body_for

FILE = "1.journal"
BODIES = ("chat", "completion")
RECORDS = ("accepted", "begun")
NAMES = (FILE, *BODIES, *RECORDS)


def _accepted(kind: str, body: bytes) -> bytes:
    return msgspec.msgpack.encode(Accepted(kind, f"{kind}-1", b"t", 5, 5.0, "", "origin", body))


def make_journals(folder: Path) -> None:
    """Write a journal, two bodies that requests became, and two records."""
    chat: Any = PreparedChat(ChatRequest(messages=[]), "m", SamplingParams(max_tokens=4), [Prompt("hi", [3, 4])])
    params = SamplingParams(temperature=0.5, stop=["x"], logit_bias={3: 1.0}, seed=5)
    completion: Any = PreparedCompletion(CompletionRequest(), "m", params, [Prompt("a", [7, 8]), Prompt("b", [9])])
    bodies = [msgspec.msgpack.encode(body) for body in (chat, completion)]
    for name, body in zip(BODIES, bodies, strict=True):
        (folder / name).write_bytes(body)
    (folder / RECORDS[0]).write_bytes(_accepted("chat", bodies[0]))
    (folder / RECORDS[1]).write_bytes(msgspec.msgpack.encode(Begun(1, 77)))
    frames = [framed(0, 0, Kind.FILE, msgspec.msgpack.encode(FileHead(b"salt", 0)))]
    frames += [framed(number, 0, Kind.ACCEPTED, _accepted("chat", bodies[0])) for number in (1, 2)]
    (folder / FILE).write_bytes(b"".join(frame.data for frame in frames))


def read_journals(folder: Path) -> None:
    """Read the journal as it lies there, then one whose frames are good and whose records may be damaged."""
    _read(folder)
    bodies = [_accepted(name, (folder / name).read_bytes()) for name in BODIES]
    payloads = [(Kind.ACCEPTED, 0, payload) for payload in (*bodies, (folder / RECORDS[0]).read_bytes())]
    payloads.append((Kind.BEGUN, 1, (folder / RECORDS[1]).read_bytes()))
    frames = [framed(min(entry, 2), number, kind, payload) for entry, (kind, number, payload) in enumerate(payloads, 1)]
    (folder / FILE).write_bytes(b"".join(frame.data for frame in frames))
    _read(folder)


def _read(folder: Path) -> None:
    refusals = []
    try:
        list(read_journal(str(folder)))
    except CoreError as error:  # the audit refuses what the comparison leaves out
        refusals.append(error)
    is_journal(str(folder))
    for _, one in read_requests(str(folder)):
        if one is not None:
            body_for(one, "n")
            msgspec.json.encode(one.body)
    if refusals:
        raise refusals[0]
