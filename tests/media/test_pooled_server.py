"""Vectors of pictures over HTTP: `/v2/embed` and conversations of the pooling routes, beside transformers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import AutoTokenizer

from tests.apis.test_real_server import Server, serving
from tests.media.checkpoints import SAVE, file_of, picture
from tests.media.comparison import Reference
from tests.media.test_pooled import opened
from tests.media.test_server import data_url, shown, text

FIRST = data_url(file_of(picture(1)))
NO_PICTURE = data_url(b"no picture")
USER = {"role": "user", "content": [shown(1)]}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return SAVE["gemma3"](tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def reference(model: Path) -> Reference:
    with opened(model) as llm:
        return Reference(llm, model)


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    arguments = ["--runner", "pooling", "--convert", "embed", "--dtype", "float32", "--limit-mm-per-prompt", "image=2"]
    with serving(tmp_path_factory.mktemp("server") / "log", "--model", str(model), *arguments) as running:
        yield running


def post(server: Server, path: str, **body: Any) -> httpx.Response:
    return httpx.post(server.base + path, json=body, timeout=60)


def written(model: Path, *parts: str, system: str = "", opens: bool = False) -> str:
    """What the checkpoint's chat template writes; a part that is empty is a picture."""
    content = [{"type": "text", "text": part} if part else {"type": "image"} for part in parts]
    messages: list[dict[str, Any]] = [{"role": "user", "content": content}]
    if system:
        messages.insert(0, {"role": "system", "content": system})
    made = AutoTokenizer.from_pretrained(model).apply_chat_template(
        messages, tokenize=False, add_generation_prompt=opens
    )
    return str(made)


def assert_close(vector: list[float], expected: torch.Tensor) -> None:
    torch.testing.assert_close(torch.tensor(vector), expected, rtol=0, atol=1e-4)


def test_pictures_have_the_vectors_of_transformers(server: Server, model: Path, reference: Reference) -> None:
    urls = [data_url(file_of(picture(seed))) for seed in (1, 2)]
    of_images = post(server, "/v2/embed", images=urls, input_type="image").json()
    assert of_images["texts"] == []
    for vector, seed in zip(of_images["embeddings"]["float"], (1, 2), strict=True):
        assert_close(vector, reference.vector(written(model, ""), [picture(seed)]))
    inputs = [
        {"content": [text("a "), shown(1), text(" b"), shown(2)]},
        {"content": [text("a b <start_of_image> c")]},
        {"content": [shown(2)]},
    ]
    answer = post(server, "/v2/embed", inputs=inputs, embedding_types=["float"]).json()
    assert answer["texts"] == ["a \n b", "a b <start_of_image> c", ""]
    mixed, _, alone = answer["embeddings"]["float"]
    assert_close(mixed, reference.vector(written(model, "a ", "", " b", ""), [picture(1), picture(2)]))
    assert alone == of_images["embeddings"]["float"][1]
    conversation = [{"role": "user", "content": [text("a "), shown(1)]}]
    found = post(server, "/v1/embeddings", messages=conversation, add_generation_prompt=True).json()
    expected = reference.vector(written(model, "a ", "", opens=True), [picture(1)])
    assert_close(found["data"][0]["embedding"], expected)
    assert found["usage"]["prompt_tokens"] > 4
    with_system = [{"role": "system", "content": "s"}, *conversation]
    found = post(server, "/pooling", task="embed", messages=with_system, encoding_format="float").json()
    assert_close(found["data"][0]["data"], reference.vector(written(model, "a ", "", system="s"), [picture(1)]))
    plain = post(server, "/v1/embeddings", messages=[{"role": "user", "content": "a b"}]).json()
    assert_close(plain["data"][0]["embedding"], reference.vector(written(model, "a b"), []))


def test_texts_and_pictures_are_compared(server: Server, model: Path, reference: Reference) -> None:
    documents = ["a b", {"content": [shown(1)]}, {"content": [text("c "), shown(2)]}]
    vectors = torch.stack([
        reference.vector("a b", []),
        reference.vector(written(model, ""), [picture(1)]),
        reference.vector(written(model, "c ", ""), [picture(2)]),
    ])  # fmt: skip
    query = reference.vector(written(model, "", "d"), [picture(2)])
    asked = {"content": [shown(2), text("d")]}
    scored = post(server, "/score", text_1=asked, text_2=documents).json()
    scores = [each["score"] for each in scored["data"]]
    torch.testing.assert_close(torch.tensor(scores), vectors @ query, rtol=0, atol=1e-4)
    ranked = post(server, "/rerank", query=asked, documents=documents).json()["results"]
    assert [each["index"] for each in ranked] == sorted(range(3), key=lambda index: -scores[index])
    assert {each["index"]: each["document"]["text"] for each in ranked} == {0: "a b", 1: "", 2: "c "}


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("/v2/embed", {"images": [FIRST, NO_PICTURE]}, "images[1]: "),
    ("/v2/embed", {"images": [FIRST, 3]}, "images[1]: the URL is missing"),
    ("/v2/embed", {"images": [FIRST], "texts": ["a"]}, "either texts, inputs or images"),
    ("/v2/embed", {"inputs": [{"content": [text("a"), shown(1), shown(2), shown(3)]}]}, "inputs[0].content[3] is picture 3"),
    ("/v2/embed", {"inputs": [{"content": [text("a"), {"type": "sound"}]}]}, "inputs[0].content[1] is of type 'sound'"),
    ("/v2/embed", {"inputs": [{"content": [text("a")]}, {"content": [{"type": "input_audio"}]}]}, "inputs[1].content[0]"),
    ("/v2/embed", {"images": [FIRST], "max_tokens": 4}, "never cut"),
    ("/v1/embeddings", {"messages": [USER], "input": "a"}, "both input and messages"),
    ("/v1/embeddings", {"messages": [USER], "chat_template": "x"}, "--chat-template"),
    ("/v1/embeddings", {"messages": [USER], "truncate_prompt_tokens": 4}, "never cut"),
    ("/v1/embeddings", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": NO_PICTURE}}]}]},
     "messages[0].content[0]: "),
    ("/v1/embeddings", {"input": "a", "add_generation_prompt": True}, "add_generation_prompt is of messages"),
    ("/rerank", {"query": "a", "documents": [{"content": [shown(1)]}], "max_tokens_per_doc": 4}, "max_tokens_per_doc"),
]  # fmt: skip


def test_bad_pictures_are_refused_with_their_place(server: Server) -> None:
    for path, body, expected in REFUSED:
        answer = post(server, path, **body)
        assert answer.status_code == 400 and expected in answer.json()["error"]["message"], (path, answer.text[:300])
    assert post(server, "/v1/embeddings", input="a").status_code == 200
