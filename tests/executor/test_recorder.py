"""What is recorded, for which sizes, and what a replay is told."""

import pytest

from core_runtime.executor.recorder import Recorder


class OneForAll:
    """Records what serves all sizes. refused: rows that it cannot record."""

    def __init__(self, refused=()):
        self.refused = refused
        self.log = []

    def capture(self, run, num_rows, num_seqs):
        run()
        self.log.append(("record", num_rows, num_seqs))
        if num_rows in self.refused:
            return None
        return lambda rows, seqs: self.log.append(("replay", rows, seqs))


class BySize(OneForAll):
    """Records sizes 2 and 4 of every kind, and another one that is too large."""

    def capture_sizes(self, kind, max_rows):
        return [4, 2, 1000]


@pytest.fixture
def calls():
    return []


def run(recorder, calls, kind, rows, seqs=1):
    """As the forward pass does; the words say what happened."""
    size = recorder.size(kind, rows) or rows
    recorder.run(kind, size, seqs, lambda: calls.append(size), (rows, seqs))


def test_one_recording_serves_all_sizes(calls):
    runtime = OneForAll()
    recorder = Recorder(runtime)
    recorder.add("decode", 8)
    for rows in (3, 5, 3):
        assert recorder.size("decode", rows) is None
        run(recorder, calls, "decode", rows, seqs=2)
    assert runtime.log == [("record", 3, 2), ("replay", 5, 2), ("replay", 3, 2)]
    assert recorder.has("decode", 7) and not recorder.has("mixed", 7)
    recorder.forget("decode")
    assert not recorder.has("decode", 7)


def test_steps_are_padded_to_the_next_listed_size(calls):
    runtime = BySize()
    recorder = Recorder(runtime)
    recorder.add("decode", 8)
    for rows in (3, 4, 3, 1, 5, 9):
        run(recorder, calls, "decode", rows)
    assert runtime.log == [("record", 4, 1), ("replay", 4, 1), ("replay", 3, 1), ("record", 2, 1)]
    assert calls == [4, 2, 5, 9]
    assert recorder.has("decode", 1) and not recorder.has("decode", 5)


def test_without_padding_only_listed_sizes_are_recorded(calls):
    runtime = BySize()
    recorder = Recorder(runtime)
    recorder.add("decode", 8, padded=False)
    recorder.add("mixed", 8, every_size=True)
    for rows in (3, 4, 4):
        run(recorder, calls, "decode", rows)
        run(recorder, calls, "mixed", rows)
    assert runtime.log == [("record", 4, 1), ("replay", 4, 1)]
    assert calls == [3, 3, 4, 4, 4]


def test_what_cannot_be_recorded_is_not_tried_again(calls):
    runtime = OneForAll(refused=(1,))
    recorder = Recorder(runtime)
    recorder.add("decode", 8)
    recorder.add("head", 8)
    for kind, rows in (("decode", 1), ("decode", 2), ("head", 2), ("head", 1)):
        run(recorder, calls, kind, rows)
    assert runtime.log == [("record", 1, 1), ("record", 2, 1), ("replay", 1, 1)]
    assert calls == [1, 2, 2]


def test_a_size_that_cannot_be_recorded_is_forgotten_alone(calls):
    """Its steps are padded to the next size, and the sizes recorded before it stay."""
    runtime = BySize(refused=(2,))
    recorder = Recorder(runtime)
    recorder.add("decode", 8)
    for rows in (4, 1, 2, 3):
        run(recorder, calls, "decode", rows)
    assert runtime.log == [("record", 4, 1), ("record", 2, 1), ("replay", 2, 1), ("replay", 3, 1)]
    assert calls == [4, 2]


def test_a_call_that_fails_is_recorded_when_it_succeeds(calls):
    runtime = OneForAll()
    recorder = Recorder(runtime)
    recorder.add("decode", 8)
    with pytest.raises(ZeroDivisionError):
        recorder.run("decode", 1, 1, lambda: 1 // 0)
    run(recorder, calls, "decode", 2)
    assert runtime.log == [("record", 2, 1)]


def test_kinds_that_were_not_added_and_plain_runtimes_record_nothing(calls):
    for recorder in (Recorder(), Recorder(object()), Recorder(OneForAll())):
        for _ in range(2):
            run(recorder, calls, "verify", 3)
        assert not recorder.has("verify", 3)
    assert calls == [3] * 6
