"""The page at `/`: what it is made of, what it may do, who sees which data. `tests/page` uses it in a browser."""

import re
from importlib.resources import files

import httpx

from core_apis.page import __name__ as PAGE
from core_apis.routes.page import FILES
from core_config.served.server_config import ServerConfig
from tests.apis.conftest import RunningServer, run_server


def text_of(name: str) -> str:
    return files(PAGE).joinpath(name).read_text(encoding="utf-8")


def test_every_file_is_served_and_may_run_nothing_else(server: RunningServer) -> None:
    index = server.http.get("/")
    assert index.headers["content-type"] == "text/html; charset=utf-8"
    assert index.text == text_of("index.html")
    wanted = set(re.findall(r'(?:src|href)="page/([^"]+)"', index.text))
    for name in FILES:
        wanted |= set(re.findall(r'from "\./([^"]+)"', text_of(name)))
    assert wanted == set(FILES)
    for name, kind in FILES.items():
        answer = server.http.get(f"/page/{name}")
        assert answer.headers["content-type"] == f"{kind}; charset=utf-8"
        assert "default-src 'none'; script-src 'self'" in answer.headers["content-security-policy"]
        again = server.http.get(f"/page/{name}", headers={"if-none-match": answer.headers["etag"]})
        assert again.status_code == 304 and not again.content
    for other in ("__init__.py", "../app.py", "%2e%2e%2fapp.py", "nothing"):
        assert server.http.get(f"/page/{other}").status_code == 404


def test_nothing_that_a_model_writes_can_become_markup() -> None:
    ways_in = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|srcdoc|javascript:"
    )
    for name in FILES:
        assert not ways_in.search(text_of(name)), name
    index = text_of("index.html")
    assert not re.search(r"<script(?![^>]* src=)|<style| on\w+=| style=", index)


def test_requests_are_told_to_their_own_key_without_their_texts() -> None:
    with run_server(ServerConfig(api_keys=("ann", "bob"), uvicorn_log_level="warning")) as running:
        assert running.http.get("/").status_code == 200
        assert running.http.get("/page/page.js").status_code == 200
        assert running.http.get("/live/requests").status_code == 401
        assert running.http.get("/live/configuration").status_code == 401
        ann = {"authorization": "Bearer ann"}
        bob = {"authorization": "Bearer bob"}
        body = {"prompt": "a secret", "max_tokens": 4}
        answer = running.http.post("/v1/completions", json=body, headers=ann).json()
        refused = running.http.post("/v1/completions", json={**body, "max_tokens": 10_000}, headers=ann)
        assert refused.status_code == 400
        told = running.http.get("/live/requests", headers=ann)
        (entry,) = [each for each in told.json()["requests"] if each["id"] == answer["id"]]
        assert entry["num_tokens"] == 4 and entry["reason"] == "length"
        assert entry["begin"] <= entry["first_token"] <= entry["end"] <= told.json()["now"]
        assert "secret" not in told.text
        assert running.http.get("/live/requests", headers=bob).json()["requests"] == []
        assert running.http.get("/live/configuration", headers=ann).status_code == 403


def test_a_request_that_its_client_leaves_is_over(server: RunningServer) -> None:
    body = {"prompt": "SLOW", "stream": True, "max_tokens": 100}
    with server.http.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.iter_lines()  # kept, since its end would be that of the stream
        next(lines)
        entry = server.http.get("/live/requests").json()["requests"][-1]
        assert entry["reason"] is None and entry["end"] is None
    server.wait_idle()
    entry = server.http.get("/live/requests").json()["requests"][-1]
    assert entry["reason"] == "abort" and entry["end"] >= entry["begin"]


def test_the_page_can_be_left_out() -> None:
    with run_server(ServerConfig(disable_ui=True, uvicorn_log_level="warning")) as running:
        for path in ("/", "/page/page.js", "/live/requests", "/live/configuration"):
            assert httpx.get(running.url + path).status_code == 404
