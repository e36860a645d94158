"""What a server tells of itself, names that come and go, times of answers, and the order that priorities ask for."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from scheduler.fake_model import make_scheduler

from core.api.config import EngineConfig
from core.api.errors import ConfigError
from core.api.messages import EngineOutputs, EngineRequest
from core_apis import served_names
from core_config.served.names_file import MAX_NAMES, read_names
from core_config.served.server_config import ServerConfig
from core_tokens.tokenizer import Tokenizer
from tests.apis.conftest import RunningServer, run_server
from tests.apis.fake_engine import EOS, MAX_MODEL_LEN, SPECIAL, TEMPLATE
from tests.apis.test_explain import BLOCK_SIZE, NUM_BLOCKS, ScheduledClient

Starter = Callable[..., Any]
HI = [{"role": "user", "content": "Hi"}]


def quiet(**settings: Any) -> ServerConfig:
    return ServerConfig(uvicorn_log_level="warning", **settings)


class TimedClient(ScheduledClient):
    """Says when prompts began to be computed, as the client of a real engine does."""

    def listen(self, on_outputs: Any, on_death: object) -> None:
        def told(outputs: EngineOutputs) -> None:
            for output in outputs.outputs:
                if output.start == 0:
                    output.begin_time = time.time() - 0.001
            on_outputs(outputs)

        super().listen(told, on_death)


@pytest.fixture(scope="module")
def scheduled() -> Iterator[RunningServer]:
    """A server over a real scheduler."""
    with run_server(quiet(), make_client=TimedClient) as running:
        yield running


def check_times(told: dict[str, Any], num_prompt: int, num_tokens: int) -> None:
    assert told["cache_n"] + told["prompt_n"] == num_prompt
    assert told["predicted_n"] == num_tokens
    assert all(0 <= told[name] < 20_000 for name in ("queue_ms", "prompt_ms", "predicted_ms")), told
    if told["predicted_ms"]:
        rate = (num_tokens - 1) / told["predicted_ms"] * 1000
        assert told["predicted_per_second"] == pytest.approx(rate, rel=0.01)


def test_an_answer_tells_its_times_when_it_is_asked(scheduled: RunningServer) -> None:
    body = {"prompt": "Times?", "max_tokens": 6, "ignore_eos": True}
    assert "timings" not in scheduled.http.post("/v1/completions", json=body).json()
    answer = scheduled.http.post("/v1/completions", json={**body, "timings": True}).json()
    check_times(answer["timings"], answer["usage"]["prompt_tokens"], 6)
    chat = {"messages": HI, "max_tokens": 6, "ignore_eos": True, "timings": True}
    answer = scheduled.http.post("/v1/chat/completions", json=chat).json()
    check_times(answer["timings"], answer["usage"]["prompt_tokens"], 6)
    assert "explain" not in answer


def test_responses_and_messages_tell_their_times_to_the_official_clients(scheduled: RunningServer) -> None:
    asked: dict[str, Any] = {"model": "alias", "extra_body": {"timings": True, "ignore_eos": True}}
    response: dict[str, Any] = {"input": "Times?", "max_output_tokens": 4, "store": False, **asked}
    whole = scheduled.openai().responses.create(**response)
    check_times(whole.model_extra["timings"], whole.usage.input_tokens, 4)
    *before, last = scheduled.openai().responses.create(stream=True, **response)
    check_times(last.response.model_extra["timings"], whole.usage.input_tokens, 4)
    assert not any("timings" in event.to_json() for event in before)

    message: dict[str, Any] = {"messages": HI, "max_tokens": 4, "model": "alias", "extra_body": {"timings": True}}
    answer = scheduled.anthropic().messages.create(**message)
    usage = answer.usage
    check_times(answer.model_extra["timings"], usage.input_tokens + usage.cache_read_input_tokens, usage.output_tokens)
    with scheduled.anthropic().messages.stream(**message) as events:
        told = {event.type: event.model_extra for event in events if "timings" in (event.model_extra or {})}
    assert list(told) == ["message_delta"]
    assert told["message_delta"]["timings"]["predicted_n"] == usage.output_tokens


def test_several_prompts_have_times_of_their_own(scheduled: RunningServer) -> None:
    body = {"prompt": ["One", "The second"], "max_tokens": 3, "ignore_eos": True, "timings": True}
    answer = scheduled.http.post("/v1/completions", json=body).json()
    first, second = answer["timings"]
    assert second["cache_n"] + second["prompt_n"] > first["cache_n"] + first["prompt_n"]


def test_a_stream_tells_them_in_its_last_chunk(scheduled: RunningServer) -> None:
    options: Any = {
        "model": "alias",
        "max_tokens": 5,
        "stream": True,
        "extra_body": {"timings": True, "ignore_eos": True},
    }
    *before, last = scheduled.openai().chat.completions.create(messages=HI, **options)
    assert not any("timings" in (chunk.model_extra or {}) for chunk in before)
    assert last.choices == [] and last.model_extra["timings"]["predicted_n"] == 5


def test_names_come_and_go_while_the_server_runs(
    start_server: Starter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_names, "LOOK_S", 0.0)
    file = tmp_path / "names.txt"
    file.write_text("# more names\nfirst\n\nsecond # of them\n")
    with start_server(quiet(served_model_name_file=str(file))) as running:

        def listed() -> list[str]:
            return [card["id"] for card in running.http.get("/v1/models").json()["data"]]

        def ask(name: str) -> tuple[int, str]:
            answer = running.http.post("/v1/completions", json={"model": name, "prompt": "Hi"})
            return answer.status_code, answer.json().get("model", "")

        assert listed() == ["fake-model", "alias", "first", "second"]
        assert ask("second") == (200, "second")
        file.write_text("third\n")
        assert listed() == ["fake-model", "alias", "third"]
        assert (ask("second")[0], ask("third"), ask("alias")) == (404, (200, "third"), (200, "alias"))
        file.unlink()
        assert listed() == ["fake-model", "alias", "third"], "a file that is gone changes nothing"
        file.write_text("alias\n")
        assert listed() == ["fake-model", "alias"]


def test_a_file_is_not_looked_at_for_each_request(tmp_path: Path) -> None:
    file = tmp_path / "names.txt"
    file.write_text("one")
    names = served_names.ServedNames(("base",), str(file))
    assert names.now() == ("base", "one")
    file.write_text("two")
    assert names.now() == ("base", "one")


@pytest.mark.parametrize(
    "text, told",
    [(b"\xff\xfe", "no UTF-8"), (b"a" * 201, "is no name"), (b"a\x07b", "is no name"), (b"x\n" * 40_000, "too long")],
)
def test_wrong_files_of_names_are_sentences(tmp_path: Path, text: bytes, told: str) -> None:
    file = tmp_path / "names.txt"
    file.write_bytes(text)
    with pytest.raises(ConfigError, match=told):
        read_names(str(file))


def test_many_names_are_too_many(tmp_path: Path) -> None:
    file = tmp_path / "names.txt"
    file.write_text("\n".join(f"n{number}" for number in range(MAX_NAMES + 1)))
    with pytest.raises(ConfigError, match="at most 1000 names"):
        read_names(str(file))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_names(str(tmp_path / "nowhere"))


def test_the_tokenizer_is_told_where_that_was_asked_for(start_server: Starter, server: RunningServer) -> None:
    assert server.http.get("/tokenizer_info").status_code == 404
    with start_server(quiet(enable_tokenizer_info_endpoint=True)) as running:
        told = running.http.get("/tokenizer_info").json()
        ids = running.http.post("/tokenize", json={"prompt": told["eos_token"], "add_special_tokens": False}).json()
    assert told["chat_template"] == TEMPLATE and told["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert ids["tokens"] == [EOS]
    assert told["model_max_length"] == MAX_MODEL_LEN and told["pad_token"] is None
    added = told["added_tokens_decoder"]
    assert [added[str(index)]["content"] for index in range(len(SPECIAL))] == list(SPECIAL)
    assert all(set(token) >= {"content", "special", "lstrip"} for token in added.values())


def test_a_server_without_texts_tells_of_no_tokenizer(start_server: Starter) -> None:
    with start_server(quiet(enable_tokenizer_info_endpoint=True), texts=False) as running:
        refused = running.http.get("/tokenizer_info")
    assert refused.status_code == 400 and "without a tokenizer" in refused.json()["error"]["message"]


def test_server_info_is_the_operators(start_server: Starter, server: RunningServer) -> None:
    told = server.http.get("/server_info").json()
    assert told["served_names"] == ["fake-model", "alias"] and told["version"]
    assert server.http.get("/server_info?config_format=text").json()["error"]["param"] == "config_format"
    with start_server(quiet(api_keys=("ann", "bob"))) as running:
        assert running.http.get("/server_info").status_code == 401
        refused = running.http.get("/server_info", headers={"authorization": "Bearer ann"})
        assert refused.status_code == 403 and "--admin-api-key" in refused.json()["error"]["message"]


def test_the_pages_about_the_api_need_no_network(server: RunningServer) -> None:
    for path in ("/docs", "/redoc"):
        page = server.http.get(path).text
        assert "http://" not in page and "https://" not in page
        assert 'src="docs/reference.js"' in page and 'href="docs/page.css"' in page
    for name in ("reference.js", "elements.js", "page.css"):
        assert server.http.get(f"/docs/{name}").status_code == 200
    assert server.http.get("/docs/index.html").status_code == 404


class PatientClient(ScheduledClient):
    """Begins when four requests wait, under the priority policy and one at a time. ended: priorities in their order."""

    def __init__(self, tokenizer: Tokenizer, config: EngineConfig) -> None:
        super().__init__(tokenizer, config)
        limits: dict[str, Any] = {"max_model_len": MAX_MODEL_LEN, "max_num_batched_tokens": MAX_MODEL_LEN}
        self.scheduler = make_scheduler(NUM_BLOCKS, BLOCK_SIZE, max_num_seqs=1, policy="priority", **limits)
        self.waiting: list[EngineRequest] = []
        self.ended: list[int] = []

    async def add(self, requests: Sequence[EngineRequest]) -> None:
        self.waiting += requests
        if len(self.waiting) == 4:
            await super().add(self.waiting)

    def listen(self, on_outputs: Any, on_death: object) -> None:
        def told(outputs: EngineOutputs) -> None:
            priorities = {request.request_id: request.priority for request in self.waiting}
            self.ended += [priorities[one.request_id] for one in outputs.outputs if one.finish_reason]
            on_outputs(outputs)

        super().listen(told, on_death)


def test_priorities_of_requests_are_the_order_in_which_they_run() -> None:
    with run_server(quiet(), make_client=PatientClient) as running:

        def ask(priority: int) -> int:
            body = {"prompt": "Hi", "max_tokens": 8, "ignore_eos": True, "priority": priority}
            return running.http.post("/v1/completions", json=body).status_code

        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(ask, (3, -1, 2, 0))) == [200] * 4
        assert isinstance(running.fake, PatientClient) and running.fake.ended == [-1, 0, 2, 3]
