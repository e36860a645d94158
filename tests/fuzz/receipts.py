"""Receipts and recorded traffic that are damaged.

Owns: writing good ones, and reading as `core verify` and `core diff` read. Called by: the table of targets.
"""

from pathlib import Path

import msgspec

from core_apis.journal.records import FileHead, Kind, framed
from core_apis.traffic.records import RecordedChoice, RecordedPrompt, TrafficRecord, packed, read_traffic
from core_commands.cli.diff import recorded
from core_observers.receipts.chain import Chain
from core_observers.receipts.receipt import (
    ChoiceFact,
    IssuedReceipt,
    Receipt,
    WeightsFact,
    opening_bytes,
    read_receipts,
    seal_of,
)

RECEIPT = "receipt.json"
RECORDS = "1.journal"


def make_receipts(folder: Path) -> None:
    """Write an answer with a receipt, and a file with records."""
    opening = bytes(range(32))
    chain = Chain.opened(opening).extend([1, 2])
    answer = chain.choice(0).extend(list(range(40)))
    receipt = Receipt(
        version="1",
        numerics="n",
        instruction_set="i",
        weights=WeightsFact("ab", "whole"),
        tokenizer="t",
        template="c",
        plugins=["p"],
        sampling={"seed": 1},
        num_prompt_tokens=2,
        prompt=chain.marks,
        choices=[ChoiceFact(0, 40, "stop", answer.marks, answer.end)],
        created=5,
    )
    issued = IssuedReceipt(receipt, opening.hex())
    (folder / RECEIPT).write_bytes(msgspec.json.encode({"receipt": issued}))
    prompt = RecordedPrompt(packed([1, 2]), [RecordedChoice(0, packed([7, 8]), "length")], issued)
    record = TrafficRecord("/v1/completions", b'{"prompt": "a"}', b"", 5.0, [prompt])
    frames = [framed(0, 0, Kind.FILE, msgspec.msgpack.encode(FileHead(b"salt", 0)))]
    frames += [framed(0, number, Kind.TRAFFIC, msgspec.msgpack.encode(record)) for number in range(3)]
    (folder / RECORDS).write_bytes(b"".join(frame.data for frame in frames))


def read_damaged(folder: Path) -> None:
    """Read both; what they hold is used as the commands use it."""
    for receipt, opening in read_receipts((folder / RECEIPT).read_bytes(), RECEIPT):
        seal_of(receipt, opening_bytes(opening))
    for number, record in enumerate(read_traffic(str(folder))):
        if record is not None:
            recorded(number, record)
