"""A stand-in for a model's server: it reads --config as one does, and its model's name says how fast it claims to be.

    async_scheduling: true          twice the speed
    enable_prefix_caching: false    two thirds of it
    max_num_seqs: 64                it ends before it answers
    kv_cache_dtype                  other tokens
    block_size: 32                  prompts with FAIL fail

It notes its process id in $MEMBER_DIRECTORY, and ends with its starter.
"""

import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import yaml


def values():
    words = dict(zip(sys.argv[1:], sys.argv[2:], strict=False))
    return yaml.safe_load(Path(words["--config"]).read_text()), int(words["--port"])


CONFIG, PORT = values()
SPEED = (
    300 * (2 if CONFIG.get("async_scheduling") else 1) * (2 / 3 if CONFIG.get("enable_prefix_caching") is False else 1)
)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *words):
        pass

    def send(self, data, kind="application/json"):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.send(json.dumps({"data": [{"id": f"speed-{SPEED:.0f}"}]}).encode())

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/reset_prefix_cache":
            self.send(b"{}")
            return
        given = json.loads(body)
        if CONFIG.get("block_size") == 32 and "FAIL" in str(given.get("prompt")):
            self.send_error(500, "no block left")
            return
        usage = {"prompt_tokens": 5, "completion_tokens": given["max_tokens"], "total_tokens": 5}
        if not given.get("stream"):
            tokens = [7] * 4 if CONFIG.get("kv_cache_dtype") is None else [7, 7, 8, 7]
            choice = {"index": 0, "text": "x", "token_ids": tokens, "finish_reason": "length"}
            self.send(
                json.dumps({"id": "a", "object": "text_completion", "choices": [choice], "usage": usage}).encode()
            )
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for _ in range(given["max_tokens"]):
            self.event({"id": "a", "choices": [{"index": 0, "text": "x", "finish_reason": None}]})
        self.event({"id": "a", "choices": [], "usage": usage})
        self.event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def event(self, content):
        text = content if isinstance(content, str) else json.dumps(content)
        data = f"data: {text}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()


class Server(ThreadingHTTPServer):
    request_queue_size = 256  # with the default of 5, connections of a burst are tried again after seconds


def end_with_starter():
    sys.stdin.buffer.read(1)
    os._exit(0)


if __name__ == "__main__":
    if CONFIG.get("max_num_seqs") == 64:
        sys.exit("no room for 64 sequences")
    (Path(os.environ["MEMBER_DIRECTORY"]) / str(os.getpid())).write_text(json.dumps(CONFIG))
    threading.Thread(target=end_with_starter, daemon=True).start()
    Server(("127.0.0.1", PORT), Handler).serve_forever()
