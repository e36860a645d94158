"""An API of another package, written against docs/plugins/api.md: served beside the engine's own, and kept by the journal."""

import functools
import json

import pytest

pytestmark = pytest.mark.slow

SERVE = """
import json, sys
from core_config.served.server_config import JournalSettings, ServerConfig
from core_config.served.apis import chosen_apis
from core.plugin.registry import PluginRegistry
from tests.apis.conftest import run_server
from tests.apis.test_apis import installed

folder, words = sys.argv[1:]
problems = []
known = PluginRegistry()
rows = [row for row in known.rows() if row.name == "shout"] + installed()
apis = chosen_apis(PluginRegistry(rows, words or None), problems, problems)
assert not problems, problems
limits = {"max_body_size": 4096}
from core_formats.server_limits import ServerLimits
config = ServerConfig(
    apis=apis, api_keys=("ann", "bob"), journal=JournalSettings(directory=folder), limits=ServerLimits(**limits),
    uvicorn_log_level="critical",
)
seen = {}
def told(name, answer):
    seen[name] = [answer.status_code, answer.text, dict(answer.headers)]
with run_server(config) as server:
    http, key = server.http, {"authorization": "Bearer ann"}
    told("no key", http.post("/v1/shout", json={"text": "Hi"}))
    told("whole", http.post("/v1/shout", json={"text": "Hi", "max_tokens": 5}, headers=key))
    told("stream", http.post("/v1/shout", json={"text": "Hi", "max_tokens": 5, "stream": True}, headers=key))
    told("unknown", http.post("/v1/shout", json={"text": "Hi", "loud": True}, headers=key))
    told("missing", http.post("/v1/shout", json={}, headers=key))
    told("long", http.post("/v1/shout", json={"text": "x" * 400}, headers=key))
    told("large", http.post("/v1/shout", json={"text": "x" * 5000}, headers=key))
    told("chat", http.post("/v1/completions", json={"prompt": "Hi", "max_tokens": 2}, headers=key))
    told("metrics", http.get("/metrics"))
    told("document", http.get("/openapi.json", headers=key))
    told("recent", http.get("/live/requests", headers=key))
    ids = [line[4:] for line in seen["stream"][1].splitlines() if line.startswith("id: ")]
    if ids:
        told("rest", http.post("/v1/shout", json={}, headers={**key, "last-event-id": ids[1]}))
        told("other", http.post("/v1/shout", json={}, headers={"authorization": "Bearer bob", "last-event-id": ids[1]}))
if ids:
    with run_server(config) as server:
        told("later", server.http.post("/v1/shout", json={}, headers={**key, "last-event-id": ids[1]}))
print(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def answers(python, tmp_path_factory):
    """answers(words) -> {what: (status, text, headers)}; words: of --plugins."""

    @functools.cache
    def run(words):
        done = python("-c", SERVE, str(tmp_path_factory.mktemp("journal")), words)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])

    return run


def texts(stream):
    return [json.loads(line[6:])["text"] for line in stream.splitlines() if line.startswith("data: {")]


def test_it_has_all_that_others_have(answers):
    seen = answers("")
    status = {name: code for name, (code, *_) in seen.items()}
    refused = {"no key": 401, "unknown": 400, "missing": 400, "long": 400, "large": 413, "other": 404}
    assert status == dict.fromkeys(seen, 200) | refused
    whole = json.loads(seen["whole"][1])
    assert whole["text"] == "HELLO" and whole["id"].startswith("shout-")
    assert "".join(texts(seen["stream"][1])) == "HELLO" and seen["stream"][1].endswith("data: [DONE]\n\n")
    assert json.loads(seen["unknown"][1])["error"]["param"] == "loud"
    assert json.loads(seen["long"][1])["error"]["param"] == "text"
    assert "core:request_success_total" in seen["metrics"][1]
    counted = [line for line in seen["metrics"][1].splitlines() if line.startswith("core:generation_tokens_total")]
    assert counted and counted[0].endswith(" 12.0")
    assert "/v1/shout" in json.loads(seen["document"][1])["paths"]
    assert any(entry["id"].startswith("shout-") for entry in json.loads(seen["recent"][1])["requests"])


def test_its_streams_are_kept(answers):
    seen = answers("")
    events = seen["stream"][1].split("\n\n")
    rest = "\n\n".join(events[2:])
    assert rest and seen["rest"][1] == seen["later"][1] == rest


def test_it_can_be_left_out(answers):
    seen = answers("no:shout")
    assert seen["whole"][0] == seen["stream"][0] == 404 and seen["chat"][0] == 200
    assert "/v1/shout" not in json.loads(seen["document"][1])["paths"]
