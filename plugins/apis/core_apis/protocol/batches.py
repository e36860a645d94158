"""Bodies and answers of /v1/files and /v1/batches.

Owns: their Structs, which are also the form of the records on the disk. Called by: their routes, the store of batches, the
OpenAPI document.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from core_apis.protocol.responses import Name, Value

BatchStatus = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]
Metadata = Annotated[dict[Name, Value], msgspec.Meta(max_length=16)]


class UploadForm(msgspec.Struct, kw_only=True):
    """The parts of an upload. file: the requests, a line each."""

    file: bytes
    purpose: Literal["batch"]


class FileObject(msgspec.Struct, kw_only=True):
    """A file. bytes: its size. purpose: `batch`, or `batch_output` for results. Times are seconds since the epoch."""

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: Literal["batch", "batch_output"]
    status: str = "processed"
    expires_at: int | None = None
    object: Literal["file"] = "file"


class FileList(msgspec.Struct):
    """A page of files."""

    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: str = "list"


class DeletedFile(msgspec.Struct):
    """The answer to DELETE."""

    id: str
    deleted: bool = True
    object: str = "file"


class RequestCounts(msgspec.Struct):
    """Numbers of requests of a batch. failed: those that got another answer than 200, or none."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class LineProblem(msgspec.Struct):
    """Why a batch failed. line: its number in the file, from 1; None: the whole file."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class BatchProblems(msgspec.Struct):
    """Why a batch failed: the first problems of its file."""

    data: list[LineProblem]
    object: str = "list"


class BatchObject(msgspec.Struct, kw_only=True):
    """A batch, in OpenAI's form. Times are seconds since the epoch.

    endpoint:          path of all of its requests.
    completion_window: time within which it should be done, such as 24h; what is not is `expired`.
    """

    id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    status: BatchStatus
    created_at: int
    expires_at: int
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: BatchProblems | None = None
    request_counts: RequestCounts = msgspec.field(default_factory=RequestCounts)
    metadata: dict[str, str] | None = None
    object: Literal["batch"] = "batch"

    @property
    def has_ended(self) -> bool:
        """Whether nothing will change any more."""
        return self.status in ("failed", "completed", "expired", "cancelled")


class BatchList(msgspec.Struct):
    """A page of batches, the newest first."""

    data: list[BatchObject]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: str = "list"


class CreateBatch(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of a new batch. completion_window: a number and s, m, h or d, of at most 30 days."""

    input_file_id: str
    endpoint: str
    completion_window: Annotated[
        str,
        msgspec.Meta(pattern=r"^[1-9][0-9]{0,6}[smhd]$(?!\n)", description="a number and s, m, h or d, such as '24h'"),
    ]
    metadata: Metadata | None = None
