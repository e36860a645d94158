"""Adapters over HTTP: each is a model of its own, in every route; they come and go while the server runs."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import torch
from engine.fakes import byte_source, reference
from engine.mortal import MANY, MortalSource, mortal_engine

from core import SharedTensors
from core.api.config import ResolvedPlugin, WeightTransferConfig
from core_adapters.resolvers.directory import DirectoryResolver, below
from core_adapters.resolvers.hub import HubResolver
from core_apis.app import create_app
from core_apis.body import SHORT_BODY
from core_apis.prepare.preparer import SMALL_BODY
from core_apis.served_adapters import own_template
from core_config.served.server_config import AdapterSettings, ServerConfig
from core_frontend.async_engine import AsyncEngine
from core_tokens.tokenizer import Tokenizer
from tests.engine.adapting import AdaptingExecutor, adapted, adapting_config, digest_of, written

PROMPT = [1, 2, 3, 4]
DIRECTORY = ResolvedPlugin(kind="resolver", name="directory", target="core_adapters.resolvers.directory_manifest")


def text_of(weights: str, count: int, first: int = 0) -> str:
    return bytes(adapted(PROMPT, count, weights, first) if weights else reference(PROMPT, count)).decode()


@asynccontextmanager
async def serving(
    directory: Path,
    *names: str,
    lives: Sequence[int] = (),
    settings: AdapterSettings | None = None,
    template: str | None = None,
    weight_transfer: WeightTransferConfig | None = None,
    **options: Any,
) -> AsyncIterator[tuple[httpx.AsyncClient, AsyncEngine, MortalSource]]:
    config = adapting_config(*(written(directory, name) for name in names), restarts=MANY, **options)
    config = msgspec.structs.replace(config, weight_transfer=weight_transfer)
    source = MortalSource(config, AdaptingExecutor, lives)
    engine = mortal_engine(source, Tokenizer.from_source(byte_source(template), None))
    settings = settings or AdapterSettings(directory=str(directory), is_updated=True)
    app = create_app(engine, ServerConfig(adapters=settings), engine.model_config)
    try:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://engine", timeout=60) as http:
            yield http, engine, source
    finally:
        await app.state.context.close()
        await engine.close()


async def completed(http: httpx.AsyncClient, model: str | None, count: int = 5, status: int = 200) -> Any:
    body = {"prompt": PROMPT, "max_tokens": count} | ({} if model is None else {"model": model})
    answer = await http.post("/v1/completions", json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


async def said(http: httpx.AsyncClient, model: str | None, count: int = 5) -> str:
    answer = await completed(http, model, count)
    assert answer["model"] == (model or "fake")
    return str(answer["choices"][0]["text"])


async def test_a_model_is_an_adapter_or_the_base(tmp_path: Path) -> None:
    async with serving(tmp_path, "sql", "fr") as (http, _, _):
        stream = http.stream("POST", "/v1/completions", json={"model": "sql", "prompt": PROMPT, "stream": True})
        async with stream as events:
            await anext(aiter(events.aiter_lines()))
            page = (await http.get("/metrics")).text
        assert 'max_lora="2"' in page and "lora_requests_info" in page
        found = await asyncio.gather(*(said(http, model) for model in ("sql", "fr", "fake", None, "sql")))
        assert found == [text_of(name, 5) for name in ("sql", "fr", "", "", "sql")]
        cards = {card["id"]: card for card in (await http.get("/v1/models")).json()["data"]}
        assert set(cards) == {"fake", "sql", "fr"} and cards["fake"]["parent"] is None
        assert cards["sql"]["parent"] == "fake" and cards["sql"]["adapter_digest"] == digest_of("sql")
        card = (await http.get("/v1/models/fr")).json()
        assert card["parent"] == "fake" and str(tmp_path) not in str(cards)
        wrong = await completed(http, "sqll", status=404)
        assert "Did you mean 'sql'" in wrong["error"]["message"]
        assert (await http.get("/v1/models/none")).status_code == 404


async def test_every_route_knows_adapters_and_refuses_unknown_ones(tmp_path: Path) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "/tokenize": {"prompt": "a"},
        "/detokenize": {"tokens": [65]},
        "/v1/completions": {"prompt": "a", "max_tokens": 1},
        "/v1/responses": {"input": "a", "max_output_tokens": 1, "store": False},
        "/v1/messages": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1},
        "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "a"}]},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1},
    }
    async with serving(tmp_path, "sql") as (http, _, _):
        for path, body in bodies.items():
            there = await http.post(path, json={"model": "sql", **body})
            gone = await http.post(path, json={"model": "nobody", **body})
            assert gone.status_code == 404, (path, gone.text)
            assert there.status_code == 200 or "chat template" in there.text, (path, there.text)


async def test_a_large_body_names_its_adapter_where_large_bodies_are_read(tmp_path: Path) -> None:
    body = msgspec.json.encode({"model": "sql", "prompt": PROMPT, "max_tokens": 5}) + b" " * SMALL_BODY
    async with serving(tmp_path, "sql") as (http, _, _):
        answer = (await http.post("/v1/completions", content=body)).json()
        assert answer["choices"][0]["text"] == text_of("sql", 5)
        gone = await http.post("/v1/completions", content=body.replace(b"sql", b"nobody"))
        assert gone.status_code == 404


async def test_adapters_come_and_go_while_the_server_runs(tmp_path: Path) -> None:
    written(tmp_path, "new")
    async with serving(tmp_path, "sql") as (http, _, _):
        body = {"lora_name": "extra", "lora_path": "new"}
        answer = await http.post("/v1/load_lora_adapter", json=body)
        assert answer.status_code == 200 and answer.json()["digest"] == digest_of("new")
        assert await said(http, "extra") == text_of("new", 5)
        again = await http.post("/v1/load_lora_adapter", json=body)
        assert again.status_code == 400 and "stands for another adapter already" in again.text
        (tmp_path / "new").write_text("newer")
        assert (await http.post("/v1/load_lora_adapter", json={**body, "load_inplace": True})).status_code == 200
        assert await said(http, "extra") == text_of("newer", 5)
        assert (await http.post("/v1/unload_lora_adapter", json={"lora_name": "extra"})).status_code == 200
        await completed(http, "extra", status=404)
        assert (await http.post("/v1/unload_lora_adapter", json={"lora_name": "extra"})).status_code == 404
        base = await http.post("/v1/load_lora_adapter", json={"lora_name": "fake", "lora_path": "new"})
        assert base.status_code == 400 and "a name of the base model" in base.text


async def test_paths_of_requests_stay_in_the_directory(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    written(outside, "secret")
    (inside / "link").symlink_to(outside / "secret")
    (inside / "circle").symlink_to("circle")
    settings = AdapterSettings(directory=str(inside), is_updated=True)
    async with serving(inside, settings=settings) as (http, _, _):
        for path in ("../out/secret", str(outside / "secret"), "link", "circle", ".", "", "a\0b"):
            answer = await http.post("/v1/load_lora_adapter", json={"lora_name": "x", "lora_path": path})
            assert answer.status_code == 403, (path, answer.text)
        for path in ("nowhere", "x" * 10_000, "a/" * 5_000):
            missing = await http.post("/v1/load_lora_adapter", json={"lora_name": "x", "lora_path": path})
            assert missing.status_code == 404
        written(inside, "bad", "broken")
        bad = await http.post("/v1/load_lora_adapter", json={"lora_name": "x", "lora_path": "bad"})
        assert bad.status_code == 400 and "it fits nothing" in bad.text
        assert [card["id"] for card in (await http.get("/v1/models")).json()["data"]] == ["fake"]
    closed = AdapterSettings(directory=str(inside))
    async with serving(inside, settings=closed) as (http, _, _):
        answer = await http.post("/v1/load_lora_adapter", json={"lora_name": "x", "lora_path": "bad"})
        assert answer.status_code == 404 and "--allow-runtime-lora-updating" in answer.json()["error"]["message"]


async def test_unknown_names_are_searched_in_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DirectoryResolver, "find", lambda self, name: self_found(tmp_path, name))
    settings = AdapterSettings(directory=str(tmp_path), resolvers=(DIRECTORY,), timeout_s=0.5)
    written(tmp_path, "found")
    async with serving(tmp_path, settings=settings) as (http, _, _):
        both = await asyncio.gather(said(http, "found"), said(http, "found"))
        assert both == [text_of("found", 5)] * 2
        await completed(http, "lost", status=404)
        await completed(http, "slow", status=404)
        await completed(http, "raises", status=404)
        assert await said(http, "fake") == text_of("", 5)


def self_found(directory: Path, name: str) -> str | None:
    import time

    if name == "slow":
        time.sleep(1.0)
    if name == "raises":
        raise RuntimeError("the resolver is broken")
    return str(directory / name) if (directory / name).is_file() else None


def test_resolvers_take_no_names_that_lead_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "in" / "one").mkdir(parents=True)
    (tmp_path / "out").mkdir()
    (tmp_path / "in" / "link").symlink_to(tmp_path / "out")
    resolver = DirectoryResolver(str(tmp_path / "in"))
    assert resolver.find("one") == str(tmp_path / "in" / "one")
    for name in ("..", ".", "../out", "link", "/etc", "one/..", "x" * 5000, "a\0b", ""):
        assert resolver.find(name) is None, name
    assert below(str(tmp_path / "in"), "one/../../out") is None
    for name in ("plain", "../x/y", "a/b/c", "https://host/x", "a/../b"):
        assert HubResolver().find(name) is None


@pytest.mark.parametrize("lives", [(3,), (4, 3), (6, 2, 2)])
async def test_streams_with_adapters_go_on_after_the_engine_dies(tmp_path: Path, lives: Sequence[int]) -> None:
    async with serving(tmp_path, "sql", "fr", "third", lives=lives) as (http, _, source):
        found = await asyncio.gather(*(said(http, model, 12) for model in ("sql", "fr", "fake", "third")))
        assert found == [text_of(name, 12) for name in ("sql", "fr", "", "third")]
        assert len(source.clients) == len(lives) + 1


async def test_what_was_loaded_and_unloaded_outlives_the_engine(tmp_path: Path, lasting: Callable[..., int]) -> None:
    written(tmp_path, "new")
    async with serving(tmp_path, "sql", "fr") as (http, engine, source):
        source.config = msgspec.structs.replace(source.config, lasting_file=lasting())
        source.clients[-1].die("killed")
        while engine.restarts.paused_since is not None:
            await asyncio.sleep(0.01)
        await http.post("/v1/load_lora_adapter", json={"lora_name": "extra", "lora_path": "new"})
        await http.post("/v1/unload_lora_adapter", json={"lora_name": "sql"})
        for config in ('"before"', '"sent"'):
            with SharedTensors({}) as shared:
                described: dict[str, Any] = {"configuration": config, "shared_memory": shared.name, "tensors": []}
                await engine.adapters.load("memory", sent=described, replaces=True)
        assert await said(http, "memory", 5) == text_of('"sent"', 5)
        task = asyncio.create_task(said(http, "extra", 20))
        await asyncio.sleep(0.01)
        source.clients[-1].die("killed")
        assert await task == text_of("new", 20)
        names = {card["id"] for card in (await http.get("/v1/models")).json()["data"]}
        assert names == {"fake", "fr", "extra", "memory"}
        await completed(http, "sql", status=404)
        assert await said(http, "memory", 5) == text_of('"sent"', 5), (
            "only the first engine could read the shared memory"
        )


async def test_adapters_come_from_shared_memory_where_weights_do(tmp_path: Path) -> None:
    config = {"r": 1, "nested": [{"a": None}]}
    with SharedTensors({"x": torch.ones(3)}) as shared:
        body = {"lora_name": "sent", "shared_memory": shared.name, "adapter_config": config}
        body |= {"tensors": msgspec.to_builtins(shared.tensors)}
        weights = json.dumps(config, separators=(",", ":"))
        for backend, status in ((None, 403), ("file", 403), ("any", 200), ("shared_memory", 200)):
            allowed = None if backend is None else WeightTransferConfig(backend=backend)
            async with serving(tmp_path, weight_transfer=allowed) as (http, _, _):
                answer = await http.post("/v1/load_lora_adapter", json=body)
                assert answer.status_code == status, answer.text
                if status == 200:
                    assert answer.json()["digest"] == digest_of(weights)
                    assert await said(http, "sent") == text_of(weights, 5)
                else:
                    assert "--weight-transfer-config" in answer.json()["error"]["message"]
        async with serving(tmp_path, weight_transfer=WeightTransferConfig()) as (http, _, _):
            wrong: list[tuple[dict[str, Any], str]] = [
                ({"lora_path": "a"}, "either lora_path or shared_memory"),
                ({"shared_memory": None}, "either lora_path or shared_memory"),
                ({"shared_memory": None, "lora_path": "a"}, "tensors describes shared memory"),
                ({"adapter_config": None}, "adapter_config is missing"),
                ({"adapter_config": [1]}, "adapter_config is no object"),
                ({"shared_memory": "../etc/passwd"}, "is no name of shared memory"),
                ({"tensors": [{"name": "x", "dtype": "F32", "shape": [-1]}]}, "body is not understood"),
                ({"tensors": [{"name": "x", "dtype": "I8", "shape": [1]}]}, "has type I8"),
            ]
            for change, words in wrong:
                answer = await http.post("/v1/load_lora_adapter", json=body | change)
                assert answer.status_code == 400 and words in answer.json()["error"]["message"], answer.text
            answer = await http.post("/v1/load_lora_adapter", json=body | {"adapter_config": {"x": "y" * SHORT_BODY}})
            assert answer.status_code == 413 and f"{SHORT_BODY} bytes" in answer.json()["error"]["message"]
            assert [card["id"] for card in (await http.get("/v1/models")).json()["data"]] == ["fake"]


@pytest.fixture
def lasting() -> Callable[..., int]:
    from core_supervision.link.anonymous_file import anonymous_file

    return lambda: anonymous_file("lasting", 0)


async def test_an_activated_adapter_shares_the_bases_prefix(tmp_path: Path) -> None:
    (tmp_path / "act").write_text("activated 3 4")
    from core.api.adapters import AdapterSource

    config_source = AdapterSource("act", str(tmp_path / "act"))
    async with serving(tmp_path) as (http, engine, _):
        await engine.adapters.load(config_source.name, config_source.path)
        assert await said(http, "act") == text_of("activated 3 4", 5, first=2)
        body = {"model": "act", "prompt": [7, 8, 9, 10], "max_tokens": 5}
        plain = (await http.post("/v1/completions", json=body)).json()["choices"][0]["text"]
        assert plain == bytes(reference([7, 8, 9, 10], 5)).decode(), "its prompt does not invoke the adapter"


async def test_a_default_adapter_is_that_of_requests_for_the_base(tmp_path: Path) -> None:
    async with serving(tmp_path, "qlora") as (http, _, _):
        context = http._transport.app.state.context  # type: ignore[attr-defined]
        context.adapters._default = "qlora"
        assert await said(http, "fake") == await said(http, None) == text_of("qlora", 5)


async def test_an_adapters_own_chat_template_is_used_for_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    templates = tmp_path / "templates"
    templates.mkdir()
    (templates / "chat_template.jinja").write_text("ADAPTER {{ messages[0]['content'] }}")
    monkeypatch.setattr(
        "core_apis.served_adapters.own_template",
        lambda path: own_template(str(templates)) if path.endswith("sql") else own_template(path),
    )
    async with serving(tmp_path, "sql", "fr", template="BASE {{ messages[0]['content'] }}") as (http, _, _):
        found = {}
        for model in ("sql", "fr", "fake"):
            body = {"model": model, "messages": [{"role": "user", "content": "x"}], "return_token_strs": True}
            answer = await http.post("/tokenize", json=body)
            assert answer.status_code == 200, answer.text
            found[model] = "".join(answer.json()["token_strs"])
        assert {model: text.split("x")[0].strip() for model, text in found.items()} == {
            "sql": "ADAPTER",
            "fr": "BASE",
            "fake": "BASE",
        }


async def test_several_chats_are_of_an_adapter(tmp_path: Path) -> None:
    conversations = [[{"role": "user", "content": text}] for text in ("x", "yy")]
    fields = {"model": "sql", "max_tokens": 5, "temperature": 0}
    async with serving(tmp_path, "sql", template="{{ messages[0]['content'] }}") as (http, _, _):
        alone = []
        for one in conversations:
            answer = await http.post("/v1/chat/completions", json={**fields, "messages": one})
            alone.append(answer.json()["choices"][0]["message"])
        together = await http.post("/v1/chat/completions/batch", json={**fields, "messages": conversations})
        assert together.json()["model"] == "sql"
        assert [choice["message"] for choice in together.json()["choices"]] == alone
        based = {**fields, "model": "fake", "messages": conversations}
        base = (await http.post("/v1/chat/completions/batch", json=based)).json()
        assert [choice["message"] for choice in base["choices"]] != alone
        for path in ("/v1/chat/completions/batch", "/generative_scoring"):
            body = (
                {"messages": conversations}
                if "chat" in path
                else {"query": [1], "items": [[2]], "label_token_ids": [3]}
            )
            wrong = await http.post(path, json={**body, "model": "sqll"})
            assert wrong.status_code == 404 and "Did you mean 'sql'" in wrong.text


def test_templates_of_adapters_that_cannot_be_read_are_none(tmp_path: Path) -> None:
    assert own_template(str(tmp_path)) is None and own_template(str(tmp_path / "nowhere")) is None
    (tmp_path / "tokenizer_config.json").write_text("{broken")
    assert own_template(str(tmp_path)) is None
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": [{"name": "default"}]}')
    assert own_template(str(tmp_path)) is None
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "T", "other": 1}')
    assert own_template(str(tmp_path)) == "T"
