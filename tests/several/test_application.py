"""The address of several models: which one a request comes to, what is passed on, and what clients see of failures."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from contextlib import asynccontextmanager

import httpx
import pytest

from core_commands.client.endpoint import EndpointError
from core_commands.several import naming
from core_commands.several.application import create_app
from core_commands.several.entries import ModelEntry
from core_commands.several.keeper import Keeper
from core_commands.several.naming import seconds_of
from core_commands.several.turns import Seat, Turns
from core_config.served.server_config import ServerConfig
from core_formats.server_limits import ServerLimits
from tests.several.fakes import FakeChild

MB = 1 << 20
TURN = 0.05


@asynccontextmanager
async def models(
    *names, budget=1000, server=None, most_waiting=8, raises=False, adapters=None, places=None, **settings
):
    """Yield three parts of the server: its client, its children and its keeper. adapters: by model. settings: of all seats."""
    entries = [
        ModelEntry(
            (name, f"{name}-too"), {"model": name}, 600 * MB, 0, 512, adapters=tuple((adapters or {}).get(name, ()))
        )
        for name in names
    ]
    seats = [Seat(name, 600 * MB, **settings) for name in names]
    children = {name: FakeChild(name) for name in names}
    keeper = Keeper(Turns(seats, budget * MB, TURN, time.monotonic), children, most_waiting)
    app = create_app(entries, keeper, server or ServerConfig(), places)
    running = asyncio.ensure_future(keeper.run())
    transport = httpx.ASGITransport(app, raise_app_exceptions=raises)
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://s") as client:
            yield client, children, keeper
    finally:
        running.cancel()
        await keeper.close()


def run(scenario):
    asyncio.run(asyncio.wait_for(scenario, 20))


def message(answer):
    return answer.json()["error"]["message"]


def test_a_request_comes_to_the_model_that_it_names():
    async def scenario():
        async with models("a", "org/b") as (client, children, _):
            chat = "/v1/chat/completions"
            answers = [
                await client.post(chat, json={"model": "a", "messages": [], "keep_alive": "5m"}),
                await client.post(chat, json={"model": "org/b-too"}),
                await client.get("/v1/responses/r1?model=a&after=x y"),
                await client.get("/v1/responses/r1", headers={"X-Model": "org/b"}),
                await client.post("/models/org/b/v1/embeddings", json={"model": "whatever"}),
                await client.post("/v1/audio/transcriptions", data={"model": "a"}, files={"file": ("f", b"\0\1")}),
            ]
            assert [answer.json()["by"] for answer in answers] == ["a", "org/b", "a", "org/b", "org/b", "a"]
            method, path, body, headers = children["a"].seen[0]
            assert (method, path, json.loads(body)) == ("POST", chat, {"model": "a", "messages": []})
            assert headers["content-type"] == "application/json"
            assert not {"host", "content-length", "connection", "x-model"} & set(headers)
            assert children["a"].seen[1][1] == "/v1/responses/r1?after=x%20y"
            assert children["org/b"].seen[2][1] == "/v1/embeddings"
            assert answers[0].headers["x-own"] == "kept"
            assert "connection" not in answers[0].headers

    run(scenario())


def test_an_adapter_is_asked_for_by_its_name():
    async def scenario():
        given = {"a": ["sql", "both", "b"], "b": ["fr", "both"]}
        async with models("a", "b", adapters=given) as (client, children, _):
            chat = "/v1/chat/completions"
            answers = [await client.post(chat, json={"model": name}) for name in ("sql", "fr", "b")]
            assert [answer.json()["by"] for answer in answers] == ["a", "b", "b"], "a model's own name comes first"
            assert json.loads(children["a"].seen[0][2]) == {"model": "sql"}
            refused = await client.post(chat, json={"model": "both"})
            assert refused.status_code == 400
            assert message(refused) == (
                "'both' is an adapter of 'a' and 'b'; ask for it by the path of one of them: /models/a/v1/..."
            )
            assert (await client.post("/models/b/v1/chat/completions", json={"model": "both"})).json() == {"by": "b"}
            listed = {each["id"]: each for each in (await client.get("/v1/models")).json()["data"]}
            assert (listed["sql"]["parent"], listed["sql"]["root"]) == ("a", "a")
            assert listed["a"]["parent"] is None and "both" not in listed
            assert (await client.get("/v1/models/fr")).json()["parent"] == "b"
            assert (await client.post("/models/sql/unload")).json()["state"] == "asleep"

    run(scenario())


def test_long_bodies_are_searched_aside_and_come_whole(monkeypatch):
    """A sound of a megabyte in a form, and a chat with a picture as long: neither is parsed on the event loop."""

    async def scenario():
        loop_thread = threading.get_ident()
        threads = []
        search = naming._read

        def noted(*given):
            threads.append(threading.get_ident())
            return search(*given)

        monkeypatch.setattr(naming, "_read", noted)
        async with models("a", "b") as (client, children, _):
            sound = bytes(range(256)) * 4096
            answer = await client.post(
                "/v1/audio/transcriptions", data={"model": "b"}, files={"file": ("f.wav", sound)}
            )
            assert answer.json() == {"by": "b"} and sound in children["b"].seen[0][2]
            url = "data:image/png;base64," + "A" * (1 << 20)
            body = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]}
            await client.post("/v1/chat/completions", json={**body, "keep_alive": 60, "model": "a"})
            assert json.loads(children["a"].seen[0][2]) == {**body, "model": "a"}
            await client.post("/v1/completions", json={"model": "a"})
        assert [thread == loop_thread for thread in threads] == [False, False, True]

    run(scenario())


def test_bodies_count_until_they_are_sent_on():
    """Requests that wait for their model hold memory; beyond the room of all bodies they are refused."""

    async def scenario():
        limits = ServerLimits(max_body_size=100_000)
        async with models("a", "b", server=ServerConfig(limits=limits)) as (client, children, _):
            never = asyncio.Event()
            children["a"].parts = [never]
            running = asyncio.ensure_future(client.post("/v1/completions", json={"model": "a"}))
            while not children["a"].seen:
                await asyncio.sleep(0.001)
            long = {"model": "b", "prompt": "x" * 90_000}
            waiting = [asyncio.ensure_future(client.post("/v1/completions", json=long)) for _ in range(4)]
            await asyncio.sleep(0.05)
            answer = await client.post("/v1/completions", json=long)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "server_busy")
            never.set()
            assert {one.status_code for one in await asyncio.gather(running, *waiting)} == {200}
            assert (await client.post("/v1/completions", json=long)).status_code == 200

    run(scenario())


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"model": "aa"}, 404, "There is no model 'aa' here; there are 'a'"),
        ({}, 400, "name one in the body (`model`)"),
        ({"model": 5}, 400, "`model` is '5'; expected a text"),
        ({"model": "a", "keep_alive": "soon"}, 400, "`keep_alive` is 'soon'"),
        ({"model": "a", "keep_alive": True}, 400, "`keep_alive` is 'True'"),
    ],
)
def test_what_names_no_model_is_refused(body, status, said):
    async def scenario():
        async with models("a", "b") as (client, children, _):
            answer = await client.post("/v1/completions", json=body)
            assert (answer.status_code, said in message(answer)) == (status, True), answer.text
            assert not children["a"].calls, "a model is started for nobody"

    run(scenario())


@pytest.mark.parametrize(
    ("given", "seconds"), [(5, 5), ("90", 90), ("5m", 300), ("1.5h", 5400), ("-1", -1), ("20ms", 0.02)]
)
def test_seconds_of_keep_alive(given, seconds):
    assert seconds_of(given) == seconds


def test_keep_alive_says_how_long_a_model_stays():
    async def scenario():
        async with models("a", "b") as (client, children, keeper):
            await client.post("/v1/completions", json={"model": "a", "keep_alive": 0})
            while keeper.turns.seats["a"].state != "asleep":
                await asyncio.sleep(0.001)
            await client.post("/v1/completions", json={"model": "a"})
            await asyncio.sleep(0.02)
            assert children["a"].calls == ["start", "sleep", "wake"]
            assert keeper.turns.seats["a"].state == "awake"

    run(scenario())


def test_models_change_places_and_everybody_is_answered():
    async def scenario():
        async with models("a", "b", "c", most_waiting=200) as (client, children, keeper):
            asked = [client.post("/v1/completions", json={"model": "abc"[number % 3]}) for number in range(90)]
            answers = await asyncio.gather(*asked)
            assert [answer.json()["by"] for answer in answers] == ["abc"[number % 3] for number in range(90)]
            assert all(child.calls.count("start") == 1 for child in children.values())
            assert keeper.turns.used <= keeper.turns.budget

    run(scenario())


def test_a_model_in_use_is_not_put_to_sleep():
    async def scenario():
        async with models("a", "b") as (client, children, keeper):
            more = asyncio.Event()
            children["a"].parts = [b"first", more, b"last"]
            long = asyncio.ensure_future(client.post("/v1/completions", json={"model": "a"}))
            while not children["a"].seen:
                await asyncio.sleep(0.001)
            other = asyncio.ensure_future(client.post("/v1/completions", json={"model": "b"}))
            await asyncio.sleep(3 * TURN)
            assert (keeper.turns.seats["a"].state, other.done()) == ("closing", False)
            listed = (await client.get("/v1/models")).json()
            states = {each["id"]: (each["state"], each["running"], each["waiting"]) for each in listed["data"]}
            assert states["a"] == ("closing", 1, 0)
            assert states["b-too"] == ("absent", 0, 1)
            assert (listed["budget_bytes"], listed["used_bytes"]) == (1000 * MB, 600 * MB)
            more.set()
            assert (await long).content == b"firstlast"
            assert (await other).json() == {"by": "b"}
            assert children["a"].calls == ["start", "sleep"]

    run(scenario())


def test_a_client_that_goes_leaves_no_place_taken():
    async def scenario():
        async with models("a", "b") as (client, children, keeper):
            never = asyncio.Event()
            children["a"].parts = [never]
            running = asyncio.ensure_future(client.post("/v1/completions", json={"model": "a"}))
            waiting = asyncio.ensure_future(client.post("/v1/completions", json={"model": "b"}))
            while not children["a"].seen:
                await asyncio.sleep(0.001)
            for task in (waiting, running):
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            seats = keeper.turns.seats.values()
            await asyncio.sleep(0.02)
            assert [(seat.running, len(seat.waiting)) for seat in seats] == [(0, 0), (0, 0)]

    run(scenario())


def test_too_many_waiters_are_refused():
    async def scenario():
        async with models("a", "b", most_waiting=2) as (client, children, _):
            never = asyncio.Event()
            children["a"].parts = [never]
            running = asyncio.ensure_future(client.post("/v1/completions", json={"model": "a"}))
            while not children["a"].seen:
                await asyncio.sleep(0.001)
            waiting = [asyncio.ensure_future(client.post("/v1/completions", json={"model": "b"})) for _ in range(2)]
            await asyncio.sleep(0.01)
            answer = await client.post("/v1/completions", json={"model": "b"})
            assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
            never.set()
            await asyncio.gather(running, *waiting)

    run(scenario())


def test_a_model_that_fails_leaves_the_others_serving_and_is_tried_again():
    async def scenario():
        async with models("a", "b") as (client, children, keeper):
            children["a"].fails_to = {"start"}
            answer = await client.post("/v1/completions", json={"model": "a"})
            assert answer.status_code == 503
            assert "cannot start" in message(answer)
            again = await client.post("/v1/completions", json={"model": "a"})
            assert again.headers["retry-after"] == "1"
            assert children["a"].calls == ["start"], "it is not started for every request"
            assert (await client.post("/v1/completions", json={"model": "b"})).json() == {"by": "b"}
            assert (await client.get("/health")).json()["models"] == {"a": "failed", "b": "awake"}
            children["a"].fails_to = set()
            seat = keeper.turns.seats["a"]
            seat.not_before = 0.0
            assert (await client.post("/v1/completions", json={"model": "a"})).json() == {"by": "a"}
            assert (seat.state, seat.running, children["a"].calls) == ("awake", 0, ["start", "start"])

    run(scenario())


def test_the_death_of_a_models_server_is_told_and_its_memory_is_free():
    async def scenario():
        async with models("a", "b") as (client, children, keeper):
            await client.post("/v1/completions", json={"model": "a"})
            children["a"].end_event.set()
            while keeper.turns.seats["a"].state != "absent":
                await asyncio.sleep(0.001)
            assert keeper.turns.used == 0
            assert (await client.post("/v1/completions", json={"model": "b"})).json() == {"by": "b"}

    run(scenario())


def test_an_answer_that_breaks_off():
    async def scenario():
        async with models("a") as (client, children, _):
            children["a"].refuses = True
            answer = await client.post("/v1/completions", json={"model": "a"})
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_failed")
            children["a"].refuses = False
            children["a"].headers = {"content-type": "text/event-stream; charset=utf-8"}
            children["a"].parts = [b"data: 1\n\n", EndpointError("gone")]
            streamed = (await client.post("/v1/completions", json={"model": "a"})).text
            assert streamed.startswith("data: 1\n\ndata: {")
            assert "ended before this answer was whole" in streamed

    run(scenario())


def test_a_part_of_an_answer_is_not_taken_for_the_whole():
    async def scenario():
        async with models("a", raises=True) as (client, children, _):
            children["a"].headers = {"content-type": "application/json"}
            children["a"].parts = [b"12345", EndpointError("gone")]
            with pytest.raises(
                AssertionError
            ):  # of the client: the answer has no end, so an HTTP server closes the connection
                await client.post("/v1/completions", json={"model": "a"})

    run(scenario())


def test_operators_load_and_unload():
    async def scenario():
        server = ServerConfig(api_keys=("one", "two"), admin_api_keys=("boss",))
        boss, one = ({"Authorization": f"Bearer {key}"} for key in ("boss", "one"))
        async with models("a", "b", server=server) as (client, children, keeper):
            assert (await client.get("/v1/models")).status_code == 401
            assert (await client.post("/v1/completions", json={"model": "a"})).status_code == 401
            assert (await client.post("/models/a/load", headers=one)).status_code == 403
            assert not children["a"].calls
            loaded = await client.post("/models/a/load", headers=boss)
            assert (loaded.json()["state"], children["a"].calls) == ("awake", ["start"])
            unloaded = await client.post("/models/a-too/unload", headers=boss)
            assert (unloaded.json()["state"], keeper.turns.used) == ("asleep", 0)
            keeper.turns.seats["b"].pinned = True
            refused = await client.post("/models/b/unload", headers=boss)
            assert (refused.status_code, "pinned" in message(refused)) == (409, True)
            for path in ("/sleep?model=a", "/wake_up?model=a"):
                assert (await client.post(path, headers=boss)).status_code == 400
            assert (await client.get("/health")).status_code == 200

    run(scenario())


def test_a_model_in_use_is_unloaded_once_it_has_answered():
    async def scenario():
        async with models("a") as (client, children, keeper):
            more = asyncio.Event()
            children["a"].parts = [b"first", more]
            long = asyncio.ensure_future(client.post("/v1/completions", json={"model": "a"}))
            while not children["a"].seen:
                await asyncio.sleep(0.001)
            unloading = asyncio.ensure_future(client.post("/models/a/unload"))
            await asyncio.sleep(0.02)
            assert (unloading.done(), keeper.turns.seats["a"].state) == (False, "awake")
            more.set()
            assert (await long).content == b"first"
            assert (await unloading).json()["state"] == "asleep"

    run(scenario())


def test_metrics_of_all_models_in_one_text():
    async def scenario():
        async with models("a", "b", budget=2000) as (client, _, _):
            for name in "ab":
                await client.post("/v1/completions", json={"model": name})
            lines = (await client.get("/metrics")).text.splitlines()
            place = lines.index("# HELP core:n A number.")
            assert lines[place + 1 : place + 4] == [
                "# TYPE core:n counter",
                'core:n{model_name="a"} 1',
                'core:n{model_name="b"} 1',
            ]
            assert 'core:model_state{model_name="a",state="awake"} 1' in lines
            assert f"core:model_budget_bytes {2000 * MB}" in lines

    run(scenario())


def test_the_page_and_those_of_the_models():
    async def scenario():
        async with models("a", "b") as (client, children, _):
            assert "several/several.js" in (await client.get("/")).text
            assert (await client.get("/several/several.js")).headers["content-type"].startswith("text/javascript")
            assert (await client.get("/several/turns.py")).status_code == 404
            assert "<html" in (await client.get("/models/a/")).text
            assert (await client.get("/models/a/page/page.js")).status_code == 200
            assert not children["a"].calls, "a look at a page loads a model"

    run(scenario())
