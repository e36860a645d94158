"""Vectors over HTTP: the official client, the shapes of Jina and Cohere, and what is refused."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import numpy as np
import openai
import pytest

from core.api.pooling import PoolingConfig
from tests.apis.conftest import RunningServer, run_server
from tests.apis.scripted_engine import PoolingClient
from tests.frontend import own_io_processor

PROMPTS = {"query": "aa", "document": ""}
CONFIG = PoolingConfig(kinds=("mean",), normalize=False, size=PoolingClient.SIZE, prompts=PROMPTS)
CLASSES = PoolingConfig(
    kinds=("last",),
    normalize=False,
    size=PoolingClient.SIZE,
    head="classes",
    labels=("as", "bs", "cs", "ds"),
    squash="softmax",
)
PAIRS = PoolingConfig(
    kinds=("last",), normalize=False, size=1, head="classes", labels=("fits",), squash="sigmoid", joins_pairs=True
)
MODEL = "fake-model"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with run_server(client=PoolingClient, pooling=CONFIG, max_model_len=64) as running:
        yield running


def post(server: RunningServer, path: str, **body: object) -> httpx.Response:
    return server.http.post(path, json=body)


@pytest.mark.parametrize("encoding", ["float", "base64", openai.NOT_GIVEN])
def test_the_official_client(server: RunningServer, encoding: object) -> None:
    answer = server.client.embeddings.create(model=MODEL, input=["abba", "cd"], encoding_format=encoding)  # type: ignore[arg-type]
    first, second = answer.data
    expected = [2.0, 2.0, 0.0, 0.0]
    if encoding == "base64":
        assert np.frombuffer(base64.b64decode(first.embedding), "<f4").tolist() == expected  # type: ignore[arg-type]
    else:
        assert first.embedding == expected
        assert second.embedding == [0.0, 0.0, 1.0, 1.0]
    assert (first.index, second.index, answer.object, answer.model) == (0, 1, "list", MODEL)
    count = len(server.engine.tokenizer.encode("abba")) + len(server.engine.tokenizer.encode("cd"))
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (count, count)


def test_token_ids_and_dimensions(server: RunningServer) -> None:
    ids = server.engine.tokenizer.encode("aab")
    client = server.client
    assert client.embeddings.create(model=MODEL, input=ids, dimensions=2).data[0].embedding == [2.0, 1.0]
    assert len(client.embeddings.create(model=MODEL, input=[ids, ids]).data) == 2


def test_a_text_that_is_too_long_is_cut_as_asked(server: RunningServer) -> None:
    text = "a" * 50 + "b" * 50
    answer = post(server, "/v1/embeddings", input=text, truncate_prompt_tokens=-1).json()
    assert answer["usage"]["prompt_tokens"] == 64
    assert answer["data"][0]["embedding"][0] == 50.0
    refused = post(server, "/v1/embeddings", input=text)
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert error["param"] == "input" and error["code"] == "context_length_exceeded"


def test_pooling_gives_a_vector_for_each_token(server: RunningServer) -> None:
    whole = post(server, "/pooling", input="abc").json()["data"][0]
    each = post(server, "/pooling", input="abc", task="token_embed").json()["data"][0]
    assert whole == {"object": "pooling", "index": 0, "data": [1.0, 1.0, 1.0, 0.0]}
    assert each["data"] == [whole["data"]] * len(server.engine.tokenizer.encode("abc"))


def test_vectors_of_parts(server: RunningServer) -> None:
    chunks = {"chunk_size": 2}
    found = post(server, "/pooling", input=["abcd", [5, 6]], task="token_embed", late_chunking_params=chunks).json()
    count = len(server.engine.tokenizer.encode("abcd"))
    told = [entry["late_chunking"] for entry in found["data"]]
    assert [part["token_range"] for part in told[0]["chunks"]] == [[0, 2], [2, 4], [4, count]]
    spans = [part["char_range"] for part in told[0]["chunks"]]
    assert spans[0][0] == 0 and spans[-1][1] == 4
    assert told[1] == {"chunk_size": 2, "input_tokens": 2, "chunks": [{"token_range": [0, 2], "char_range": None}]}
    assert "late_chunking" not in post(server, "/pooling", input="abcd", task="token_embed").json()["data"][0]
    cut = post(
        server, "/pooling", input="abcd", task="token_embed", late_chunking_params=chunks, truncate_prompt_tokens=3
    ).json()["data"][0]["late_chunking"]
    assert [part["token_range"] for part in cut["chunks"]] == [[0, 2], [2, 3]]


def test_a_server_whose_vectors_are_those_of_tokens() -> None:
    config = msgspec.structs.replace(CONFIG, usual_task="token_embed")
    with run_server(client=PoolingClient, pooling=config, max_model_len=64) as running:
        chunks = {"chunk_size": 2}
        found = post(running, "/v1/embeddings", input="abcd", late_chunking_params=chunks).json()["data"][0]
        assert len(found["embedding"]) == len(found["late_chunking"]["chunks"]) == 3
        scored = post(running, "/score", text_1="a", text_2=["a", "b"]).json()
        assert [entry["score"] for entry in scored["data"]] == [2.0, 0.0]  # two tokens, each with its best
        ranked = post(running, "/rerank", query="ab", documents=["b", "ab", "c"]).json()["results"]
        assert [(entry["index"], entry["relevance_score"]) for entry in ranked] == [(1, 6.0), (0, 3.0), (2, 0.0)]
        refused = post(running, "/v1/embeddings", input="a", encoding_format="base64").json()["error"]
        assert refused["param"] == "encoding_format" and "Ask for 'float'" in refused["message"]


def test_long_texts_are_pooled_in_pieces() -> None:
    config = msgspec.structs.replace(CONFIG, max_embed_len=400)
    with run_server(client=PoolingClient, pooling=config, max_model_len=64) as running:
        text = "ab" * 100
        answer = post(running, "/v1/embeddings", input=text).json()
        count = len(running.engine.tokenizer.encode(text))
        assert answer["usage"]["prompt_tokens"] == count > 3 * 64
        lengths = [64] * (count // 64) + [count % 64]
        first, *_ = answer["data"][0]["embedding"]
        pieces = [request.prompt_token_ids for request in running.fake.seen]  # type: ignore[attr-defined]
        assert [len(piece) for piece in pieces] == lengths
        numbers = [running.engine.tokenizer.decode(piece).count("a") for piece in pieces]
        assert first == pytest.approx(np.average(numbers, weights=lengths), abs=1e-5)
        refused = post(running, "/v1/embeddings", input="ab" * 300).json()["error"]
        assert refused["code"] == "context_length_exceeded"


def test_scores_are_cosines(server: RunningServer) -> None:
    one = post(server, "/score", text_1="a", text_2=["a", "b", "ab"]).json()
    assert [round(entry["score"], 6) for entry in one["data"]] == [1.0, 0.0, 0.707107]
    pairs = post(server, "/v1/score", text_1=["a", "b"], text_2=["a", "a"]).json()
    assert [entry["score"] for entry in pairs["data"]] == [1.0, 0.0]


def test_the_shape_of_coheres_vectors(server: RunningServer) -> None:
    asked = ["float", "binary", "ubinary", "base64"]
    answer = post(server, "/v2/embed", texts=["abba", "cd"], embedding_types=asked, input_type="search_query").json()
    numbers = np.array([[4.0, 2.0, 0.0, 0.0], [2.0, 0.0, 1.0, 1.0]], np.float32)  # behind the prompt "aa"
    found = answer["embeddings"]
    assert found["float"] == numbers.tolist()
    assert [np.frombuffer(base64.b64decode(one), "<f4").tolist() for one in found["base64"]] == numbers.tolist()
    assert found["ubinary"] == [[0b11000000], [0b10110000]]
    assert found["binary"] == [[0b11000000 - 128], [0b10110000 - 128]]
    assert answer["response_type"] == "embeddings_by_type" and answer["texts"] == ["abba", "cd"]
    assert answer["meta"]["api_version"] == {"version": "2"}
    count = sum(len(server.engine.tokenizer.encode("aa" + text)) for text in answer["texts"])
    assert answer["meta"]["billed_units"] == {"input_tokens": count}
    inputs = [{"content": [{"type": "text", "text": "cd"}]}]
    plain = post(server, "/v1/embed", inputs=inputs, input_type="clustering", output_dimension=2).json()
    assert (plain["embeddings"], plain["response_type"]) == ([[0.0, 0.0]], "embeddings_floats")


def test_coheres_texts_are_cut_as_asked(server: RunningServer) -> None:
    text = "a" * 20_000
    cut = post(server, "/v2/embed", texts=[text]).json()
    assert cut["meta"]["billed_units"]["input_tokens"] == 64
    short = post(server, "/v2/embed", texts=[text], max_tokens=5, truncate="END").json()
    assert short["meta"]["billed_units"]["input_tokens"] == 5
    refused = post(server, "/v2/embed", texts=[text], truncate="NONE").json()["error"]
    assert refused["param"] == "texts" and refused["code"] == "context_length_exceeded"
    assert "of output" not in refused["message"]


def test_bits_under_jinas_names(server: RunningServer) -> None:
    for name, form, whole in (("encoding_type", "ubinary", 192), ("embedding_type", "binary", 64)):
        answer = post(server, "/v1/embeddings", input="abba", **{name: form}).json()
        assert answer["data"][0]["embedding"] == [whole]


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_documents_come_back_by_their_scores(server: RunningServer, path: str) -> None:
    documents = ["b", {"text": "ab"}, "a"]
    answer = post(server, path, model=MODEL, query="a", documents=documents, top_n=2).json()
    assert [entry["index"] for entry in answer["results"]] == [2, 1]
    assert answer["results"][1]["document"] == {"text": "ab"}
    assert answer["results"][0]["relevance_score"] == 1.0
    bare = post(server, path, query="a", documents=documents, return_documents=False).json()
    assert [entry["index"] for entry in bare["results"]] == [2, 1, 0]
    assert "document" not in bare["results"][0]


def test_scores_under_other_names(server: RunningServer) -> None:
    for one, other in (("data_1", "data_2"), ("queries", "documents"), ("queries", "items")):
        answer = post(server, "/score", **{one: "a", other: ["b", "a"]}).json()
        assert [entry["score"] for entry in answer["data"]] == [0.0, 1.0]


@pytest.mark.parametrize("path, version", [("/rerank", None), ("/v1/rerank", "1"), ("/v2/rerank", "2")])
def test_answers_tell_what_coheres_clients_read(server: RunningServer, path: str, version: str | None) -> None:
    answer = post(server, path, query="a", documents=["a"] * 101).json()
    if version is None:
        assert "meta" not in answer
    else:
        assert answer["meta"] == {"api_version": {"version": version}, "billed_units": {"search_units": 2}}


def test_documents_are_cut_as_asked(server: RunningServer) -> None:
    long = "a" * 20 + "b" * 20
    answer = post(server, "/rerank", query="a", documents=[long], max_tokens_per_doc=20).json()
    assert answer["results"][0]["relevance_score"] == 1.0
    assert answer["results"][0]["document"] == {"text": long}


def test_a_named_prompt_stands_in_front(server: RunningServer) -> None:
    answer = post(server, "/v1/embeddings", input=["b", "a"], prompt_name="query").json()
    assert [entry["embedding"][:2] for entry in answer["data"]] == [[2.0, 1.0], [3.0, 0.0]]
    plain = post(server, "/v1/embeddings", input="b", prompt_name="document").json()
    assert plain["data"][0]["embedding"][:2] == [0.0, 1.0]


def test_vectors_as_bytes(server: RunningServer) -> None:
    body = {"input": ["abba", "cd"], "embed_dtype": "float16", "endianness": "big"}
    answer = post(server, "/v1/embeddings", **body, encoding_format="bytes")
    told = json.loads(answer.headers["metadata"])
    found = []
    for place in told["data"]:
        part = answer.content[place["start"] : place["end"]]
        found.append(np.frombuffer(part, ">f2").reshape(place["shape"]).tolist())
    assert found == [[2.0, 2.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]]
    assert told["usage"]["prompt_tokens"] == sum(len(server.engine.tokenizer.encode(text)) for text in body["input"])
    bare = post(server, "/pooling", **body, encoding_format="bytes_only")
    assert "metadata" not in bare.headers
    assert bare.content == answer.content
    text = post(server, "/v1/embeddings", input="a", encoding_format="base64", embed_dtype="bfloat16").json()
    assert base64.b64decode(text["data"][0]["embedding"]) == bytes.fromhex("803f000000000000")


TYPE = "encoding_type"
LATE = "late_chunking_params"
REFUSED = {
    "no input": ("/v1/embeddings", {}, "input", "'input' is missing"),
    "empty list": ("/v1/embeddings", {"input": []}, "input", "is empty"),
    "empty text": ("/v1/embeddings", {"input": ["a", ""]}, "input", "is empty"),
    "numbers": ("/v1/embeddings", {"input": [1.5]}, "input", "must be a string"),
    "unknown id": ("/v1/embeddings", {"input": [10**7]}, "input", "vocabulary"),
    "dimensions": ("/v1/embeddings", {"input": "a", "dimensions": 5}, "dimensions", "have 4 numbers"),
    "format": ("/v1/embeddings", {"input": "a", "encoding_format": "hex"}, "encoding_format", "hex"),
    "field": ("/v1/embeddings", {"input": "a", "dimension": 5}, "dimension", "Did you mean|Unknown field"),
    "model": ("/v1/embeddings", {"input": "a", "model": "other"}, "model", "does not exist"),
    "task": ("/pooling", {"input": "a", "task": "swirl"}, "task", "swirl"),
    "pairs": ("/score", {"text_1": ["a", "b"], "text_2": ["a"]}, "text_1", "text_1 has 2 texts and text_2 1"),
    "no query": ("/rerank", {"documents": ["a"]}, "query", "'query' is missing"),
    "no documents": ("/rerank", {"query": "a", "documents": []}, "documents", "at least one"),
    "classes": ("/classify", {"input": "a"}, "task", "does not serve"),
    "no prompt": ("/v1/embeddings", {"input": "a", "prompt_name": "querry"}, "prompt_name", "Did you mean 'query'"),
    "prompt of ids": ("/v1/embeddings", {"input": [5], "prompt_name": "query"}, "prompt_name", "token ids are given"),
    "dtype": ("/v1/embeddings", {"input": "a", "embed_dtype": "float16"}, "embed_dtype", "base64 and bytes"),
    "no such dtype": ("/v1/embeddings", {"input": "a", "embed_dtype": "int4"}, "embed_dtype", "int4"),
    "mixture": ("/score", {"text_1": "a", "documents": ["b"]}, "documents", "are names of the same"),
    "instruction": ("/score", {"text_1": "a", "text_2": "b", "instruction": "c"}, "instruction", "template for pairs"),
    "empty document": ("/rerank", {"query": "a", "documents": ["a", ""]}, "documents", "none of them empty"),
    "empty query": ("/rerank", {"query": "", "documents": ["a"]}, "query", "query is empty"),
    "chunks": ("/v1/embeddings", {"input": "a", "late_chunking_params": {"chunk_size": 2}}, LATE, "token_embed"),
    "no chunks": (
        "/pooling",
        {"input": "a", "task": "token_embed", "late_chunking_params": {}},
        "chunk_size",
        "missing",
    ),
    "formats": (
        "/v1/embeddings",
        {"input": "a", "encoding_type": "float", "encoding_format": "base64"},
        TYPE,
        "differ",
    ),
    "no format": ("/v1/embeddings", {"input": "a", "encoding_type": "hex"}, TYPE, "Expected one of 'base64', 'binary'"),
    "no texts": ("/v2/embed", {}, "texts", "either texts, inputs or images"),
    "empty texts": ("/v2/embed", {"texts": []}, "texts", "at least one entry"),
    "empty text of texts": ("/v2/embed", {"texts": ["a", ""]}, "texts", "none of them empty"),
    "images": ("/v2/embed", {"texts": ["a"], "images": ["b"]}, "texts", "give one of them"),
    "parts": (
        "/v2/embed",
        {"inputs": [{"content": [{"type": "image_url"}]}]},
        "inputs",
        "inputs[0].content[0] is of type 'image_url'",
    ),
    "int8": ("/v2/embed", {"texts": ["a"], "embedding_types": ["int8"]}, "embedding_types", "Expected one of"),
    "input type": ("/v2/embed", {"texts": ["a"], "input_type": "x"}, "input_type", "the model knows query, document"),
    "output size": ("/v2/embed", {"texts": ["a"], "output_dimension": 9}, "output_dimension", "output_dimension is 9;"),
    "start": ("/v2/embed", {"texts": ["a"], "truncate": "START"}, "truncate", "first tokens stay"),
    "not cut": ("/v2/embed", {"texts": ["a"], "truncate": "NONE", "max_tokens": 2}, "max_tokens", "leave one out"),
    "more tokens": ("/v2/embed", {"texts": ["a"], "max_tokens": 65}, "max_tokens", "at most 64"),
    "top_n": ("/rerank", {"query": "a", "documents": ["a"], "top_n": -1}, "top_n", "from 0 on"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_bodies_are_refused_by_field(server: RunningServer, name: str) -> None:
    path, body, param, sentence = REFUSED[name]
    answer = post(server, path, **body)
    error = answer.json()["error"]
    assert answer.status_code in (400, 404)
    assert error["param"] == param
    assert any(part in error["message"] for part in sentence.split("|"))


def test_a_text_that_fails_fails_its_request_alone(server: RunningServer) -> None:
    answer = post(server, "/v1/embeddings", input=["a", "BROKEN"])
    assert answer.status_code == 500 and "It broke." in answer.json()["error"]["message"]
    assert post(server, "/v1/embeddings", input="a").status_code == 200


def test_a_model_does_one_of_both() -> None:
    with run_server() as generating:
        answer = post(generating, "/v1/embeddings", input="a")
        assert answer.status_code == 400 and "--runner pooling" in answer.json()["error"]["message"]


def test_a_model_for_vectors_gives_no_text(server: RunningServer) -> None:
    answer = post(server, "/v1/completions", prompt="a")
    assert answer.status_code == 400 and "--runner generate" in answer.json()["error"]["message"]


def test_classes_of_texts() -> None:
    with run_server(client=PoolingClient, pooling=CLASSES, max_model_len=64) as running:
        answer = post(running, "/classify", input=["abb", "c"]).json()
        first, second = answer["data"]
        assert first == {"index": 0, "label": "bs", "probs": [1.0, 2.0, 0.0, 0.0], "num_classes": 4}
        assert second["label"] == "cs"
        assert post(running, "/v1/classify", input="c", use_activation=False).status_code == 200
        seen = [request.pooling.squash for request in running.fake.seen]  # type: ignore[attr-defined]
        assert seen == ["softmax", "softmax", "none"]
        assert len(post(running, "/pooling", input="abb", task="token_classify").json()["data"][0]["data"]) == 4
        refused = post(running, "/score", text_1="a", text_2="b").json()["error"]["message"]
        assert "tells 4 classes" in refused
        assert "does not serve" in post(running, "/v1/embeddings", input="a").json()["error"]["message"]


def test_pairs_are_read_together() -> None:
    with run_server(client=PoolingClient, pooling=PAIRS, max_model_len=64) as running:
        scored = post(running, "/score", text_1="a", text_2=["aa", "b"]).json()
        assert [entry["score"] for entry in scored["data"]] == [3.0, 1.0]
        ranked = post(running, "/v1/rerank", query="a", documents=["b", "aa", "a"], top_n=2).json()
        assert [(entry["index"], entry["relevance_score"]) for entry in ranked["results"]] == [(1, 3.0), (2, 2.0)]
        assert ranked["usage"]["prompt_tokens"] == 3 + 4 + 3  # each pair with one special token
        cut = post(running, "/score", text_1="b", text_2="a" * 100, truncate_prompt_tokens=-1).json()
        assert cut["data"][0]["score"] == 62.0
        long = post(running, "/score", text_1="b", text_2="a" * 100).json()["error"]
        assert (long["param"], long["code"]) == ("text_2", "context_length_exceeded")
        ids = post(running, "/score", text_1=[5], text_2=[6]).json()["error"]
        assert "both must be strings" in ids["message"]


def test_data_is_for_an_io_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answers have vLLM's form; one that fails costs its own request, and texts need none."""
    settings = own_io_processor.settings(tmp_path)
    monkeypatch.setattr("core_apis.app.io_settings", lambda config: settings)
    data = {"question": "ab", "document": "cd\n\naabb\n\na", "passages": 2}
    with run_server(client=PoolingClient, pooling=CONFIG, max_model_len=64) as running:
        answer = post(running, "/pooling", data=data, model=MODEL, request_id="mine")
        assert answer.status_code == 200, answer.text
        told = answer.json()
        assert set(told) == {"request_id", "created_at", "data"} and told["request_id"].endswith("mine")
        assert [passage["text"] for passage in told["data"]["passages"]] == ["aabb", "a"]
        for question in ("raise", "after raise"):
            failed = post(running, "/pooling", data=data | {"question": question})
            assert failed.status_code == 500 and "'mine' failed" in failed.text
        wrong = post(running, "/pooling", data={"question": "ab"})
        assert wrong.status_code == 400 and wrong.json()["error"]["param"] == "data"
        refused = post(running, "/pooling", data=data, encoding_format="base64")
        assert refused.status_code == 400 and "the IO processor makes the answer" in refused.text
        large = post(running, "/pooling", data=data | {"document": "x" * 30_000 + "\n\nab"}, truncate_prompt_tokens=8)
        assert large.status_code == 200 and large.json()["data"]["passages"][0]["text"] == "ab"  # prepared in a process
        huge = post(running, "/pooling", data=data | {"passages": 10**30, "document": "x" * 30_000})
        assert huge.status_code == 400 and huge.json()["error"]["param"] == "data"
        assert post(running, "/pooling", input="ab").json()["data"][0]["data"]
        assert post(running, "/v1/embeddings", input="ab", data=data).status_code == 400


def test_data_without_an_io_processor_is_refused(server: RunningServer) -> None:
    for more in ({}, {"input": "ab"}):
        answer = post(server, "/pooling", data={"a": 1}, **more)
        assert answer.status_code == 400 and "--io-processor-plugin" in answer.json()["error"]["message"]
