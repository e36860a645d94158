"""Graphs of a device: their memory, and the calls of torch that record them."""

import contextlib
from types import SimpleNamespace

import pytest
import torch

from core_kit.devices.fake_device import FakeCalls
from core_platforms.cuda.calls import TorchCalls
from core_platforms.cuda.graphs import Graphs

MIB = 1 << 20


def test_memory_that_was_cached_hides_nothing_of_a_graphs() -> None:
    """A recording returns cached memory to the driver, so afterwards more may be free than before."""
    calls = FakeCalls(graph_bytes=3 * MIB)
    graphs = Graphs(calls, budget=5 * MIB, largest=64)
    for rows in (1, 2, 4):
        calls.cached += 8 * MIB
        calls.free -= 8 * MIB
        graphs.capture(lambda: calls.run("nothing", lambda: None, (), {}), rows)
    assert (calls.recorded, graphs.spent) == (2, 6 * MIB)


class Module:
    """torch.cuda or torch.xpu, as far as recording is concerned, with the published signatures.

    As in torch, a recording that fails leaves its stream the current one.
    """

    __name__ = "torch.stand_in"

    def __init__(self) -> None:
        self.streams = ["default"]
        self.is_broken = False
        self.modes: list[str] = []

    def graph_pool_handle(self) -> tuple[int, int]:
        return 0, 1

    def current_stream(self) -> str:
        return self.streams[-1]

    @contextlib.contextmanager
    def stream(self, stream: str):
        before = list(self.streams)
        self.streams.append(stream)
        try:
            yield
        finally:
            self.streams = before

    @contextlib.contextmanager
    def recording(self, mode: str):
        self.modes.append(mode)
        self.streams.append("of recordings")
        yield
        if self.is_broken:
            raise RuntimeError("operation failed due to a previous error during capture")
        self.streams.pop()


class Cuda(Module):
    CUDAGraph = SimpleNamespace

    def graph(self, cuda_graph, pool=None, stream=None, capture_error_mode="global"):
        return self.recording(capture_error_mode)


class Xpu(Module):
    XPUGraph = SimpleNamespace

    def graph(self, xpu_graph, pool=None, stream=None):
        return self.recording("")


@pytest.mark.parametrize("module, mode", [(Cuda(), "thread_local"), (Xpu(), "")])
def test_other_threads_may_use_the_device_while_a_graph_is_recorded(module: Module, mode: str) -> None:
    calls = TorchCalls(module, torch.device("cpu"))
    ran_in = []
    calls.record(lambda: ran_in.append(module.current_stream()))
    assert module.modes == [mode] and ran_in == ["of recordings"]
    assert module.current_stream() == "default"


@pytest.mark.parametrize("module", [Cuda(), Xpu()])
def test_after_a_recording_that_failed_work_goes_on_in_its_own_stream(module: Module) -> None:
    module.is_broken = True
    calls = TorchCalls(module, torch.device("cpu"))
    with pytest.raises(RuntimeError, match="during capture"):
        calls.record(lambda: None)
    assert module.current_stream() == "default"


def test_a_device_without_graphs_says_so() -> None:
    with pytest.raises(RuntimeError, match="has no graphs"):
        TorchCalls(Module(), torch.device("cpu")).record(lambda: None)


class Streams(Module):
    """torch.cuda with streams and events that write down what they are told. told: the stream and the call."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[str, str]] = []

    def Stream(self, device: torch.device) -> SimpleNamespace:
        return SimpleNamespace(wait_event=lambda event: self.told.append(("of weights", f"wait {event.name}")))

    def Event(self) -> SimpleNamespace:
        name = f"event {len(self.told)}"
        return SimpleNamespace(name=name, record=lambda: self.told.append((self.where(), f"record {name}")))

    def where(self) -> str:
        return "default" if self.current_stream() == "default" else "of weights"


def test_weights_are_copied_in_a_stream_of_their_own_behind_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event of the computing stream brings the copy into a recording, and kernels wait for the event behind it."""
    module = Streams()
    calls = TorchCalls(module, torch.device("cpu"))
    monkeypatch.setattr(calls, "copy", lambda target, source: module.told.append((module.where(), "copy")))
    after = calls.mark()
    calls.fetch(torch.zeros(4), torch.ones(4), after)
    assert module.told == [
        ("default", "record event 0"),
        ("of weights", "wait event 0"),
        ("of weights", "copy"),
        ("of weights", "record event 3"),
    ]
    assert module.current_stream() == "default"
    with pytest.raises(RuntimeError, match="no addresses that are valid on both sides"):
        calls.in_place(torch.zeros(4, dtype=torch.uint8))
