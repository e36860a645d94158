"""S9's figures: what counts as cached, as late, and as measured last."""

from __future__ import annotations

import http.server
import json
import threading
from pathlib import Path
from typing import Any

from benchmarks.agents.client import ask
from benchmarks.agents.report import above, write


def turn(prompt: int, known: int, cached: int, ttft: float, prefill: float) -> dict[str, float]:
    return {"prompt": prompt, "known": known, "cached": cached, "ttft": ttft, "prefill": prefill, "s": 2 * ttft}


def line(engine: str, figures: dict[str, float], run: str = "1", row: str = "one") -> dict[str, Any]:
    of_run = {"run": run, "commit": "abc", "model": "gdn", "engine": engine, "read GB/s": 40.0, "waiting": 0.1}
    return of_run | {"scenario": "one", "row": row, "figures": figures}


def test_prefill_of_known_tokens_counts_as_late() -> None:
    assert above(turn(200, 100, 100, 1.5, 1.0)) == 500.0
    late = above(turn(200, 100, 0, 2.0, 2.0))
    assert late == 1000.0


def test_the_page_has_shares_ratios_and_reasons(tmp_path: Path) -> None:
    page = tmp_path / "agents.md"
    page.write_text("# Agents\n\nRules.\n\n## Measured\n\nolder tables\n")
    lines = [
        line("core", turn(50, 0, 0, 9.0, 9.0), run="0"),
        line("core", turn(1000, 0, 0, 1.0, 1.0)),
        line("core", turn(2000, 1000, 992, 1.0, 1.0)),
        line("core", turn(2000, 1000, 992, 1.0, 1.0), row="fork"),
        line("llama.cpp", turn(1000, 0, 0, 4.0, 4.0)),
        {key: value for key, value in line("vllm", {}).items() if key != "figures"} | {"error": "it does not start"},
    ]
    write(lines, page)
    text = page.read_text()
    assert text.startswith("# Agents\n\nRules.\n\n## Measured\n")
    assert "older tables" not in text and "9.00" not in text
    assert "| Qwen3.5 0.8B | core | 2 | 99.20% | 8 |" in text
    assert "0.25 x" in text
    assert "- Qwen3.5 0.8B, vllm, one: it does not start" in text


class Answers(http.server.BaseHTTPRequestHandler):
    """Answers in the form of the path."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/completion":
            timings = {"cache_n": 3, "prompt_ms": 5.0}
            events: list[Any] = [{"tokens": [7]}, {"tokens": [8], "timings": timings}]
        else:
            usage = {"prompt_tokens_details": {"cached_tokens": 2}}
            events = [{"choices": [{"token_ids": [7]}]}, {"choices": [], "usage": usage}]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events))
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


def test_both_forms_of_answers_are_read() -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        native = ask(server.server_port, True, [1, 2, 3, 4], 3, 2)
        ours = ask(server.server_port, False, [1, 2, 3, 4], 3, 2)
        server.shutdown()
    assert (native.ids, native.cached, native.prefill) == ([7, 8], 3, 0.005)
    assert (ours.ids, ours.cached, ours.prefill) == ([7], 2, None)
