"""Uploads, lines and records of batches as targets: a form, a file of requests, and a record on the disk.

Owns: the good files and their readers. Never does: damage a file. Called by: the table of targets.
"""

import shutil
import tempfile
from pathlib import Path

from core_apis.batches.batch_file import look_through
from core_apis.batches.store import BatchStore, new_id
from core_apis.forms import read_form
from core_apis.protocol.batches import BatchObject
from core_config.served.server_config import BatchSettings

FORM = (
    b'--edge\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--edge\r\nContent-Disposition: form-data; name="file"; filename="in.jsonl"\r\n'
    b"Content-Type: application/octet-stream\r\n\r\n{}\r\n--not-edge\r\n\r\n--edge--\r\n"
)
LINE = b'{"custom_id": "a%d", "method": "POST", "url": "/v1/completions", "body": {"prompt": "hi", "max_tokens": 3}}\n'
NAMES = ("form", "lines.jsonl", "record.json")


def make_files(folder: Path) -> None:
    """Write a good form, a good file of requests and a good record."""
    (folder / "form").write_bytes(FORM)
    (folder / "lines.jsonl").write_bytes(b"".join(LINE % number for number in range(4)))
    record = BatchObject(
        id=new_id("batch_"),
        endpoint="/v1/completions",
        input_file_id=new_id("file-"),
        completion_window="24h",
        status="in_progress",
        created_at=1,
        expires_at=86401,
        metadata={"a": "b"},
    )
    with tempfile.TemporaryDirectory() as directory:
        store = BatchStore(BatchSettings(directory=directory))
        store.save("owner", record)
        shutil.copy(store.path("owner", record.id, ".json"), folder / "record.json")


def read_files(folder: Path) -> None:
    """Read each of them as the server does."""
    data = (folder / "form").read_bytes()
    read_form([data[start : start + 61] for start in range(0, len(data), 61)], "multipart/form-data; boundary=edge")
    with tempfile.TemporaryDirectory() as directory:
        store = BatchStore(BatchSettings(directory=directory))
        name = new_id("batch_")
        (store.root / "owner").mkdir()
        shutil.copy(folder / "record.json", store.path("owner", name, ".json"))
        store.batch("owner", name)
        store.batches("owner")
    look_through(folder / "lines.jsonl", "model", 1 << 16)
