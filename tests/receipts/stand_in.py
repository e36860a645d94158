"""A server that is none: it answers every request with the same few tokens, as a stream, and counts what it was asked.

Owns: `StandIn`. Called by: the tests of speeds, which need real connections but no engine.
"""

import json
import threading
from collections import Counter
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

NUM_TOKENS = 3


class StandIn:
    """What clients asked. url: where. bodies: of requests, in their order. refused: requests with this word fail."""

    def __init__(self, url, *, forgets=True, refused="REFUSED", breaks=False):
        self.url = url
        self.forgets = forgets
        self.refused = refused
        self.breaks = breaks
        self.bodies = []
        self.asked = Counter()


@contextmanager
def stand_in(**options):
    """Run a stand-in inside the context."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.told = StandIn(f"http://127.0.0.1:{server.server_port}", **options)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server.told
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *words):
        pass

    def do_GET(self):
        self.tell(200, {"data": [{"id": "stand-in"}]})

    def do_POST(self):
        told = self.server.told
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        told.asked[self.path] += 1
        if self.path == "/reset_prefix_cache":
            self.tell(200 if told.forgets else 404, {})
            return
        body = json.loads(data)
        told.bodies.append(body)
        if told.refused in json.dumps(body):
            self.tell(400, {"error": {"message": "it will not"}})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        events = (
            message() if self.path == "/v1/messages" else completion(is_chat=self.path.endswith("chat/completions"))
        )
        for event in events[:2] if told.breaks else events:
            text = event if isinstance(event, str) else json.dumps(event)
            self.wfile.write(f"data: {text}\n\n".encode())

    def tell(self, status, content):
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def completion(*, is_chat):
    """The chunks of an answer of the OpenAI API."""
    choice = {"delta": {"content": "x"}} if is_chat else {"text": "x"}
    usage = {"prompt_tokens": 5, "completion_tokens": NUM_TOKENS}
    return [*[{"choices": [choice]}] * NUM_TOKENS, {"choices": [], "usage": usage}, "[DONE]"]


def message():
    """The events of an answer of the Messages API."""
    part = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "x"}}
    end = {"type": "message_delta", "usage": {"output_tokens": NUM_TOKENS}}
    return [{"type": "message_start", "message": {}}, *[part] * NUM_TOKENS, end, {"type": "message_stop"}]
