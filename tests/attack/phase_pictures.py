"""How long others wait while clients send large pictures: latencies of /health, and gaps of a stream of text.

Owns: the server with a model that takes pictures, and their clients. Never does: send damaged ones (`make fuzz` does). What
holds up an event loop is counted by the server itself (`--max-callback-ms`), so a busy machine is no excuse for it.
"""

import base64
import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psutil

from tests.attack.arena import Arena
from tests.attack.make import message
from tests.attack.phase_stalls import ALLOWED_S, note, yield_processor
from tests.attack.probe import Measured, probing
from tests.attack.results import Clock, Phase
from tests.attack.row import Row
from tests.attack.send import Target, send

CLIENTS = 16
SIDES = (3264, 2448)
"""Width and height of 8 megapixels."""
ARGUMENTS = {"max_body_size": 64 << 20, "dtype": "float32", "max_model_len": 2048}
QUIET_SHARE = 0.2
ANSWER_LIMIT_S = 60.0
MOST_PICTURES = 256


def run(arena: Arena, phase: Phase, seconds: float) -> None:
    """An undisturbed time, then sixteen clients that send pictures all the time, each of which is new."""
    # They import torch and transformers, which no other phase needs.
    from benchmarks.media import file_of, picture
    from tests.media.checkpoints import save_llava

    clock = Clock(seconds)
    directory = save_llava(arena.home / "llava")
    file = file_of(picture(0, *SIDES))
    with arena.server(model=directory, **ARGUMENTS) as server:
        target, numbers = server.target, itertools.count()
        first = send(target, row_of(file, next(numbers)), ANSWER_LIMIT_S)  # the processes have started
        phase.check("a picture is answered", first.status == 200, first.outcome, 200)
        with probing(target) as quiet:
            time.sleep(min(8.0, clock.left * QUIET_SHARE))
        process = psutil.Process(server.process.pid)
        before = process.cpu_times()
        with probing(target) as beside:
            statuses = volley(target, file, numbers, Clock(min(clock.left * 0.6, 60.0)))
        after = process.cpu_times()
        used = after.user + after.system - before.user - before.system
        bad = [status for status in statuses if status != 200]
        arena.say("pictures", f"{len(statuses)} pictures, {used:.1f} s of the server's processor")
        phase.check(
            "all pictures are answered", bool(statuses) and not bad, f"{len(bad)} of {len(statuses)} are not", 0
        )
        phase.notes.append(
            f"{len(statuses)} pictures of {SIDES[0]} × {SIDES[1]}, {len(file) >> 10} KiB each; "
            f"{1000 * used / len(statuses):.1f} ms of the API process for each, the probes included."
        )
        judge(phase, quiet, beside)
        phase.check("the server lives", server.process.poll() is None, server.process.poll(), "running")


def row_of(file: bytes, number: int) -> Row:
    """A chat about a picture that no other row has: bytes behind a JPEG's end change its digest, not its pixels."""
    url = "data:image/jpeg;base64," + base64.b64encode(file + number.to_bytes(8, "little")).decode()
    parts = [{"type": "text", "text": "what"}, {"type": "image_url", "image_url": {"url": url}}]
    return Row(f"picture {number}", "/v1/chat/completions", message(parts), allowed=frozenset({200}), work=True)


def volley(target: Target, file: bytes, numbers: "itertools.count[int]", clock: Clock) -> list[int]:
    """Have all clients send pictures until the time is over, each at least one; return the statuses."""
    lock = threading.Lock()

    def client(_: int) -> list[int]:
        found: list[int] = []
        while not found or clock.left:
            with lock:
                number = next(numbers)
            if number > MOST_PICTURES:
                break
            found.append(send(target, row_of(file, number), ANSWER_LIMIT_S).status)
        return found

    with ThreadPoolExecutor(CLIENTS, initializer=yield_processor) as pool:
        return [status for statuses in pool.map(client, range(CLIENTS)) for status in statuses]


def judge(phase: Phase, quiet: Measured, beside: Measured) -> None:
    """Compare the 99th percentiles, and keep the numbers for the pictures."""
    limits = {
        "/health": percentile(quiet.health) + ALLOWED_S,
        "the gap of a stream": max(quiet.gaps, default=0.0) + ALLOWED_S,
    }
    phase.at_most("p99 of /health beside pictures", percentile(beside.health), limits["/health"])
    phase.check("nothing fails beside pictures", not beside.failures and len(beside.gaps) > 10, beside.failures, 0)
    note(phase, "without pictures", quiet, limits)
    note(phase, "beside pictures", beside, limits)


def percentile(values: list[float], share: float = 0.99) -> float:
    """The value that this share of all lies below; 99 s without any."""
    return sorted(values)[min(int(share * len(values)), len(values) - 1)] if values else 99.0
