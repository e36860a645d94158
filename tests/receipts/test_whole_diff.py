"""`core diff` as a command with two real engines: what it compares, and that it leaves no process."""

import json
from typing import Any

import psutil
import pytest

from core.commands.main import main
from tests.receipts import checking
from tests.receipts.test_adapters_and_media import recorded


@pytest.mark.slow
def test_two_real_engines_are_compared_in_answers_speed_and_memory(
    tiny_llama: Any, tmp_path: Any, monkeypatch: Any
) -> None:
    words = ["--model", str(tiny_llama), "--max-model-len", "512", "--kv-cache-memory-bytes", "64MiB"]
    folder = tmp_path / "records"
    requests: list[tuple[str, dict[str, Any]]] = [
        (checking.CHAT, {"messages": [{"role": "user", "content": "fox"}], "max_tokens": 20}),
        (checking.MESSAGES, {"messages": [{"role": "user", "content": "river"}], "max_tokens": 10}),
        (checking.TEXT, {"prompt": "the sun", "max_tokens": 12, "temperature": 1.0, "seed": 3}),
    ]

    async def work(engine: Any) -> None:
        await recorded(engine, folder, *requests)

    checking.run_on_engine(words, work)
    monkeypatch.chdir(tmp_path)
    sides = ["--left", " ".join(words), "--right", " ".join(words)]
    assert main(["diff", str(folder), *sides, "--speed-seconds", "2", "--json", "all.json", "--fail-on", "token"]) == 0
    told = json.loads((tmp_path / "all.json").read_text())
    assert (told["requests"], told["rows"]) == (3, [])
    speed = told["speed"]
    assert (speed["reason"], speed["failed"], speed["cached_prefixes"]) == ("", 0, False)
    for row in (speed["tokens_per_second"], speed["first_token_seconds"]):
        assert row["pairs"] >= 2 and row["low"] <= row["ratio"] <= row["high"]
        assert row["left"] > 0 and row["right"] > 0
    assert all(size > 50 << 20 for size in speed["peak_resident_bytes"].values())
    assert "tokens a second" in (tmp_path / "report.html").read_text()
    children = psutil.Process().children(recursive=True)
    assert not [child for child in children if "core_commands.several.member" in " ".join(child.cmdline())]
