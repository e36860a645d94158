"""`kv_transfer_params` over HTTP: two servers behind a proxy that hands the field on unread, as vLLM's do."""

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.apis.router_requests import ROUTERS, to_decode, to_prefill
from tests.apis.serving_processes import free_port
from tests.tiny_models import save_checkpoint

pytestmark = pytest.mark.slow  # two servers and two engines, each a process that imports torch or a web framework
START_LIMIT_S = 240
KEYS = ("first-key-of-a-tenant", "second-key-of-a-tenant")
PROMPT = [1, *(3 + 7 * index % 250 for index in range(96))]
ANSWER = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0.8, "seed": 5, "n": 2, "logprobs": 2, "ignore_eos": True}
ANSWER |= {"return_token_ids": True}
# As vLLM's toy_proxy_server.py sends a prompt to the first engine.
ASKED = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


@dataclass
class Server:
    process: subprocess.Popen[bytes]
    port: int

    def post(self, body: dict[str, Any], key: str = KEYS[0]) -> tuple[int, dict[str, Any]]:
        """Status and content of the answer to a completion."""
        status, text = self.text(body, "/v1/completions", key)
        return status, json.loads(text)

    def text(self, body: dict[str, Any], path: str, key: str = KEYS[0]) -> tuple[int, str]:
        """Status and text of an answer, which may be a stream."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            json.dumps(body).encode(),
            {"content-type": "application/json", "authorization": f"Bearer {key}"},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


@contextmanager
def serving(
    log: Path, model: Path, *arguments: str, tokenizer: bool = False, prefix: Sequence[str] = ()
) -> Iterator[Server]:
    """A server that starts. prefix: the beginning of its command."""
    port = free_port()
    common = ("--max-model-len", "128", "--max-num-seqs", "4", "--dtype", "float32")
    common += ("--enable-prompt-tokens-details",)
    command = [*prefix, sys.executable, "-P", "-m", "core", "serve", str(model), "--port", str(port), *common]
    command += () if tokenizer else ("--skip-tokenizer-init",)
    with log.open("wb") as out:
        process = subprocess.Popen([*command, "--api-key", *KEYS, *arguments], stdout=out, stderr=subprocess.STDOUT)
    try:
        yield Server(process, port)
    finally:
        process.terminate()
        process.wait(60)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    """One that computes prompts, and one that answers."""
    place = tmp_path_factory.mktemp("handoff")
    model = save_checkpoint(place / "model", family="llama")
    kv_port = free_port()
    tcp = ("--kv-transfer-config.kv_connector", "tcp", "--kv-transfer-config.kv_role")
    with ExitStack() as opened:
        one = opened.enter_context(
            serving(place / "one", model, *tcp, "kv_producer", "--kv-transfer-config.kv_port", str(kv_port))
        )
        other = opened.enter_context(
            serving(place / "other", model, *tcp, "kv_consumer", "--kv-peers", f"127.0.0.1:{kv_port}")
        )
        until_ready(one, place / "one")
        until_ready(other, place / "other")
        yield one, other


def until_ready(server: Server, log: Path) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while not server.is_ready():
        assert server.process.poll() is None and time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)


def prefilled(server: Server, key: str = KEYS[0]) -> dict[str, Any]:
    """The field with which a server answers a prompt, for the next one."""
    status, answer = server.post({**ANSWER, "max_tokens": 1, "n": 1, "kv_transfer_params": ASKED}, key)
    assert status == 200, answer
    params: dict[str, Any] = answer["kv_transfer_params"]
    assert params["do_remote_prefill"] and len(params["remote_block_ids"]) == 1
    return params


def told(answer: dict[str, Any]) -> list[Any]:
    return [
        (choice["token_ids"], choice["logprobs"]) for choice in sorted(answer["choices"], key=lambda one: one["index"])
    ]


def metric(server: Server, name: str, *labels: str) -> float:
    """A value of a server's metrics."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.port}/metrics", headers={"authorization": f"Bearer {KEYS[0]}"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    found = [line for line in lines if line.startswith(f"core:{name}{{") and all(label in line for label in labels)]
    return float(found[0].rsplit(" ", 1)[1]) if found else 0.0


def cached(answer: dict[str, Any]) -> int:
    details = answer["usage"].get("prompt_tokens_details") or {}
    return int(details.get("cached_tokens", 0))


def test_a_proxy_hands_the_field_on_unread(servers: tuple[Server, Server]) -> None:
    one, other = servers
    first = {**ANSWER, "cache_salt": "first"}
    status, alone = one.post(first)
    assert status == 200
    params = prefilled(one)
    status, answer = other.post({**ANSWER, "kv_transfer_params": params})
    assert status == 200 and told(answer) == told(alone)
    assert cached(answer) >= 80
    status, again = other.post({**first, "kv_transfer_params": params})
    assert status == 200 and told(again) == told(alone) and not cached(again), "a ticket serves once"
    assert one.post(first)[0] == 200  # counts come with the next step of an engine
    assert metric(one, "kv_handoffs_total", 'side="lease"', 'what="released"') == 1
    assert metric(other, "kv_handoffs_total", 'side="claim"', 'what="refused"') == 1
    sent = metric(one, "kv_handoffs_total", 'side="lease"', 'what="pages_sent"')
    assert sent == metric(other, "kv_handoffs_total", 'side="claim"', 'what="pages_received"') > 0
    assert metric(one, "kv_leases") == 0


def test_token_ids_are_handed_over_too(servers: tuple[Server, Server]) -> None:
    """The prompt goes to the first server and to the second one as token ids; either may be asked by a completion."""
    one, other = servers
    sampling = {"temperature": 0.8, "seed": 5, "n": 2, "logprobs": 2, "ignore_eos": True}
    body = {"token_ids": PROMPT, "cache_salt": "ids"}

    def generated(server: Server, **more: Any) -> dict[str, Any]:
        status, text = server.text({**body, **more}, "/inference/v1/generate")
        assert status == 200, text
        found: dict[str, Any] = json.loads(text)
        return found

    alone = generated(one, sampling_params={**sampling, "max_tokens": 8})
    asked = generated(one, sampling_params={"max_tokens": 1}, kv_transfer_params=ASKED)
    params = asked["kv_transfer_params"]
    answer = generated(other, sampling_params={**sampling, "max_tokens": 8}, kv_transfer_params=params)
    assert [choice["token_ids"] for choice in answer["choices"]] == [choice["token_ids"] for choice in alone["choices"]]
    assert answer["choices"] == alone["choices"] and cached(answer) >= 80
    status, text = one.text({**body, "kv_transfer_params": ASKED}, "/inference/v1/generate")
    assert status == 400 and "needs max_tokens 1" in text


def test_another_keys_ticket_serves_nothing(servers: tuple[Server, Server]) -> None:
    one, other = servers
    _, alone = one.post(ANSWER)
    params = prefilled(one)
    status, answer = other.post({**ANSWER, "kv_transfer_params": params}, KEYS[1])
    assert status == 200 and told(answer) == told(alone) and not cached(answer)


@pytest.mark.parametrize(
    "changed",
    [
        {"remote_block_ids": [3, 4, 5]},
        {"remote_block_ids": ["core-kv-ticket-1.a.b"]},
        {"remote_block_ids": None},
        {"remote_host": "10.255.255.1"},
        {"remote_port": 1},
        {"remote_engine_id": "another"},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_what_a_client_sends_is_a_claim(servers: tuple[Server, Server], changed: dict[str, Any]) -> None:
    one, other = servers
    _, alone = one.post(ANSWER)
    body = {**ANSWER, "cache_salt": json.dumps(changed), "kv_transfer_params": {**prefilled(one), **changed}}
    status, answer = other.post(body)
    assert status == 200 and told(answer) == told(alone) and not cached(answer)


@pytest.mark.parametrize(
    ("server", "body", "sentence"),
    [
        (0, {"kv_transfer_params": {"do_remote_prefill": True}}, "not served by an engine with kv_role kv_producer"),
        (1, {"kv_transfer_params": ASKED, "max_tokens": 1}, "not served by an engine with kv_role kv_consumer"),
        (0, {"kv_transfer_params": ASKED}, "needs max_tokens 1"),
        (0, {"kv_transfer_params": ASKED, "max_tokens": 1, "stream": True}, "needs stream to be false"),
        (0, {"kv_transfer_params": ASKED, "max_tokens": 1, "prompt": [PROMPT, PROMPT]}, "needs one prompt"),
        (0, {"kv_transfer_params": {**ASKED, "do_remote_prefill": True}}, "give one"),
        (0, {"kv_transfer_params": {"remote_hosts": "a"}}, "remote_hosts"),
        (0, {"kv_transfer_params": {"do_remote_decode": "yes"}}, "do_remote_decode"),
    ],
)
def test_requests_that_cannot_be_are_refused(
    servers: tuple[Server, Server], server: int, body: dict[str, Any], sentence: str
) -> None:
    status, answer = servers[server].post({**ANSWER, **body})
    assert status == 400 and sentence in answer["error"]["message"], answer


@pytest.mark.parametrize("router", ROUTERS)
def test_what_other_routers_send_is_answered_as_by_one_engine(servers: tuple[Server, Server], router: str) -> None:
    one, other = servers
    body = {name: value for name, value in ANSWER.items() if name != "n"} | {"cache_salt": router, "min_tokens": 2}
    _, alone = one.post({**body, "cache_salt": "alone"})
    status, first = one.post(to_prefill(router, body))
    assert status == 200, first
    before = metric(other, "kv_handoffs_total", 'side="claim"', 'what="received"')
    status, text = other.text(to_decode(router, body, first, "127.0.0.1"), "/v1/completions")
    assert status == 200, text
    chunks = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: {")]
    answers = chunks or [json.loads(text)]
    ids = [id for answer in answers for choice in answer["choices"] for id in choice["token_ids"]]
    assert ids == alone["choices"][0]["token_ids"]
    assert metric(other, "kv_handoffs_total", 'side="claim"', 'what="received"') == before + 1


def test_a_failed_load_ends_the_request_where_that_is_asked_for(tmp_path: Path) -> None:
    model = save_checkpoint(tmp_path / "model", family="llama")
    nobody = free_port()
    tcp = ("--kv-transfer-config.kv_connector", "tcp", "--kv-transfer-config.kv_role", "kv_consumer")
    fails = (*tcp, "--kv-transfer-config.kv_load_failure_policy", "fail", "--kv-peers", f"127.0.0.1:{nobody}")
    place = {"remote_host": "127.0.0.1", "remote_port": nobody, "remote_block_ids": ["t"]}
    params = {"do_remote_prefill": True, **place}
    asked = {"max_tokens": 4, "kv_transfer_params": params}
    bodies: dict[str, dict[str, Any]] = {
        "/v1/completions": {"prompt": "Hello, this is a prompt.", "n": 2},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hello"}]},
    }
    with serving(tmp_path / "log", model, *fails, tokenizer=True) as server:
        until_ready(server, tmp_path / "log")
        for path, body in bodies.items():
            for stream in (False, True):
                status, text = server.text({**body, **asked, "stream": stream}, path)
                assert status == 500 or (stream and status == 200 and '"error"' in text), (status, text)
                assert f"could not be loaded from 127.0.0.1:{nobody}" in text, "the reason is named"
                assert '"finish_reason"' not in text, "nothing is answered"
            assert server.text({**body, "max_tokens": 4}, path)[0] == 200, "requests without a ticket are computed"
        assert metric(server, "kv_handoffs_total", 'side="claim"', 'what="requests_failed"') == 4
