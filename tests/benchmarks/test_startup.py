"""A server as a child process: waiting for it, its failures, its end."""

import os
import subprocess
import sys

import pytest

from benchmarks.startup import Server, ServerError, free_port, with_bytecode

SCRIPT = """
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    posts = 0
    def answer(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    def do_GET(self):
        self.answer(200, {"data": [{"id": "tiny"}]})
    def do_POST(self):
        Handler.posts += 1
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/wrong":
            self.answer(400, {"error": "so not"})
        else:
            self.answer(503 if Handler.posts < 3 else STATUS, {"posts": Handler.posts})
    def log_message(self, *_):
        pass

HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


STOPPABLE = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
"""A shell that starts the suite in the background has SIGINT ignored, and children inherit that."""


def server(script, log, limit=30.0):
    port = free_port()
    return Server([sys.executable, "-c", STOPPABLE + script, str(port)], port, start_limit_s=limit, log=log)


def test_a_server_that_still_loads_is_waited_for(tmp_path):
    with server(SCRIPT.replace("STATUS", "200"), tmp_path / "log") as running:
        assert running.model == "tiny"
        assert running.post("/v1/completions", {})["posts"] == 4  # two refusals, then the first completion
        assert running.start_seconds > 0
        with pytest.raises(ServerError, match=r"/wrong answered 400: .*so not"):
            running.post("/wrong", {})
        assert running.memory()["total"] > 1


def test_a_server_that_refuses_the_first_completion_fails(tmp_path):
    with pytest.raises(ServerError, match="answered 500"):
        server(SCRIPT.replace("STATUS", "500"), tmp_path / "log").__enter__()


def test_a_server_that_ends_says_its_last_words(tmp_path):
    with pytest.raises(ServerError, match=r"ended with 4: no model"):
        server("import sys; print('no model', flush=True); sys.exit(4)", tmp_path / "log").__enter__()


def test_a_server_that_never_answers_reaches_the_limit(tmp_path):
    with pytest.raises(ServerError, match=r"did not answer within 0\.3 s"):
        server("import time; time.sleep(60)", tmp_path / "log", limit=0.3).__enter__()


def test_bytecode_is_kept_whatever_the_callers_environment_says(tmp_path):
    (tmp_path / "module.py").write_text("")
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"} | with_bytecode(tmp_path / "kept")
    subprocess.run([sys.executable, "-c", "import module"], cwd=tmp_path, env=environment, check=True)
    assert list((tmp_path / "kept").rglob("module.*.pyc"))
