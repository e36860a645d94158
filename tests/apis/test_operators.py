"""Paths that concern all tenants, or show the configuration, answer the operator alone: all callers with all routes."""

import asyncio
import json
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from starlette.routing import compile_path

from core.api.config import ProfilerConfig
from core_apis.app import create_app
from core_apis.callers.access import ACCESS, operators
from core_apis.processes.shares import server_share
from core_config.arguments.sources import merge
from core_config.served.server import server_config
from core_config.served.server_config import AdapterSettings, BatchSettings, ServerConfig
from tests.apis.fake_engine import make_engine
from tests.apis.test_api_keys import call

TRICKS = ["{}", "{}%0a", "{}?x=1", "/proxy{}", "{}#/health", "//{}"]
BATCHES = TemporaryDirectory()
OPERATORS = [path for path, access in ACCESS.items() if access == "operator"]
SETTINGS: dict[str, tuple[ServerConfig, dict[str | None, bool]]] = {
    "no keys": (ServerConfig(), {None: True}),
    "one key": (ServerConfig(api_keys=("ann",)), {"ann": True}),
    "two keys": (ServerConfig(api_keys=("ann", "bob")), {"ann": False, "bob": False}),
    "an admin": (
        ServerConfig(api_keys=("ann", "bob"), admin_api_keys=("root", "other")),
        {"ann": False, "bob": False, "root": True, "other": True},
    ),
    "an admin and one key": (ServerConfig(api_keys=("ann",), admin_api_keys=("root",)), {"ann": False, "root": True}),
    "an admin alone": (ServerConfig(admin_api_keys=("root",)), {None: False, "wrong": False, "root": True}),
}
"""What the server is given, and whether the caller with that key is the operator."""


def everything(settings: ServerConfig) -> Any:
    """An application that mounts every route there is."""
    engine = make_engine(changes=True, profiler=ProfilerConfig(directory="/traces"))
    whole = msgspec.structs.replace(
        settings,
        enable_server_load_tracking=True,
        enable_tokenizer_info_endpoint=True,
        adapters=AdapterSettings(is_updated=True),
        root_path="/proxy",
        quotes=True,
        batches=BatchSettings(directory=BATCHES.name),
    )
    return create_app(engine, whole, engine.model_config)


async def refusal(app: Any, method: str, target: str, key: str | None) -> tuple[int, dict[str, Any]]:
    """Status and error of an answer; (0, {}) for a route that works on, as the fake engine lets some wait."""
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    headers["content-type"] = "application/json"
    try:
        sent = await asyncio.wait_for(call(app, method, target, headers), 0.2)
    except Exception:  # the fake engine has no control
        return 0, {}
    body = b"".join(message.get("body", b"") for message in sent)
    status = sent[0]["status"]
    return status, json.loads(body)["error"] if status == 403 and body else {}


async def test_every_mounted_route_has_a_class_and_every_class_a_route() -> None:
    app = everything(ServerConfig())
    paths = set(app.openapi()["paths"])
    hidden = {"/", "/page/{name}", "/docs", "/redoc", "/docs/{name}", "/openapi.json", "/live/requests"}
    assert paths | hidden | {"/live/configuration"} == set(ACCESS)
    assert all(compile_path(path)[1] == path for path in ACCESS)


async def test_a_route_without_a_class_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    rest = {path: access for path, access in ACCESS.items() if path != "/load"}
    monkeypatch.setattr("core_apis.callers.access.ACCESS", rest)
    with pytest.raises(KeyError, match="/load"):
        everything(ServerConfig())


@pytest.mark.parametrize("name", SETTINGS)
async def test_tenants_times_routes(name: str) -> None:
    settings, callers = SETTINGS[name]
    app = everything(settings)
    for key, is_operator in callers.items():
        for path, access in ACCESS.items():
            if not is_operator or access != "operator":
                continue
            for method in ("GET", "POST"):
                status, error = await refusal(app, method, path, key)
                assert status != 401 and error.get("code") != "operator_only", (key, method, path)
        if is_operator:
            continue
        for path in OPERATORS:
            for target in (trick.format(path) for trick in TRICKS):
                answers = [await refusal(app, method, target, key) for method in ("GET", "POST", "HEAD", "PUT")]
                assert all(status in (403, 404, 405) for status, _ in answers), (key, target, answers)
            for method in ("GET", "POST"):
                status, error = await refusal(app, method, path, key)
                if status == 403:
                    assert error["code"] == "operator_only" and "--admin-api-key" in error["message"]
                    break
            else:
                raise AssertionError(f"{path} was never refused")


@pytest.mark.parametrize("name", ["two keys", "an admin", "an admin and one key"])
async def test_whoever_has_no_key_gets_401_everywhere_but_on_public_paths(name: str) -> None:
    app = everything(SETTINGS[name][0])
    for path, access in ACCESS.items():
        status, _ = await refusal(app, "GET", path.replace("{name}", "page.js"), None)
        assert (status == 401) == (access != "public"), path


async def test_the_admin_computes_as_well_and_is_a_tenant_of_its_own() -> None:
    app = everything(SETTINGS["an admin"][0])
    assert (await refusal(app, "GET", "/v1/models", "root"))[0] == 200
    names = app.state.context.tenants
    assert len({names.name(number) for number in range(4)}) == 4
    assert operators(SETTINGS["an admin"][0]) == {2, 3}


async def test_models_tell_no_path_of_the_host() -> None:
    app = everything(ServerConfig())
    assert app.state.context.model.model == "/models/fake"
    for target in ("/v1/models", "/v1/models/alias"):
        body = b"".join(message.get("body", b"") for message in await call(app, "GET", target))
        assert b"/models/fake" not in body and b'"root":"alias"' in body


def test_each_of_several_processes_knows_the_operator() -> None:
    config = SETTINGS["an admin"][0]
    for number in range(3):
        sent = msgspec.msgpack.encode(server_share(config, number, 3))
        assert operators(msgspec.msgpack.decode(sent, type=ServerConfig)) == {2, 3}


def test_the_argument_and_its_mirror() -> None:
    problems: list[str] = []
    made = server_config(merge({"api_key": ["ann"]}, {"CORE_ADMIN_API_KEY": "root"}), problems)
    assert (made.api_keys, made.admin_api_keys, problems) == (("ann",), ("root",), [])
    for given, told in ((["ann"], "in --api-key too"), ([""], "--admin-api-key: a key is empty")):
        problems = []
        server_config(merge({"api_key": ["ann"], "admin_api_key": given}, {}), problems)
        assert len(problems) == 1 and told in problems[0]
