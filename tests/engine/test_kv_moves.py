"""Running requests that change engines with their blocks: tokens and log-probabilities are those of an engine alone."""

import functools
from pathlib import Path
from typing import Any

import pytest

from core import LLM, SamplingParams
from core_frontend.library.lora_request import LoRARequest
from tests.adapters.made import save_adapter
from tests.engine.kv_handoffs import connector_of, handoffs_of, told
from tests.engine.kv_moves import BLOCK, SETTINGS, Pair, known
from tests.executor.regex_grammar import compiled, install
from tests.inside import client_of, core_of, digest_of, run_entries, with_grammar
from tests.kv.test_peers import until
from tests.tiny_models import save_checkpoint

PROMPT = [1, *(3 + 7 * index % 250 for index in range(70))]
PARAMS = SamplingParams(temperature=0.8, seed=5, max_tokens=40, ignore_eos=True, logprobs=2, n=2)
LOOP = r'(\{"name": "[a-z]{1,4}", "age": [0-9]{1,3}\}\n)+'
SHARED = len(PROMPT) // BLOCK * BLOCK
"""Tokens of the prompt that the second choice finds once the first one has computed them."""
DRAFTS = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}


def answered(llm: LLM, params: SamplingParams = PARAMS, prompt: list[int] = PROMPT, **more: Any) -> list[Any]:
    """What one engine answers by itself, with an empty cache."""
    entry = with_grammar(llm, "alone", {"prompt_token_ids": prompt}, params, more.get("grammar"))
    for request in entry.requests:
        request.adapter = more.get("adapter", "")
    (output,) = run_entries(llm, [entry])
    llm.reset_prefix_cache()
    return told(output)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two checkpoints of one shape with other weights."""
    place = tmp_path_factory.mktemp("models")
    return save_checkpoint(place / "one", seed=1), save_checkpoint(place / "other", seed=2)


@functools.cache
def alone(model: Path) -> list[Any]:
    """What an engine with a model answers; asked again, it is not started again."""
    with LLM(model=str(model), **SETTINGS) as llm:
        return answered(llm)


@pytest.mark.parametrize(
    ("family", "more"),
    [
        ("llama", {}),
        ("llama", {"max_num_batched_tokens": 32}),
        ("llama", DRAFTS),
        ("gemma3", {}),
        ("deepseek_v2", {}),
        ("lfm2", {}),
        ("lfm2", DRAFTS),
    ],
    ids=["dense", "chunks", "drafts", "window", "latent", "state", "state and drafts"],
)
def test_a_request_goes_on_to_the_bit(family: str, more: dict[str, Any], tmp_path: Path) -> None:
    with Pair(save_checkpoint(tmp_path / family, family=family), **more) as pair:
        one, other = pair.one, pair.other
        expected = answered(one)
        for steps in (2, 17, 29):
            name = f"r{steps}"
            before = core_of(other).scheduler.kv.num_hit_tokens
            state = pair.begin(one, name, PROMPT, PARAMS, steps)
            wanted = known(state, len(PROMPT))
            lease = pair.move(one, other, state)
            assert lease is not None and lease["num_bytes"] > 0
            assert told(pair.finish(name)) == expected
            hits = core_of(other).scheduler.kv.num_hit_tokens - before
            # A prompt that is computed in chunks has fewer blocks at first.
            assert 0 < hits <= wanted and (steps == 2 or hits == wanted), "only open blocks are computed again"
            outcome = pair.outcome(other, name)
            assert outcome["num_pages"] > 0 and outcome["num_bytes"] > 0 and outcome["why"] == ""
            pair.check_nothing_is_left()
            pair.empty()
        taken, leased = handoffs_of(other).counts(), handoffs_of(one).counts()
        assert taken["claim.received"] == leased["lease.released"] == 3
        assert taken["claim.pages_received"] == leased["lease.pages_received"] == leased["lease.pages_sent"]


def test_there_and_back_with_a_grammar_and_company(models: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    grammar, neighbour = compiled(LOOP), [1, *range(40, 70)]
    params = SamplingParams(temperature=0.8, seed=5, max_tokens=40, logprobs=2)
    with Pair(models[0]) as pair:
        one, other = pair.one, pair.other
        endless = SamplingParams(temperature=0.8, seed=5, max_tokens=40, ignore_eos=True, logprobs=2)
        expected = answered(one, params, grammar=grammar), answered(one, endless, neighbour)
        pair.begin(other, "neighbour", neighbour, endless, 3)
        state = pair.begin(one, "r", PROMPT, params, 6, grammar=grammar)
        given = state.num_given()[0]
        assert pair.move(one, other, state) is not None
        while state.num_given()[0] < given + 4:
            pair.step(one)
            pair.step(other)
        assert pair.move(other, one, state) is not None
        assert (told(pair.finish("r")), told(pair.finish("neighbour"))) == expected
        pair.check_nothing_is_left()


def test_an_adapter(models: tuple[Path, Path], tmp_path: Path) -> None:
    adapter = save_adapter(models[0], tmp_path / "adapter")
    with Pair(models[0], enable_lora=True, max_lora_rank=8) as pair:
        digests = {digest_of(llm, LoRARequest("a", lora_path=str(adapter))) for llm in (pair.one, pair.other)}
        (digest,) = digests
        expected = answered(pair.one, adapter=digest)
        assert expected != alone(models[0])
        state = pair.begin(pair.one, "r", PROMPT, PARAMS, 20, adapter=digest)
        wanted = known(state, len(PROMPT))
        assert pair.move(pair.one, pair.other, state) is not None
        assert told(pair.finish("r")) == expected
        assert core_of(pair.other).scheduler.kv.num_hit_tokens == wanted
        pair.check_nothing_is_left()


def test_weights_that_are_replaced_in_between(models: tuple[Path, Path]) -> None:
    first, second = models
    weights: dict[str, Any] = {"weight_transfer_config": {}}
    update = {"path": str(second), "weight_version": "second"}
    with Pair(first, **weights) as pair:
        state = pair.begin(pair.one, "alone", PROMPT, PARAMS, 20)
        given = state.num_given()
        pair.one.update_weights(**update)
        expected = told(pair.finish("alone"))
    with Pair(first, **weights) as pair:
        state = pair.begin(pair.one, "r", PROMPT, PARAMS, 20)
        assert state.num_given() == given
        assert pair.move(pair.one, pair.other, state) is not None
        pair.one.update_weights(**update)
        pair.other.update_weights(**update)
        assert told(pair.finish("r")) == expected
        # Pages of the first weights are worth nothing; a choice shares what the other one has computed.
        assert core_of(pair.other).scheduler.kv.num_hit_tokens <= SHARED
        pair.check_nothing_is_left()


@pytest.mark.parametrize("lost", ["listener", "pages"])
def test_the_first_engine_dies_before_or_while_pages_travel(models: tuple[Path, Path], lost: str) -> None:
    with Pair(models[0]) as pair:
        connector = connector_of(pair.one)
        if lost == "pages":
            connector.copy_some = lambda cache: False  # type: ignore[method-assign]  # no page is ever there
        state = pair.begin(pair.one, "r", PROMPT, PARAMS, 20)
        if lost == "listener":
            lease = handoffs_of(pair.one).hand_over("r")
            assert lease is not None
            connector.close(0.0)
            pair.claim(pair.other, state, lease)
            client_of(pair.other).add(state.resumed())
        else:
            pair.move(pair.one, pair.other, state)
            until(lambda: handoffs_of(pair.one).counts().get("lease.granted"))
            connector.close(0.0)
        assert told(pair.finish("r")) == alone(models[0])
        assert pair.outcome(pair.other, "r")["why"]
        assert core_of(pair.other).scheduler.kv.num_hit_tokens <= SHARED
        pair.check_nothing_is_left()


def test_a_lease_that_has_ended_and_a_ticket_that_was_altered(models: tuple[Path, Path]) -> None:
    with Pair(models[0]) as pair:
        observer = handoffs_of(pair.one)
        leases = connector_of(pair.one).leases
        assert leases is not None
        for name in ("dropped", "all dropped", "altered"):
            state = pair.begin(pair.one, name, PROMPT, PARAMS, 20)
            lease = observer.hand_over(name)
            assert lease is not None and observer.counts()["leases"] == 1
            shown = lease
            if name == "dropped":
                observer.drop_lease(lease["ticket"])
            elif name == "all dropped":
                leases.drop_all()
            else:
                shown = lease | {"ticket": lease["ticket"][:-2] + "xx"}
            assert observer.counts()["leases"] == (name == "altered")
            pair.claim(pair.other, state, shown)
            client_of(pair.other).add(state.resumed())
            assert told(pair.finish(name)) == alone(models[0])
            assert "ticket" in pair.outcome(pair.other, name)["why"]
            observer.drop_lease(lease["ticket"])
            pair.check_nothing_is_left()
            pair.empty()
        assert observer.counts()["lease.refused.forged"] == 1
        assert observer.counts()["lease.refused.spent"] == 2


def test_a_client_that_goes_away_in_each_state(models: tuple[Path, Path]) -> None:
    with Pair(models[0]) as pair:
        producer, consumer = handoffs_of(pair.one), handoffs_of(pair.other)
        for state_of_it in ("stopped", "claimed", "sent in part", "sent", "running"):
            state = pair.begin(pair.one, state_of_it, PROMPT, PARAMS, 20)
            lease = producer.hand_over(state_of_it)
            assert lease is not None
            resumed = state.resumed()
            if state_of_it != "stopped":
                pair.claim(pair.other, state, lease)
            if state_of_it == "claimed":
                consumer.end(state_of_it)
            elif state_of_it == "sent in part":
                client_of(pair.other).add(resumed[:1])
                pair.step(pair.other)
                assert consumer.counts()["waiting"] == 1, "it waits for the other choice"
            elif state_of_it in ("sent", "running"):
                client_of(pair.other).add(resumed)
            while state_of_it == "running" and consumer.counts()["waiting"]:
                pair.step(pair.one)
                pair.step(pair.other)
            pair.abort(state_of_it)
            producer.drop_lease(lease["ticket"])  # as the group does for a lease that nobody has claimed
            pair.check_nothing_is_left()
        state = pair.begin(pair.one, "r", PROMPT, PARAMS, 20)
        pair.move(pair.one, pair.other, state)
        assert told(pair.finish("r")) == alone(models[0])


def test_a_choice_that_ends_on_the_way_holds_up_no_other(models: tuple[Path, Path]) -> None:
    with Pair(models[0]) as pair:
        state = pair.begin(pair.one, "r", PROMPT, PARAMS, 20)
        lease = handoffs_of(pair.one).hand_over("r")
        assert lease is not None
        resumed = state.resumed()
        pair.claim(pair.other, state, lease)
        client_of(pair.other).add(resumed[:1])
        pair.step(pair.other)
        client_of(pair.other).add(resumed[1:])
        client_of(pair.other).abort_choices([("r", 1)])
        state.fail(1, "its client has found a stop string")
        assert told(pair.finish("r"))[0] == alone(models[0])[0]
        assert core_of(pair.other).scheduler.kv.num_hit_tokens > 0
        pair.check_nothing_is_left()


def test_prompts_that_wait_or_whose_log_probabilities_are_still_to_come(models: tuple[Path, Path]) -> None:
    params = SamplingParams(temperature=0.8, seed=5, max_tokens=12, ignore_eos=True, logprobs=2, prompt_logprobs=1)
    with Pair(models[0]) as pair:
        expected = answered(pair.one, params)
        for steps, has_lease in ((0, False), (8, True)):
            name = f"r{steps}"
            state = pair.begin(pair.one, name, PROMPT, params, steps)
            assert (pair.move(pair.one, pair.other, state) is not None) is has_lease
            output = pair.finish(name)
            assert told(output) == expected and len(output.prompt_logprobs or []) == len(PROMPT)
            pair.check_nothing_is_left()
            pair.empty()
        assert handoffs_of(pair.one).hand_over("unknown") is None
