"""Work whose size a client sets is done outside the thread of the event loop, and small work is done in it."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

from core.api.messages import EngineRequest
from core_apis.answers import completion_writer
from core_apis.answers.completion_writer import CompletionWriter
from core_apis.answers.json_pieces import ENTRIES
from core_apis.answers.logprobs import LogprobsFormatter
from core_apis.generation import TASKS_AT_ONCE, merge
from core_apis.prepare.preparation import Preparation
from core_apis.prepare.process import Answer
from core_apis.responses.stored_response import StoredResponse
from core_apis.responses.writer import ResponseWriter
from core_apis.routes.abort import MOST_BYTES
from core_frontend.prompts import prompt_parser
from tests.apis.conftest import RunningServer, run_server
from tests.apis.fake_engine import FakeClient

LONG = 40_000


class BriefFake(FakeClient):
    """Reads no more than the beginning of a prompt, and answers as long as that says."""

    async def add(self, requests: Any) -> None:
        for request in requests:
            await super().add([_shortened(request)])

    def answer(self, prompt: str, choice: int) -> list[int]:
        word, _, number = prompt.partition(" ")
        return (
            [10 + place % 200 for place in range(int(number))] + [1]
            if word == "LONG"
            else super().answer(prompt, choice)
        )


def _shortened(request: EngineRequest) -> EngineRequest:
    return EngineRequest(
        **{name: getattr(request, name) for name in request.__struct_fields__}
        | {"prompt_token_ids": request.prompt_token_ids[:20]}
    )


@pytest.fixture(scope="module")
def roomy() -> Iterator[RunningServer]:
    with run_server(client=BriefFake, max_model_len=100_000) as running:
        yield running


class Places:
    """Where functions ran. loop: the thread of the server's event loop."""

    def __init__(self, loop: int, patch: pytest.MonkeyPatch) -> None:
        self.loop = loop
        self._patch = patch
        self.seen: dict[str, list[int]] = {}

    def watch(self, owner: Any, name: str) -> None:
        """Note each call of `owner.name`."""
        call: Callable[..., Any] = getattr(owner, name)
        seen = self.seen.setdefault(name, [])

        def noted(*arguments: Any, **options: Any) -> Any:
            seen.append(threading.get_ident())
            return call(*arguments, **options)

        self._patch.setattr(owner, name, noted)

    def on_loop(self, name: str) -> list[bool]:
        """For each call so far, whether it was in the loop's thread. Forgets them."""
        found = [ident == self.loop for ident in self.seen[name]]
        self.seen[name].clear()
        return found


@pytest.fixture
def places(roomy: RunningServer, monkeypatch: pytest.MonkeyPatch) -> Places:
    async def ident() -> int:
        return threading.get_ident()

    return Places(asyncio.run_coroutine_threadsafe(ident(), roomy.loop).result(10), monkeypatch)


def complete(server: RunningServer, **body: Any) -> Any:
    answer = server.http.post("/v1/completions", json={"model": "fake-model", "max_tokens": 3, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_long_prompts_are_decoded_and_checked_elsewhere(roomy: RunningServer, places: Places) -> None:
    places.watch(prompt_parser, "check_token_ids")
    places.watch(Answer, "decoded")
    ids = [place % 250 for place in range(LONG)]
    answer = complete(roomy, prompt=ids, return_token_ids=True)
    assert answer["choices"][0]["prompt_token_ids"] == ids
    assert places.on_loop("check_token_ids") == [False] and places.on_loop("decoded") == [False]
    complete(roomy, prompt=[5, 6, 7])
    assert places.on_loop("check_token_ids") == [True] and places.on_loop("decoded") == []


def test_bodies_that_a_route_decodes_by_itself_are_short(roomy: RunningServer) -> None:
    for count, status in ((3, 200), (LONG // 4, 200), (MOST_BYTES // 8, 413)):
        names = [f"cmpl-{place}" for place in range(count)]
        answer = roomy.http.post("/abort_requests", json={"request_ids": names})
        assert answer.status_code == status
    said = answer.json()["error"]["message"]
    assert said == f"The request body is larger than {MOST_BYTES} bytes, the limit of this path; send less."


def test_token_ids_come_packed(roomy: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[tuple[int, int]] = []
    decoded = Answer.decoded

    def noted(answer: Answer, kind: str) -> Any:
        sizes.append((len(answer.result), sum(map(len, answer.token_ids))))
        return decoded(answer, kind)

    monkeypatch.setattr(Answer, "decoded", noted)
    complete(roomy, prompt=[[9] * LONG, [8] * 5, [7] * LONG], echo=True, max_tokens=1)
    assert sizes[0][0] < 4096 and sizes[0][1] == 2 * 4 * LONG


def test_ids_that_are_none_are_named_in_a_long_prompt_too(roomy: RunningServer) -> None:
    for wrong in (100_000, 2**31 - 1):
        body = {"model": "fake-model", "prompt": [1] * LONG + [wrong], "max_tokens": 1}
        answer = roomy.http.post("/v1/completions", json=body)
        assert answer.status_code == 400 and str(wrong) in answer.json()["error"]["message"]


def test_texts_above_some_kilobytes_are_tokenized_in_a_thread(roomy: RunningServer, places: Places) -> None:
    places.watch(Preparation, "run")
    complete(roomy, prompt="a b " * 3000)
    assert places.on_loop("run") == [False]
    complete(roomy, prompt="a b c")
    assert places.on_loop("run") == [True]
    assert roomy.http.post("/detokenize", json={"tokens": [65] * 3000}).status_code == 200
    assert places.on_loop("run") == [False]


@pytest.mark.parametrize("body", [{"echo": True}, {"return_token_ids": True}], ids=["echo", "ids"])
def test_prompts_that_answers_show_are_written_elsewhere(roomy: RunningServer, places: Places, body: Any) -> None:
    places.watch(CompletionWriter, "choices")
    places.watch(completion_writer, "json_response")
    places.watch(CompletionWriter, "free")
    answer = complete(roomy, prompt=[[65] * 5000] * 3, max_tokens=1, **body)
    assert len(answer["choices"]) == 3
    assert not any(places.on_loop("choices")) and places.on_loop("json_response") == [False]
    assert places.on_loop("free") == [False]
    complete(roomy, prompt=[[65] * 5] * 3, max_tokens=1, **body)
    assert all(places.on_loop("choices")) and places.on_loop("json_response") == [True]


def test_several_outputs_at_once_take_turns(roomy: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    sleeps: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        sleeps.append(seconds)
        await sleep(seconds)

    class Counted:
        sleep = staticmethod(noted)

    monkeypatch.setattr(completion_writer, "asyncio", Counted)
    complete(roomy, prompt=[[65] * 1500] * 6, max_tokens=1, echo=True)
    assert len(sleeps) >= 2


def test_long_log_probabilities_are_written_piece_by_piece(
    roomy: RunningServer, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    chat = LogprobsFormatter.chat

    def noted(formatter: Any, token_ids: Any, positions: Any, top: int) -> Any:
        sizes.append(len(token_ids))
        return chat(formatter, token_ids, positions, top)

    monkeypatch.setattr(LogprobsFormatter, "chat", noted)
    places.watch(LogprobsFormatter, "chat")
    num_tokens = 2 * ENTRIES + 5
    body = {
        "messages": [{"role": "user", "content": "a"}],
        "max_tokens": num_tokens,
        "logprobs": True,
        "top_logprobs": 8,
    }
    monkeypatch.setattr(BriefFake, "answer", lambda fake, prompt, choice: [10] * num_tokens)
    answer = roomy.http.post("/v1/chat/completions", json=body).json()
    entries = answer["choices"][0]["logprobs"]["content"]
    assert len(entries) == num_tokens and all(len(entry["top_logprobs"]) == 8 for entry in entries)
    assert sizes == [ENTRIES, ENTRIES, 5] and not any(places.on_loop("chat"))


def test_the_end_of_a_long_response_is_written_elsewhere(
    roomy: RunningServer, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_tokens = 400
    monkeypatch.setattr(BriefFake, "answer", lambda fake, prompt, choice: [70] * num_tokens)
    places.watch(ResponseWriter, "end")
    places.watch(StoredResponse, "write")
    body = {
        "input": "a",
        "max_output_tokens": num_tokens,
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 8,
    }
    answer = roomy.http.post("/v1/responses", json=body).json()
    entries = answer["output"][0]["content"][0]["logprobs"]
    assert len(entries) == num_tokens and len(entries[0]["top_logprobs"]) == 8
    assert places.on_loop("end") == [False] and places.on_loop("write") == [False]
    kept = roomy.http.get(f"/v1/responses/{answer['id']}").json()
    assert kept["output"] == answer["output"]


async def test_prompts_of_one_request_begin_and_end_a_few_at_a_time() -> None:
    """Whoever waits for the event loop gets a turn between them."""
    begun: list[int] = []
    ended: list[int] = []
    turns: list[tuple[int, int]] = []

    async def run(index: int) -> AsyncGenerator[Any, None]:
        begun.append(index)
        try:
            yield index
            await asyncio.sleep(30)
        finally:
            ended.append(index)

    async def take_turns() -> None:
        while True:
            turns.append((len(begun), len(ended)))
            await asyncio.sleep(0)

    others = asyncio.ensure_future(take_turns())
    outputs = merge([run(index) for index in range(500)])
    first = await anext(outputs)
    assert first == (0, 0)
    await outputs.aclose()
    others.cancel()
    assert begun == sorted(ended) == list(range(500))
    assert max(later[0] - earlier[0] for earlier, later in pairwise(turns)) <= TASKS_AT_ONCE
    assert max(later[1] - earlier[1] for earlier, later in pairwise(turns)) <= TASKS_AT_ONCE
