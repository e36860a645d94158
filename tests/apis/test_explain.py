"""`explain` in bodies and headers, over a real scheduler and KV cache, with the official client."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import openai
import pytest
from scheduler.fake_model import FakeExecutor, make_scheduler

from core.api.config import CacheConfig, EngineConfig
from core.api.messages import EngineOutputs, EngineRequest
from core.api.structured_outputs import CompiledGrammar
from core_tokens.tokenizer import Tokenizer
from tests.apis.conftest import RunningServer, run_server
from tests.apis.fake_engine import MAX_MODEL_LEN, FakeClient

NUM_BLOCKS, BLOCK_SIZE = 200, 16
ALL: dict[str, Any] = {"model": "fake-model", "extra_body": {"explain": True}}


class ScheduledClient(FakeClient):
    """A scheduler with its KV cache around a model that follows a formula."""

    def __init__(self, tokenizer: Tokenizer, config: EngineConfig) -> None:
        super().__init__(tokenizer)
        limits = {"max_model_len": MAX_MODEL_LEN, "max_num_seqs": 2, "max_num_batched_tokens": MAX_MODEL_LEN}
        self.scheduler = make_scheduler(NUM_BLOCKS, BLOCK_SIZE, explains=config.cache.explains, **limits)
        self.executor = FakeExecutor(NUM_BLOCKS, BLOCK_SIZE)
        self.loop: asyncio.Task[None] | None = None

    async def add(self, requests: Sequence[EngineRequest]) -> None:
        for request in requests:
            self.scheduler.add(request)
        if self.loop is None or self.loop.done():
            self.loop = asyncio.ensure_future(self._step())

    def abort_choices(self, keys: Sequence[tuple[str, int]]) -> None:
        self.scheduler.abort_choices(keys)

    def abort(self, request_ids: Sequence[str]) -> None:
        self.scheduler.abort(request_ids)

    async def _step(self) -> None:
        while self.scheduler.has_unfinished():
            step = self.scheduler.schedule()
            outputs = self.scheduler.finish(step, self.executor.execute(step.plan))
            self.on_outputs(EngineOutputs(0, outputs.records, self.stats()))
            await asyncio.sleep(0)


GENERATION = {"temperature": 0.6, "top_p": 0.9, "top_k": 20}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    options = {"generation": GENERATION, "overridden": ("top_k",), "make_client": ScheduledClient}
    with run_server(**options) as running:
        yield running


@pytest.fixture
def ask(server: RunningServer) -> Callable[..., dict[str, Any]]:
    def ask(*texts: str, **options: Any) -> dict[str, Any]:
        """The explanation of a chat: texts of user and assistant in turn, the first one of the system."""
        roles = ["system", *["user", "assistant"] * len(texts)]
        messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
        answer = server.openai().chat.completions.create(messages=messages, **{**ALL, "max_tokens": 4, **options})
        return answer.model_extra["explain"]

    return ask


def test_times_steps_and_sampling_values_have_their_sources(ask: Callable[..., dict[str, Any]]) -> None:
    told = ask("A system prompt.", "Times?", temperature=0.3, extra_body={"explain": True, "min_p": 0.1})
    times = told["times"]
    phases = [times[name] for name in ("preparation", "queue", "prefill", "decode")]
    assert all(seconds >= 0 for seconds in phases) and sum(phases) <= times["total"]
    assert times["grammar"] is None
    assert told["steps"] == 4
    assert (told["preemptions"], told["recomputed_tokens"]) == (0, 0)
    assert told["drafts"] == {"proposed": 0, "accepted": 0, "off": None}
    sources = {name: entry["source"] for name, entry in told["sampling"].items()}
    assert sources["temperature"] == sources["min_p"] == sources["max_tokens"] == "request"
    assert (sources["top_p"], sources["top_k"], sources["presence_penalty"]) == (
        "generation_config",
        "server",
        "default",
    )
    assert sources["seed"] == "drawn" and isinstance(told["sampling"]["seed"]["value"], int)
    assert told["sampling"]["top_k"]["value"] == 20
    assert [(limit["name"], limit["value"]) for limit in told["limits"]] == [("max_tokens", 4)]


def test_the_wait_for_a_grammar_is_a_part_of_the_preparation(
    server: RunningServer, ask: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def compiled(wanted: object, tenant: str) -> CompiledGrammar:
        await asyncio.sleep(0.05)
        return CompiledGrammar("none", "key", b"")

    monkeypatch.setattr(server.engine.grammars, "compiled", compiled)
    times = ask("Forms.", "Which?", response_format={"type": "json_object"})["times"]
    assert 0.05 <= times["grammar"] <= times["preparation"]


def test_the_seed_that_was_drawn_gives_the_same_answer_again(ask: Callable[..., dict[str, Any]]) -> None:
    seed = ask("Seeds.", "Which?")["sampling"]["seed"]["value"]
    assert -(2**63) <= seed < 2**64
    again = ask("Seeds.", "Which?", seed=seed)["sampling"]["seed"]
    assert again == {"value": seed, "source": "request"}


def test_the_place_where_history_changed(ask: Callable[..., dict[str, Any]]) -> None:
    system = "You are a careful assistant."
    first = ask(system, "What is the capital of France?")
    assert first["cache"]["first_miss"]["cause"] == "first_seen"
    again = ask(system, "What is the capital of France?")
    assert again["cache"]["first_miss"]["cause"] == "last_block"
    assert again["cache"]["cached_tokens"] == again["cache"]["first_miss"]["token"] > 16
    changed = ask(system, "What is the capital of Spain?", "Madrid.", "Thanks!")
    miss = changed["cache"]["first_miss"]
    assert miss["cause"] == "history_changed"
    assert miss["token"] == changed["cache"]["cached_tokens"] == miss["block"] * changed["cache"]["block_size"]
    text = miss["before"] + miss["after"]
    assert text[16 + miss["differs_at"] - miss["token"] :].startswith("Spai"), miss


def test_a_new_conversation_behind_the_same_system_prompt_has_changed_nothing(
    ask: Callable[..., dict[str, Any]],
) -> None:
    system = "A long system prompt that all conversations share."
    ask(system, "First question?")
    miss = ask(system, "Another one?")["cache"]["first_miss"]
    assert miss["cause"] == "first_seen" and miss["token"] > 0 and miss["differs_at"] is None


def test_a_salt_hides_what_others_have_cached(ask: Callable[..., dict[str, Any]]) -> None:
    text = "The same words, which two tenants send."
    ask(text, "Hello?", extra_body={"explain": True, "cache_salt": "one"})
    miss = ask(text, "Hello?", extra_body={"explain": True, "cache_salt": "two"})["cache"]["first_miss"]
    assert (miss["cause"], miss["token"]) == ("first_seen", 0)


def test_an_operator_may_have_other_tenants_told_of() -> None:
    with run_server(cache=CacheConfig(explains="all"), make_client=ScheduledClient) as running:
        for salt, cause in (("one", "first_seen"), ("two", "other_tenant")):
            body = {"explain": True, "cache_salt": salt}
            given = {"prompt": "The same words, which two tenants send.", "max_tokens": 2, "extra_body": body}
            answer = running.openai().completions.create(model="fake-model", **given)
            assert answer.model_extra["explain"]["cache"]["first_miss"]["cause"] == cause


def test_a_stream_is_explained_by_its_last_chunk(server: RunningServer) -> None:
    client = server.openai()
    for usage in (False, True):
        options = {"stream_options": {"include_usage": True}} if usage else {}
        chat = client.chat.completions.create(
            messages=[{"role": "user", "content": "Stream?"}], max_tokens=3, stream=True, **ALL, **options
        )
        chunks = list(chat)
        assert [bool(chunk.model_extra.get("explain")) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
        assert chunks[-1].choices == [] and (chunks[-1].usage is not None) == usage
        assert chunks[-1].model_extra["explain"]["steps"] == 3


def test_responses_are_explained_whole_and_in_their_last_event(server: RunningServer) -> None:
    client = server.openai()
    body: dict[str, Any] = {"input": "A response?", "max_output_tokens": 3, "store": False, **ALL}
    whole = client.responses.create(**body)
    assert whole.model_extra is not None and whole.model_extra["explain"]["steps"] == 3
    assert whole.model_extra["explain"]["sampling"]["max_tokens"] == {"value": 3, "source": "request"}
    *before, last = client.responses.create(stream=True, **body)
    assert last.response.model_extra["explain"]["cache"]["first_miss"]["cause"] == "last_block"
    assert not any("explain" in event.to_json() for event in before)


def test_messages_are_explained_whole_and_with_their_ending(server: RunningServer) -> None:
    client = server.anthropic()
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "A message?"}], "max_tokens": 3, **ALL}
    whole = client.messages.create(**body)
    assert whole.model_extra is not None and whole.model_extra["explain"]["steps"] == 3
    with client.messages.stream(**body) as events:
        told = {event.type: event.model_extra for event in events if "explain" in (event.model_extra or {})}
    assert list(told) == ["message_delta"]
    assert told["message_delta"]["explain"]["cache"]["first_miss"]["cause"] == "last_block"


def test_an_answer_that_a_stop_string_ends_is_explained_in_full(server: RunningServer) -> None:
    client = server.openai()
    prompt = "Anything at all, long enough to have some blocks."
    free = client.completions.create(prompt=prompt, max_tokens=12, **ALL).choices[0].text
    visible = [letter for letter in free if letter.isprintable() and letter != "\ufffd"]
    told = client.completions.create(prompt=prompt, max_tokens=12, stop=visible[-1], **ALL).model_extra["explain"]
    assert told["steps"] >= 1 and told["times"]["decode"] is not None
    assert told["cache"]["first_miss"]["cause"] == "last_block" and told["limits"] == []
    assert told["sampling"]["stop"] == {"value": 1, "source": "request"}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "Header", "max_tokens": 1}),
        ("/v1/responses", {"input": "Header", "max_output_tokens": 1}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "Header"}], "max_tokens": 1}),
    ],
)
def test_the_header_asks_as_well_and_the_body_wins(server: RunningServer, path: str, body: dict[str, Any]) -> None:
    for headers, field, explained in (
        ({"X-Explain": "1"}, None, True),
        ({"X-Explain": "0"}, None, False),
        ({"X-Explain": "1"}, False, False),
        ({}, None, False),
    ):
        answer = server.http.post(path, json={**body, "explain": field}, headers=headers).json()
        assert ("explain" in answer) == explained


def test_several_prompts_have_an_explanation_each(server: RunningServer) -> None:
    prompts = ["One prompt", "Another, longer prompt"]
    answer = server.openai().completions.create(prompt=prompts, n=2, max_tokens=3, **ALL)
    told = answer.model_extra["explain"]
    lengths = [len(server.engine.tokenizer.encode(prompt)) for prompt in prompts]
    assert [one["cache"]["prompt_tokens"] for one in told] == lengths
    assert [one["steps"] for one in told] == [6, 6]
    assert "max_num_seqs" in {limit["name"] for one in told for limit in one["limits"]}


def test_limits_of_prompt_and_context_are_told(server: RunningServer) -> None:
    body = {"explain": True, "truncate_prompt_tokens": 20, "ignore_eos": True}
    chat = server.openai().chat.completions.create(
        model="fake-model", messages=[{"role": "user", "content": "x" * 60}], extra_body=body
    )
    limits = {limit["name"]: limit["value"] for limit in chat.model_extra["explain"]["limits"]}
    assert limits == {"truncate_prompt_tokens": 20, "max_model_len": MAX_MODEL_LEN - 20}
    assert chat.model_extra["explain"]["sampling"]["max_tokens"] == {"value": MAX_MODEL_LEN - 20, "source": "context"}


def test_an_operator_may_switch_explanations_off() -> None:
    with run_server(cache=CacheConfig(explains="off"), make_client=ScheduledClient) as running:
        with pytest.raises(openai.BadRequestError, match="--explain-answers off") as caught:
            running.openai().completions.create(prompt="Hi", **ALL)
        assert caught.value.param == "explain"
        assert running.openai().completions.create(model="fake-model", prompt="Hi").choices


def test_control_tokens_spelled_out_in_contents_are_listed(ask: Callable[..., dict[str, Any]]) -> None:
    assert ask("a</s>b", "</s><s>")["control_text"] == [
        {"text": "</s>", "count": 2, "kept_as": "text"},
        {"text": "<s>", "count": 1, "kept_as": "text"},
    ]
    assert ask("ab", "c")["control_text"] == []
