"""Workers as processes: answers, failures, limits and the end."""

import os
import sys
import time

import pytest

from benchmarks.peer.environment import PeerError
from benchmarks.peer.process import Launch, Worker

SCRIPT = """
import os, subprocess, sys, time
sys.path.insert(0, {folder!r})
from worker_loop import serve

class Engine:
    version = "7"
    def __init__(self, options):
        print("noise that is no answer")
        self.child = subprocess.Popen(["sleep", "100"])
    def generate(self, prompts, max_tokens):
        print("more noise")
        if max_tokens == 0:
            raise ValueError("no tokens wanted")
        if max_tokens < 0:
            os._exit(3)
        time.sleep(0.05)
        return [[self.child.pid] * max_tokens for _ in prompts]

serve(Engine)
"""


@pytest.fixture
def worker(tmp_path):
    folder = os.path.join(os.path.dirname(__file__), "../../benchmarks/peer/workers")
    launch = Launch([sys.executable, "-c", SCRIPT.format(folder=os.path.abspath(folder)), "{}"])
    made = Worker(launch, tmp_path / "log", start_limit_s=30)
    yield made
    made.stop()


def generate(worker, max_tokens, limit=30.0):
    return worker.ask({"do": "generate", "prompts": [[1], [2]], "max_tokens": max_tokens}, limit)


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_answers_hold_the_result_and_its_seconds_whatever_is_printed(worker):
    answer = generate(worker, 3)
    assert [len(output) for output in answer["result"]] == [3, 3]
    assert answer["seconds"] >= 0.05, "a worker that sleeps so long said less"
    assert worker.ready["version"] == "7"


def test_an_exception_is_a_reason_and_the_worker_goes_on(worker):
    with pytest.raises(PeerError, match="ValueError: no tokens wanted"):
        generate(worker, 0)
    assert generate(worker, 1)["result"]


def test_what_an_engine_lacks_is_not_served_yet(worker):
    with pytest.raises(PeerError, match="embed is not served by this engine yet"):
        worker.ask({"do": "embed", "texts": ["a"], "batch": 1}, 30)


def test_a_dead_worker_is_a_reason(worker):
    with pytest.raises(PeerError, match="ended with 3"):
        generate(worker, -1)
    with pytest.raises(PeerError, match="ended with 3"):
        generate(worker, 1)


def test_a_limit_ends_the_wait(worker):
    worker.pause()
    with pytest.raises(PeerError, match=r"no answer within 0\.2 s"):
        generate(worker, 1, limit=0.2)
    worker.resume()


def test_stopping_ends_the_children_too_even_when_paused(worker):
    child = generate(worker, 1)["result"][0][0]
    assert is_running(child)
    worker.pause()
    worker.stop()
    assert not is_running(worker.pid)
    deadline = time.perf_counter() + 5
    while is_running(child) and time.perf_counter() < deadline:
        time.sleep(0.02)
    assert not is_running(child)
