"""Items that are scored by the probability of a label, as vLLM's clients ask for it."""

import math
from collections.abc import Iterator
from typing import Any

import pytest

from core_apis.scoring.writer import probability
from core_config.served.server_config import ServerConfig
from tests.apis.conftest import RunningServer, run_server

PATH = "/generative_scoring"
BODY: dict[str, Any] = {"query": "Is it blue?", "items": ["Sky", "Sun"], "label_token_ids": [40, 41]}


def post(server: RunningServer, body: Any, status: int = 200, path: str = PATH, **headers: str) -> Any:
    answer = server.http.post(path, json=body, headers=headers)
    assert answer.status_code == status, answer.text
    return answer.json()


def test_each_item_has_a_score_in_its_place(server: RunningServer) -> None:
    answer = post(server, {**BODY, "request_id": "mine", "model": "alias"})
    assert (answer["id"], answer["object"], answer["model"]) == ("generative-scoring-mine", "list", "alias")
    assert [(row["index"], row["object"]) for row in answer["data"]] == [(0, "score"), (1, "score")]
    # one token a byte, and <s> before the query
    assert answer["usage"] == {"prompt_tokens": 2 * 15, "completion_tokens": 2, "total_tokens": 32}
    assert post(server, BODY, path="/v1/generative_scoring")["data"] == answer["data"]
    assert post(server, BODY, path="/invocations")["data"] == answer["data"]


def test_the_prompt_is_query_and_item_or_item_and_query(server: RunningServer) -> None:
    """The fake answers each prompt alike; the prompts are seen in the engine's requests."""
    seen: list[list[int]] = []
    add = server.fake.add

    async def watched(requests: Any) -> None:
        seen.extend(list(request.prompt_token_ids) for request in requests)
        await add(requests)

    server.fake.add = watched  # type: ignore[method-assign]
    try:
        tokens = {text: server.fake.tokenizer.encode(text, add_special_tokens=False) for text in ("ab", "cd")}
        one = {"query": "ab", "items": ["cd"], "label_token_ids": [40]}
        post(server, one)
        post(server, {**one, "item_first": True})
        post(server, {**one, "add_special_tokens": False})
        post(server, {**one, "query": [7, 8], "items": [[9]]})
        post(server, {**one, "query": "", "items": ["cd"]})
    finally:
        server.fake.add = add  # type: ignore[method-assign]
    assert seen == [
        [0, *tokens["ab"], *tokens["cd"]],
        [0, *tokens["cd"], *tokens["ab"]],
        [*tokens["ab"], *tokens["cd"]],
        [7, 8, 9],
        [0, *tokens["cd"]],
    ]


def test_probabilities_are_of_the_labels_or_of_the_vocabulary() -> None:
    assert probability([-1.0, -1.0, -1.0], normalizes=True) == pytest.approx(1 / 3)
    assert probability([-1.0, -2.0], normalizes=False) == pytest.approx(math.exp(-1))
    assert probability([-2000.0, -2001.0], normalizes=True) == pytest.approx(1 / (1 + math.exp(-1)))
    assert probability([-math.inf, -1.0], normalizes=True) == 0.0
    assert probability([-math.inf, -math.inf], normalizes=True) == 0.0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"items": []}, "items is empty"),
        ({"items": ["a", ""]}, "items[1] is empty"),
        ({"items": ["a", 5]}, "items"),
        ({"items": "a"}, "items"),
        ({"items": [[999]]}, "items[0] holds the token id 999"),
        ({"query": None}, "query"),
        ({"query": [-1]}, "query"),
        ({"query": [999]}, "query holds the token id 999"),
        ({"label_token_ids": []}, "0 entries; expected 1 to 128"),
        ({"label_token_ids": list(range(129))}, "129 entries; expected 1 to 128"),
        ({"label_token_ids": [999]}, "token id 999"),
        ({"label_token_ids": [-1]}, "label_token_ids"),
        ({"label_token_ids": [40, 41, 40]}, "40 more than once"),
        ({"label_token_ids": ["yes"]}, "label_token_ids"),
        ({"query": "a" * 300}, "items[0] and the query have 304 tokens, but at most 255 tokens fit"),
        ({"items": ["a"] * 5000}, "5000"),
        ({"temperature": 0.5}, "Unknown field 'temperature'"),
        ({"apply_softmax": "no"}, "apply_softmax"),
    ],
)
def test_bad_bodies_are_refused_in_a_sentence(server: RunningServer, change: dict[str, Any], words: str) -> None:
    assert words in post(server, {**BODY, **change}, 400)["error"]["message"]


def test_another_model_does_not_exist(server: RunningServer) -> None:
    assert "does not exist" in post(server, {**BODY, "model": "other"}, 404)["error"]["message"]


@pytest.fixture(scope="module")
def keyed() -> Iterator[RunningServer]:
    with run_server(ServerConfig(api_keys=("one", "two"), uvicorn_log_level="warning"), texts=False) as running:
        yield running


def test_a_key_is_needed_and_ids_do_without_a_tokenizer(keyed: RunningServer) -> None:
    ids = {"query": [5], "items": [[6], [7]], "label_token_ids": [40]}
    post(keyed, ids, 401)
    answer = post(keyed, ids, authorization="Bearer two")
    assert [row["score"] for row in answer["data"]] == [1.0, 1.0]
    assert "tokenizer" in post(keyed, BODY, 400, authorization="Bearer one")["error"]["message"]
