"""Byte ranges of several objects, read ahead by concurrent requests within a memory limit.

Owns: the order of requests and the memory in flight. Never does: know what the bytes are. Called by: the object store
loader.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from core_runtime.specs.checkpoint import TensorInfo

Read = Callable[[int, int, int], bytes]
"""Reads bytes: (file, begin, end) -> bytes."""
WASTE = 64 << 10
"""Gap between two tensors up to which reading it is cheaper than a separate request."""


@dataclass(frozen=True, slots=True)
class Span:
    """Neighbouring tensors read together. begin, end: bytes of the file."""

    file: int
    begin: int
    end: int
    tensors: tuple[TensorInfo, ...]

    @property
    def nbytes(self) -> int:
        """Return the memory it takes in bytes."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class _Coming:
    """A span with requests in flight."""

    span: Span
    buffer: bytearray
    parts: list[Future[None]]


def spans_of(infos: Sequence[TensorInfo], part_bytes: int) -> list[Span]:
    """Group tensors into spans of about one request each; a longer tensor is its own span. infos: by file and offset."""
    spans: list[Span] = []
    for info in infos:
        end = info.offset + info.nbytes
        last = spans[-1] if spans else None
        is_near = last is not None and last.file == info.file and info.offset - last.end <= WASTE
        if last is not None and is_near and max(end, last.end) - last.begin <= part_bytes:
            spans[-1] = Span(last.file, last.begin, max(end, last.end), (*last.tensors, info))
        else:
            spans.append(Span(info.file, info.offset, end, (info,)))
    return spans


def stream(
    spans: Sequence[Span], read: Read, *, part_bytes: int, connections: int, memory_limit: int
) -> Iterator[tuple[Span, bytearray]]:
    """Yield each span with its bytes, in order.

    Spans are requested ahead as long as their buffers together are below `memory_limit`; the first one always is.
    """
    waiting = deque(spans)
    coming: deque[_Coming] = deque()
    held = 0
    pool = ThreadPoolExecutor(connections, thread_name_prefix="object-store")
    try:
        while waiting or coming:
            while waiting and (not coming or held + waiting[0].nbytes <= memory_limit):
                span = waiting.popleft()
                held += span.nbytes
                coming.append(_request(pool, span, read, part_bytes))
            first = coming.popleft()
            for part in first.parts:
                part.result()
            yield first.span, first.buffer
            held -= first.span.nbytes
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _request(pool: ThreadPoolExecutor, span: Span, read: Read, part_bytes: int) -> _Coming:
    """Request all parts of a span."""
    buffer = bytearray(span.nbytes)
    parts = []
    for begin in range(span.begin, span.end, part_bytes):
        end = min(begin + part_bytes, span.end)
        parts.append(pool.submit(_fill, buffer, span, read, begin, end))
    return _Coming(span, buffer, parts)


def _fill(buffer: bytearray, span: Span, read: Read, begin: int, end: int) -> None:
    content = read(span.file, begin, end)
    if len(content) != end - begin:
        raise EOFError(f"{len(content)} bytes came instead of {end - begin}")
    buffer[begin - span.begin : end - span.begin] = content
