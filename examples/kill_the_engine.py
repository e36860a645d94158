"""Kill the engine in the middle of an answer: the answer goes on, word for word. `python examples/kill_the_engine.py`.

Starts a server of its own with the embedded model (pip install psutil openai), asks it twice, and kills the engine's process
while the second answer is being written.
"""

import json
import subprocess
import sys
import time
import urllib.request

import psutil
from openai import OpenAI

PORT = "8017"
HEALTH = f"http://127.0.0.1:{PORT}/health"
KILL_AT = 20


def wait_until_it_serves() -> None:
    while server.poll() is None:
        try:
            urllib.request.urlopen(HEALTH)
            return
        except OSError:
            time.sleep(0.1)
    sys.exit("The server did not start.")


def kill_the_engine() -> None:
    for child in psutil.Process(server.pid).children():
        if "core.engine.process" in child.cmdline():
            child.kill()


def answer(kill_at: int | None = None) -> str:
    client = OpenAI(base_url=f"http://127.0.0.1:{PORT}/v1", api_key="none")
    stream = client.chat.completions.create(
        model="model",
        messages=[{"role": "user", "content": "Write a short story about a lighthouse."}],
        max_tokens=80,
        temperature=0.8,
        seed=7,
        stream=True,
    )
    words = ""
    longest = 0.0
    last = time.monotonic()
    for number, chunk in enumerate(stream):
        if number == kill_at:
            kill_the_engine()
        now = time.monotonic()
        longest = max(longest, now - last)
        last = now
        if chunk.choices:
            word = chunk.choices[0].delta.content or ""
            words += word
            print(word, end="", flush=True)
    print(f"\n(longest pause: {longest:.2f} s)\n")
    return words


server = subprocess.Popen(
    [sys.executable, "-m", "core", "serve", "--port", PORT, "--served-model-name", "model", "--max-model-len", "2048"]
)
try:
    wait_until_it_serves()
    undisturbed = answer()
    disturbed = answer(kill_at=KILL_AT)
    print("equal answers:", disturbed == undisturbed)
    print("/health:", json.load(urllib.request.urlopen(HEALTH)))
finally:
    server.terminate()
    server.wait()
