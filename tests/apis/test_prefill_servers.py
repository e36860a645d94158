"""`--prefill-servers` with two real servers: one that computes prompts, and one that answers and chooses where."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.apis.serving_processes import free_port
from tests.apis.test_kv_transfer import KEYS, Server, cached, metric, serving, told, until_ready
from tests.tiny_models import save_checkpoint

pytestmark = pytest.mark.slow  # two servers and two engines, each a process that imports torch or a web framework
LENGTH = 3000
ANSWER = {"max_tokens": 6, "temperature": 0.7, "seed": 3, "n": 2, "logprobs": 2, "ignore_eos": True}
ANSWER |= {"return_token_ids": True, "explain": True}
ROOM = ("--max-model-len", "4096", "--quotes")


def prompt(seed: int) -> list[int]:
    return [1, *(3 + (seed + 7 * index + index * index % 11) % 250 for index in range(LENGTH))]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    place = tmp_path_factory.mktemp("prefill")
    model = save_checkpoint(place / "model", family="llama", max_position_embeddings=4096)
    kv_port = free_port()
    tcp = ("--kv-transfer-config.kv_connector", "tcp", "--kv-transfer-config.kv_role")
    with ExitStack() as opened:
        port = ("--kv-transfer-config.kv_port", str(kv_port))
        one = opened.enter_context(serving(place / "one", model, *tcp, "kv_producer", *port, *ROOM))
        until_ready(one, place / "one")
        peers = ("--kv-peers", f"127.0.0.1:{kv_port}", "--prefill-servers", f"http://127.0.0.1:{one.port}")
        other = opened.enter_context(serving(place / "other", model, *tcp, "kv_consumer", *peers, *ROOM))
        until_ready(other, place / "other")
        yield one, other


def asked(server: Server, ids: list[int], key: str = KEYS[0], **more: Any) -> dict[str, Any]:
    status, answer = server.post({**ANSWER, "prompt": ids, **more}, key)
    assert status == 200, answer
    return answer


def where(answer: dict[str, Any]) -> dict[str, Any]:
    prefill: dict[str, Any] = answer["explain"]["prefill"]
    return prefill


def test_a_prompt_goes_where_its_beginning_is_cached(servers: tuple[Server, Server]) -> None:
    """The same bits wherever it is computed, also for another key, which finds nothing of the first one."""
    one, other = servers
    for seed in (1, 2, 3):  # both learn what their steps cost
        asked(one, prompt(seed))
        asked(other, prompt(seed), cache_salt="here")
    known = prompt(50)
    alone = asked(one, known)
    answer = asked(other, known)
    assert where(answer)["where"] == "there" and where(answer)["server"] == 0, where(answer)
    assert where(answer)["there"] < where(answer)["here"]
    assert told(answer) == told(alone) and cached(answer) >= LENGTH - 16
    assert metric(other, "prefill_choices_total", 'outcome="there"') >= 1
    stranger = asked(other, known, KEYS[1], cache_salt="another")
    assert told(stranger) == told(alone)


def test_answers_go_on_when_the_server_of_prompts_is_gone(servers: tuple[Server, Server]) -> None:
    one, other = servers
    known = prompt(70)
    alone = asked(one, known)
    one.process.terminate()
    one.process.wait(60)
    for number in range(5):
        answer = asked(other, known, cache_salt=str(number))
        assert where(answer)["where"] == "here" and told(answer) == told(alone)
    assert "left alone" in where(answer)["why"]
