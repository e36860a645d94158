"""The long run of receipts, recorded traffic and comparisons: `make test-know`.

Owns: a server that preempts and whose engine is killed, random requests in random batches, every answer verified alone,
forgeries, and comparisons of engines with planted causes. Called by: a person. It ends with 1 if a bar is missed.

    python -m tests.receipts.bars --requests 1000
"""

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from core_apis.traffic.records import read_traffic
from core_commands.client.endpoint import EndpointError, whole
from core_commands.client.http_endpoint import HttpEndpoint
from core_commands.replay.comparison import Comparison, Recorded, compare
from core_commands.replay.report import as_html
from core_commands.replay.values import value_differences
from tests.receipts import checking

ROOT = Path(__file__).parents[2]
PORT = 8794
ENGINE = ["--max-model-len", "1024"]
SERVER = [*ENGINE, "--max-num-seqs", "24", "--num-gpu-blocks-override", "80"]
"""Fewer blocks than 24 requests take, so that some are preempted."""
MOST_AT_ONCE = 40
BUSY = (429, 503)
"""What a server answers while it has no room, or its engine starts; a client asks again."""
PLANTED = {
    "key-value types": ["--kv-cache-dtype", "fp8"],
    "numbers of another width": ["--dtype", "float32"],
    "another template": ["--chat-template", "{% for m in messages %}{{ m.content }}{% endfor %}"],
    "other positions": ["--hf-overrides", '{"rope_theta": 90000.0}'],
    "another norm": ["--hf-overrides", '{"rms_norm_eps": 0.01}'],
    "another activation": ["--hf-overrides", '{"hidden_act": "gelu"}'],
    "positions that are scaled": ["--hf-overrides", '{"rope_scaling": {"rope_type": "linear", "factor": 2.0}}'],
    "another default of sampling": ["--override-generation-config", '{"repetition_penalty": 1.5}'],
}
"""Causes that change answers, each an argument of the right side."""


@contextmanager
def serving(folder: Path):
    words = [sys.executable, "-m", "core", "serve", "--port", str(PORT), "--receipts", "all", *SERVER]
    words += ["--record-traffic", str(folder), "--record-share", "1"]
    log = (folder.parent / "server.log").open("w")
    process = subprocess.Popen(words, cwd=ROOT, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def engine_of(server: int) -> int:
    """Return the server's child with the most memory: its engine."""
    children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    sizes = {int(pid): int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in children}
    return max(sizes, key=lambda pid: sizes[pid])


async def post(endpoint: HttpEndpoint, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    async with endpoint.ask("POST", path, json.dumps(body).encode()) as answer:
        return answer.status, json.loads(await whole(answer))


async def ask_all(server: int, count: int, rng: random.Random) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Send random requests, up to `MOST_AT_ONCE` at once, and kill the engine in the middle."""
    endpoint = HttpEndpoint(f"http://127.0.0.1:{PORT}")
    while True:
        try:
            async with endpoint.ask("GET", "/ready") as answer:
                await whole(answer)
                if answer.status == 200:
                    break
        except EndpointError:
            await asyncio.sleep(0.2)
    room = asyncio.Semaphore(MOST_AT_ONCE)
    found: list[tuple[str, dict[str, Any], dict[str, Any]]] = []

    async def one() -> None:
        path, body = checking.random_request(rng, tools=True)
        async with room:
            status, data = await post(endpoint, path, body)
            while status in BUSY:
                await asyncio.sleep(1.0)
                status, data = await post(endpoint, path, body)
            assert status == 200, (path, body, data)
            found.append((path, body, data))
            if len(found) == count // 2:
                os.kill(engine_of(server), signal.SIGKILL)

    tasks = []
    for _ in range(count):
        tasks.append(asyncio.ensure_future(one()))
        await asyncio.sleep(rng.choice([0.0, 0.0, 0.0, 0.02, 0.2]))
    await asyncio.gather(*tasks)
    async with endpoint.ask("GET", "/metrics") as answer:
        text = (await whole(answer)).decode()
    preempted = [line for line in text.splitlines() if line.startswith("core:num_preemptions_total")]
    print("preemptions since the engine was killed:", preempted[-1].split()[-1] if preempted else "?", flush=True)
    await endpoint.close()
    return found


def verify_all(found: list[tuple[str, dict[str, Any], dict[str, Any]]], num_forged: int) -> tuple[int, int, int]:
    """Return (answers verified, forgeries tried, forgeries named)."""
    counts = Counter[str]()

    async def work(engine: Any) -> None:
        for path, body, answer in found:
            verdict = await checking.verdict(engine, path, body, checking.receipts_of(answer), answer)
            counts["verified"] += verdict.code == 0
            if verdict.code:
                print("not verified:", path, json.dumps(body)[:300], verdict, flush=True)
        single = [row for row in found if len(checking.receipts_of(row[2])) == 1]
        for path, body, answer in single:
            [(receipt, opening)] = checking.receipts_of(answer)
            for name, forged in checking.forgeries(receipt, opening):
                if counts["forged"] == num_forged:
                    return
                verdict = await checking.verdict(engine, path, body, [(forged, opening)])
                counts["forged"] += 1
                is_named = verdict.code != 0 and verdict.sentence.startswith(name)
                counts["named"] += is_named
                if not is_named:
                    print("forgery not named:", name, verdict, flush=True)

    checking.run_on_engine(ENGINE, work)
    return counts["verified"], counts["forged"], counts["named"]


def compared(folder: Path, words: list[str], most: int) -> Comparison:
    """Compare recorded requests with an engine."""
    found = Comparison("as recorded", " ".join(words))
    records = [
        Recorded.of(number, record) for number, record in enumerate(read_traffic(str(folder))) if record is not None
    ][:most]

    async def work(engine: Any) -> None:
        for record in records:
            await compare(engine, record, found)

    checking.run_on_engine([*ENGINE, *words], work)
    return found


def changed_calls(
    found: list[tuple[str, dict[str, Any], dict[str, Any]]], rng: random.Random, most: int
) -> tuple[int, int]:
    """Change the arguments of calls; return how many were changed, and how many of them were found."""
    num_changed = num_found = 0
    for _, body, answer in found:
        calls = [
            call for row in answer.get("choices", ()) for call in (row.get("message") or {}).get("tool_calls") or ()
        ]
        if not calls or num_changed == most:
            continue
        other = json.loads(json.dumps(answer))
        target = rng.choice([call for row in other["choices"] for call in row["message"].get("tool_calls") or ()])
        before = target["function"]["arguments"]
        # A call that the limit of tokens cut off may have no quote yet.
        target["function"]["arguments"] = before.replace('"', '"!', 1) if '"' in before else before + "!"
        num_changed += 1
        kinds = [value.kind for value in value_differences(body, answer, other)]
        num_found += kinds == ["tool_call"] and not value_differences(body, answer, answer)
    return num_changed, num_found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--forgeries", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    bars: dict[str, bool] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "records"
        begin = time.monotonic()
        with serving(folder) as server:
            found = asyncio.run(ask_all(server.pid, options.requests, rng))
        print(f"{len(found)} answers in {time.monotonic() - begin:.0f} s", flush=True)
        begin = time.monotonic()
        verified, forged, named = verify_all(found, options.forgeries)
        print(f"{verified} of {len(found)} verified alone, {named} of {forged} forgeries named", flush=True)
        print(f"in {time.monotonic() - begin:.0f} s", flush=True)
        bars["all verified"] = verified == len(found)
        bars["all forgeries named"] = named == forged == options.forgeries
        same = compared(folder, [], options.requests)
        print(f"same engine: {same.num_requests} requests, {len(same.rows)} differ", flush=True)
        bars["no difference from itself"] = same.num_requests > 0 and not same.rows
        for name, words in PLANTED.items():
            other = compared(folder, words, 20)
            page = as_html(other)
            print(f"{name}: {len(other.rows)} of {other.num_requests} differ, report of {len(page)} bytes", flush=True)
            bars[name] = bool(other.rows) and len(page) <= 2 << 20
        num_changed, num_found = changed_calls(found, rng, 50)
        print(f"{num_found} of {num_changed} changed calls found", flush=True)
        bars["changed calls found"] = num_found == num_changed > 0
    missed = [name for name, is_met in bars.items() if not is_met]
    print("missed:" if missed else "all bars are met", ", ".join(missed))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
