"""Routers that others wrote, unmodified, before two servers of ours: for `make test-proxies`, which fetches them.

CORE_TEST_PROXIES names the unpacked source archive of vLLM; nothing of it is kept here.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from openai import OpenAI

from tests.apis.serving_processes import free_port
from tests.apis.test_kv_transfer import START_LIMIT_S, Server, metric, serving, until_ready
from tests.tiny_models import save_checkpoint

PLACE = os.environ.get("CORE_TEST_PROXIES")
pytestmark = pytest.mark.skipif(PLACE is None, reason="make test-proxies fetches the routers")
ROUTERS = {
    "toy": "tests/v1/kv_connector/nixl_integration/toy_proxy_server.py",
    "multiturn": "examples/disaggregated/disaggregated_serving/disagg_proxy_multiturn.py",
}
KEY = "first-key-of-a-tenant"
PROMPT = "The sea is wide and blue. " * 4
ASKED = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0.8, "seed": 5}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    """One that computes prompts, and one that answers."""
    place = tmp_path_factory.mktemp("routers")
    model = save_checkpoint(place / "model", family="llama")
    kv_port = free_port()
    tcp = ("--kv-transfer-config.kv_connector", "tcp", "--kv-transfer-config.kv_role")
    with ExitStack() as opened:
        one = opened.enter_context(
            serving(
                place / "one", model, *tcp, "kv_producer", "--kv-transfer-config.kv_port", str(kv_port), tokenizer=True
            )
        )
        other = opened.enter_context(
            serving(place / "other", model, *tcp, "kv_consumer", "--kv-peers", f"127.0.0.1:{kv_port}", tokenizer=True)
        )
        until_ready(one, place / "one")
        until_ready(other, place / "other")
        yield one, other


@pytest.fixture(scope="module", params=ROUTERS)
def router(request: pytest.FixtureRequest, servers: tuple[Server, Server], tmp_path_factory) -> Iterator[str]:
    """Address of a router before the servers."""
    assert PLACE is not None
    port = free_port()
    log = tmp_path_factory.mktemp("router") / "log"
    sides = [
        word
        for side, server in zip(("prefiller", "decoder"), servers, strict=True)
        for word in (f"--{side}-host", "127.0.0.1", f"--{side}-port", str(server.port))
    ]
    command = [sys.executable, str(Path(PLACE) / ROUTERS[request.param]), "--host", "127.0.0.1", "--port", str(port)]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, *sides], stdout=out, stderr=subprocess.STDOUT, env={**os.environ, "OPENAI_API_KEY": KEY}
        )
    deadline = time.monotonic() + START_LIMIT_S
    while True:
        try:
            httpx.get(f"http://127.0.0.1:{port}/docs", timeout=5)
            break
        except httpx.TransportError:
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
    yield f"http://127.0.0.1:{port}/v1"
    process.terminate()
    process.wait(60)


def claimed(server: Server) -> float:
    return metric(server, "kv_handoffs_total", 'side="claim"', 'what="received"')


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
def test_completions(servers: tuple[Server, Server], router: str, streams: bool) -> None:
    one, other = servers
    alone = OpenAI(base_url=f"http://127.0.0.1:{one.port}/v1", api_key=KEY)
    client = OpenAI(base_url=router, api_key=KEY)
    model = alone.models.list().data[0].id
    expected = alone.completions.create(model=model, **ASKED, extra_body={"cache_salt": "alone"}).choices[0].text
    before = claimed(other)
    if streams:
        chunks = client.completions.create(model=model, **ASKED, stream=True)
        text = "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)
    else:
        text = client.completions.create(model=model, **ASKED).choices[0].text
    assert text == expected
    assert claimed(other) == before + 1


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
def test_turns_of_a_chat(servers: tuple[Server, Server], router: str, streams: bool) -> None:
    one, other = servers
    alone = OpenAI(base_url=f"http://127.0.0.1:{one.port}/v1", api_key=KEY)
    client = OpenAI(base_url=router, api_key=KEY)
    model = alone.models.list().data[0].id
    settings = {"model": model, "max_tokens": 6, "temperature": 0.0}
    messages = [{"role": "user", "content": "The sea is wide."}]
    before = claimed(other)
    for _ in range(2):
        expected = alone.chat.completions.create(messages=messages, **settings, extra_body={"cache_salt": "alone"})
        if streams:
            chunks = client.chat.completions.create(messages=messages, **settings, stream=True)
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        else:
            text = client.chat.completions.create(messages=messages, **settings).choices[0].message.content or ""
        assert text == expected.choices[0].message.content
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "Go on."}]
    assert claimed(other) == before + 2
