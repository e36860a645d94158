"""Output that nobody takes costs lines, never the time or the life of who writes."""

import fcntl
import os
import threading

from core_observers.output import CAPACITY, BestEffortStream

LINE = "a line of forty characters, as logs have\n"


def test_a_reader_that_stops_reading_stops_nobody_and_is_told_what_it_missed() -> None:
    reader, writer = os.pipe()
    room = fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    stream = BestEffortStream(writer)
    written = 3 * CAPACITY // len(LINE)
    threads = [threading.Thread(target=lambda: [stream.write(LINE) for _ in range(written // 4)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    stream.drain(0.05)
    read = b""
    with open(reader, "rb", buffering=0) as file:
        while len(read) < CAPACITY - room:
            read += file.read(1 << 16)
        stream.write("the reader is back\n")
        while b"back" not in read:
            read += file.read(1 << 16)
    lines = read.decode().splitlines()
    notices = [line for line in lines if "left out" in line]
    left_out = sum(int(line.strip("(").split()[0]) for line in notices)
    assert lines.count(LINE.strip()) + left_out == written // 4 * 4
    # A third is kept, or two when the writer had taken a full buffer before the next one filled.
    assert left_out > written // 4
    assert lines[-1] == "the reader is back"
    assert lines[-2] == notices[-1]


def test_neither_a_full_disk_nor_a_reader_that_is_gone_raises() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    for descriptor in (os.open("/dev/full", os.O_WRONLY), writer):
        stream = BestEffortStream(descriptor)
        print("nobody", "will", "see", file=stream, flush=True)
        stream.drain(10)
        print("nor this \ud800", file=stream, flush=True)
        stream.drain(10)


def test_what_could_not_be_written_is_counted_once_it_can() -> None:
    reader, writer = os.pipe()
    full = os.open("/dev/full", os.O_WRONLY)
    descriptor = os.dup(full)
    stream = BestEffortStream(descriptor)
    stream.write(LINE * 7)
    stream.drain(10)
    os.dup2(writer, descriptor)
    stream.write("there is room\n")
    stream.drain(10)
    assert (
        os.read(reader, 4096) == b"(7 lines of this output were left out: they could not be written)\nthere is room\n"
    )
