"""Prefill apart from decode (P1D1 over `tcp`): what an engine answers on leased blocks has the bits of one engine."""

import functools
import threading
from pathlib import Path
from typing import Any

import pytest

from core import LLM, SamplingParams
from core.kv.sequence import KVSequence
from core_kv_connectors.handoff import claim as claim_module
from core_kv_connectors.handoff.claim import Source
from tests.engine.kv_handoffs import connector_of, consuming, decode, handoffs_of, new_port, prefill, producing, told
from tests.executor.regex_grammar import compiled, install
from tests.inside import client_of, core_of, run_entries, with_grammar
from tests.kv.between import Between
from tests.kv.test_peers import until
from tests.tiny_models import save_checkpoint

PROMPT = [1, *(3 + 7 * index % 250 for index in range(96))]
ROOM = {"max_model_len": 128, "num_gpu_blocks_override": 40, "max_num_seqs": 2, "dtype": "float32"}
PARAMS = SamplingParams(temperature=0.8, seed=5, max_tokens=12, ignore_eos=True, logprobs=2, n=2)
LOOP = r'(\{"name": "[a-z]{1,4}", "age": [0-9]{1,3}\}\n)+'
DRAFTS = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}


@pytest.mark.parametrize(
    ("family", "more"),
    [("llama", {}), ("gemma3", {}), ("deepseek_v2", {}), ("lfm2", {}), ("llama", DRAFTS)],
    ids=["dense", "window", "latent", "state", "drafts"],
)
def test_two_engines_answer_as_one(family: str, more: dict[str, Any], tmp_path: Path) -> None:
    settings = {
        "model": str(save_checkpoint(tmp_path / family, family=family)),
        "use_tqdm_on_load": False,
        **ROOM,
        **more,
    }
    port = new_port()
    with LLM(**settings) as alone:
        (expected,) = alone.generate([{"prompt_token_ids": PROMPT}], PARAMS, use_tqdm=False)
    with LLM(**settings, **producing(port)) as one, LLM(**settings, **consuming(port)) as other:
        lease = prefill(one, "p", PROMPT)
        output = decode(other, "d", PROMPT, PARAMS, lease)
        assert told(output) == told(expected)
        assert output.num_cached_tokens >= 80
        counts, leased = handoffs_of(other).counts(), handoffs_of(one).counts()
        assert counts["claim.received"] == leased["lease.released"] == 1
        assert counts["claim.pages_announced"] == leased["lease.pages_announced"] > 0
        assert counts["claim.pages_received"] == leased["lease.pages_received"] == leased["lease.pages_sent"] > 0
        assert leased["leases"] == leased["leased_pages"] == counts["claims"] == counts["buffered_bytes"] == 0
        connector_of(one).check_integrity()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two checkpoints of one shape with other weights."""
    place = tmp_path_factory.mktemp("models")
    return save_checkpoint(place / "one", seed=1), save_checkpoint(place / "other", seed=2)


def settings_of(model: Path) -> dict[str, Any]:
    return {"model": str(model), "use_tqdm_on_load": False, **ROOM}


def answered(llm: LLM, grammar: Any = None) -> list[Any]:
    """What one engine answers."""
    entry = with_grammar(llm, "alone", {"prompt_token_ids": PROMPT}, PARAMS, grammar)
    return told(run_entries(llm, [entry])[0])


@functools.cache
def alone(model: Path) -> list[Any]:
    """What an engine with a model answers; asked again, it is not started again."""
    with LLM(**settings_of(model)) as llm:
        return answered(llm)


def nothing_is_left(one: LLM, other: LLM) -> None:
    """Wait until no lease, claim or page is left on either side."""
    until(lambda: not handoffs_of(one).counts()["leases"])
    until(lambda: not handoffs_of(other).counts()["buffered_bytes"])
    assert handoffs_of(one).counts()["leased_pages"] == handoffs_of(one).counts()["watched"] == 0
    assert handoffs_of(other).counts()["claims"] == handoffs_of(other).counts()["waiting"] == 0
    connector_of(one).check_integrity()


def test_grammars_hits_and_company(models: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    port, model = new_port(), models[0]
    with LLM(**settings_of(model), **producing(port)) as one, LLM(**settings_of(model), **consuming(port)) as other:
        expected = answered(one), answered(one, compiled(LOOP))
        one.reset_prefix_cache()
        start = {"prompt_token_ids": PROMPT[:50]}
        other.generate([start], SamplingParams(max_tokens=1), use_tqdm=False)
        output = decode(other, "hit", PROMPT, PARAMS, prefill(one, "hit", PROMPT))
        assert told(output) == expected[0] and output.num_cached_tokens >= 80
        counts = handoffs_of(other).counts()
        assert 0 < counts["claim.pages_received"] < counts["claim.pages_announced"], "some blocks were here already"
        other.reset_prefix_cache()
        output = decode(other, "grammar", PROMPT, PARAMS, prefill(one, "grammar", PROMPT), compiled(LOOP))
        assert told(output) == expected[1] and output.num_cached_tokens >= 80
        nothing_is_left(one, other)


def test_blocks_that_leave_the_pool_before_they_are_copied(models: tuple[Path, Path]) -> None:
    port, model = new_port(), models[0]
    expected = alone(model)
    with LLM(**settings_of(model), **producing(port)) as one, LLM(**settings_of(model), **consuming(port)) as other:
        connector_of(one).copy_some = lambda cache: False  # type: ignore[method-assign]  # no step has time for copies
        lease = prefill(one, "p", PROMPT)
        for stride in (3, 5, 9, 11, 13, 17, 19):  # they evict the prompt's blocks
            prompt = [1, *(3 + stride * index % 250 for index in range(110))]
            one.generate([{"prompt_token_ids": prompt}], SamplingParams(max_tokens=2), use_tqdm=False)
        assert core_of(one).scheduler.kv.lookup_now(KVSequence(PROMPT)).num_tokens == 0
        output = decode(other, "d", PROMPT, PARAMS, lease)
        assert told(output) == expected and output.num_cached_tokens >= 80
        nothing_is_left(one, other)


def test_other_weights_in_between(models: tuple[Path, Path]) -> None:
    port, (first, second) = new_port(), models
    of_first, of_second = alone(first), alone(second)
    weights = {"weight_transfer_config": {}}
    with (
        LLM(**settings_of(first), **producing(port, **weights)) as one,
        LLM(**settings_of(first), **consuming(port, **weights)) as other,
    ):
        lease = prefill(one, "a", PROMPT)
        one.update_weights(path=str(second), weight_version="second")
        output = decode(other, "a", PROMPT, PARAMS, lease)
        assert told(output) == of_first and not output.num_cached_tokens, "the engines do not agree"
        other.update_weights(path=str(second), weight_version="second")
        output = decode(other, "b", PROMPT, PARAMS, lease)
        assert told(output) == of_second and not output.num_cached_tokens, "the lease was of the first weights"
        other.reset_prefix_cache()
        output = decode(other, "c", PROMPT, PARAMS, prefill(one, "c", PROMPT))
        assert told(output) == of_second and output.num_cached_tokens >= 80
        lease = prefill(one, "d", PROMPT)
        one.reset_prefix_cache()
        other.reset_prefix_cache()
        output = decode(other, "d", PROMPT, PARAMS, lease)
        assert told(output) == of_second and not output.num_cached_tokens, "the user has reset the cache"
        nothing_is_left(one, other)


def test_aborts_on_either_side(models: tuple[Path, Path]) -> None:
    port, model = new_port(), models[0]
    expected = alone(model)
    with LLM(**settings_of(model), **producing(port)) as one, LLM(**settings_of(model), **consuming(port)) as other:
        producer, consumer = handoffs_of(one), handoffs_of(other)
        for steps in (0, 1):
            producer.watch("gone")
            add(one, "gone", steps)
            client_of(one).abort(["gone"])
            assert producer.lease("gone") is None
        for steps in (0, 1, 3):
            name = f"gone {steps}"
            consumer.claim(name, Source(**prefill(one, name, PROMPT)), "")
            add(other, name, steps)
            client_of(other).abort([name])
            until(lambda: not consumer.counts()["buffered_bytes"])
            other.reset_prefix_cache()
        connector_of(one).leases.drop_all()  # of a claim that ended before it was shown
        output = decode(other, "d", PROMPT, PARAMS, prefill(one, "d", PROMPT))
        assert told(output) == expected and output.num_cached_tokens >= 80
        nothing_is_left(one, other)


def test_a_peer_that_stalls_holds_up_its_own_request_for_a_limited_time(
    models: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_module, "LIMIT_S", 0.2)
    port, model = new_port(), models[0]
    expected = alone(model)
    with LLM(**settings_of(model), **producing(port)) as one:
        between = Between(("127.0.0.1", port))
        go = threading.Event()
        between.pass_on = lambda data: (go.wait(60), data)[1]
        place = int(between.address.rpartition(":")[2])
        with LLM(**settings_of(model), **consuming(place)) as other:
            output = decode(other, "d", PROMPT, PARAMS, prefill(one, "d", PROMPT) | {"port": place})
            assert told(output) == expected and not output.num_cached_tokens
            go.set()
            until(lambda: handoffs_of(other).counts().get("claim.dropped"))
        between.cut()


def add(llm: LLM, name: str, steps: int) -> None:
    """Queue a request and run some steps of it."""
    client = client_of(llm)
    client.add(with_grammar(llm, name, {"prompt_token_ids": PROMPT}, PARAMS, None).requests)
    for _ in range(steps):
        client.step()
