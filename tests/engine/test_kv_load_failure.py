"""`kv_load_failure_policy: fail`: a request whose pages do not all come ends with the reason, and nothing of it is computed."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from core import LLM, RequestOutput, SamplingParams
from core_kv_connectors.handoff import claim as claim_module
from tests.engine.kv_handoffs import consuming, decode, handoffs_of, new_port, prefill, producing
from tests.engine.test_kv_handoff import PARAMS, PROMPT, ROOM, nothing_is_left
from tests.inside import run_entries, with_grammar
from tests.kv.between import Between
from tests.kv.test_peers import until
from tests.tiny_models import save_checkpoint


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LLM, LLM, Between, int]]:
    """A producer, a consumer with the policy, and what is between them at a port of its own."""
    model = save_checkpoint(tmp_path_factory.mktemp("failure") / "model")
    settings: dict[str, Any] = {"model": str(model), "use_tqdm_on_load": False, **ROOM}
    port = new_port()
    with LLM(**settings, **producing(port)) as one:
        between = Between(("127.0.0.1", port))
        place = int(between.address.rpartition(":")[2])
        fails = consuming(place)
        fails["kv_transfer_config"]["kv_load_failure_policy"] = "fail"
        with LLM(**settings, **fails) as other:
            yield one, other, between, place
        between.cut()


def failed(output: RequestOutput, why: str) -> None:
    """Check that no answer has a token, and that each says why."""
    assert [answer.finish_reason for answer in output.outputs] == ["error", "error"]
    for answer in output.outputs:
        assert not answer.token_ids
        assert why in str(answer.stop_reason) and "kv_load_failure_policy" in str(answer.stop_reason)


def test_what_does_not_come_ends_its_request_with_the_reason(
    engines: tuple[LLM, LLM, Between, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other, between, port = engines

    def leased(name: str) -> dict[str, Any]:
        return prefill(one, name, PROMPT) | {"port": port}

    def asked(name: str, lease: dict[str, Any], prompt: list[int] = PROMPT) -> RequestOutput:
        other.reset_prefix_cache()
        return decode(other, name, prompt, PARAMS, lease)

    lease = leased("a")
    whole = asked("whole", lease)
    assert whole.num_cached_tokens >= 80 and all(len(answer.token_ids) == 12 for answer in whole.outputs)
    failed(asked("spent", lease), "the ticket has served")
    failed(asked("unknown", leased("b") | {"port": 1}), "127.0.0.1:1: it is not one of --kv-peers")
    failed(asked("forged", leased("c") | {"ticket": "core-kv-ticket-1.a.b"}), "was not written by this engine")
    lease = leased("d")
    one.reset_prefix_cache()
    failed(asked("reset there", lease), "its lease was dropped")
    failed(asked("of another", leased("e"), [*PROMPT[:40], *range(5, 60)]), "leased pages are of another prompt")
    said: list[int] = []

    def damaged(data: bytes) -> bytes:
        said.append(len(data))
        return bytes([*data[:-1], data[-1] ^ 1]) if sum(said) > 600 else data

    between.pass_on = damaged
    failed(asked("damaged", leased("f")), f"from 127.0.0.1:{port}: ")
    monkeypatch.setattr(claim_module, "LIMIT_S", 0.2)
    go = threading.Event()
    between.pass_on = lambda data: (go.wait(60), data)[1]
    failed(asked("stalled", leased("g")), "took longer than 0.2 s")
    between.pass_on = lambda data: data
    go.set()
    counts = handoffs_of(other).counts
    until(lambda: not counts()["buffered_bytes"])
    assert counts()["claim.requests_failed"] == 7 and not counts()["waiting"]
    (plain,) = other.generate([{"prompt_token_ids": PROMPT}], PARAMS, use_tqdm=False)
    assert [answer.token_ids for answer in plain.outputs] == [answer.token_ids for answer in whole.outputs]
    one.reset_prefix_cache()  # ends the leases whose claims never reached it
    nothing_is_left(one, other)


def test_a_request_that_needs_no_page_does_not_fail(engines: tuple[LLM, LLM, Between, int]) -> None:
    one, other, _, port = engines
    lease = prefill(one, "logprobs", PROMPT) | {"port": port, "ticket": "none of it is needed"}
    params = SamplingParams(max_tokens=2, prompt_logprobs=1, ignore_eos=True)
    output = decode(other, "logprobs", PROMPT, params, lease)
    assert output.outputs[0].finish_reason == "length" and len(output.prompt_logprobs or ()) == len(PROMPT)
    one.reset_prefix_cache()
    nothing_is_left(one, other)


def test_a_prompt_with_log_probabilities_is_leased(engines: tuple[LLM, LLM, Between, int]) -> None:
    one, other, _, port = engines
    observer = handoffs_of(one)
    assert observer.watch("scored")
    params = SamplingParams(max_tokens=1, prompt_logprobs=1)
    run_entries(one, [with_grammar(one, "scored", {"prompt_token_ids": PROMPT}, params, None)])
    lease = observer.lease("scored")
    observer.end("scored")
    assert lease is not None
    other.reset_prefix_cache()
    output = decode(other, "scored", PROMPT, PARAMS, lease | {"port": port})
    assert output.num_cached_tokens >= 80
    one.reset_prefix_cache()
    nothing_is_left(one, other)
