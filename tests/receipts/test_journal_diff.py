"""`core diff` of a request journal: its requests are computed by both sides, since it keeps no whole answers."""

import json
import os
from typing import Any

import msgspec
import pytest

from core.api.errors import UserError
from core.api.sampling_params import SamplingParams
from core.commands.main import main
from core_apis.journal import browsing
from core_apis.journal.records import MARK, Accepted, Begun, FileHead, Frame, Kind, framed, frames
from core_apis.prepare.prepared import PreparedChat, PreparedCompletion, Prompt
from core_apis.protocol.chat import ChatRequest
from core_apis.protocol.completions import CompletionRequest
from core_commands.replay.computed import UNLIMITED
from core_commands.replay.journal import is_journal, read_requests
from core_commands.replay.servers import body_for


def accepted(entry: int, prepared: Any, tenant: bytes = b"") -> Frame:
    body = msgspec.msgpack.encode(prepared)
    record = Accepted("chat", f"a{entry}", tenant, 5, 5.0, "", "origin", body)
    return framed(entry, 0, Kind.ACCEPTED, msgspec.msgpack.encode(record))


def chat(prompts: list[Prompt], **fields: Any) -> PreparedChat:
    return PreparedChat(ChatRequest(messages=[]), "m", SamplingParams(**fields), prompts)


def write(folder: Any, *rows: Frame) -> str:
    head = framed(0, 0, Kind.FILE, msgspec.msgpack.encode(FileHead(b"s", 1)))
    folder.mkdir(exist_ok=True)
    (folder / "1.journal").write_bytes(b"".join(row.data for row in (head, *rows)))
    return str(folder)


def some(folder: Any) -> str:
    text = PreparedCompletion(
        CompletionRequest(), "m", SamplingParams(temperature=0.5, max_tokens=6, stop=["x"]), [Prompt("a", [7, 8])]
    )
    begun = framed(1, 1, Kind.BEGUN, msgspec.msgpack.encode(Begun(0, 77)))
    return write(
        folder,
        accepted(1, chat([Prompt("hi", [3, 4, 5])], max_tokens=None), b"\xab"),
        begun,
        accepted(2, text),
        accepted(3, chat([Prompt("pair", [3, 4, 5], second=2)])),
        framed(4, 0, Kind.ACCEPTED, b"\x91\x01"),
        accepted(5, {"params": {"temperature": -3.0}, "model": "m", "prompts": []}),
    )


def test_requests_of_a_journal_are_asked_as_they_were_sampled(tmp_path: Any) -> None:
    name = some(tmp_path / "j")
    assert is_journal(name)
    (tenant, first), (_, second), *others = read_requests(name)
    assert [one for _, one in others] == [None] * 3, "a pair of texts, another version, and parameters out of range"
    assert first is not None and second is not None and tenant == b"\xab"
    assert (first.body["prompt"], first.body["max_tokens"], first.seeds) == ([[3, 4, 5]], UNLIMITED, [77])
    wanted = {"prompt": [[7, 8]], "max_tokens": 6, "temperature": 0.5, "stop": ["x"]}
    assert wanted.items() <= second.body.items()
    first.answers = [[(0, [1, 2, 3], "stop")]]
    assert body_for(first, "n")["max_tokens"] == 3, "a server that runs is asked for as many as the left side answered"


def test_a_side_that_is_missing_is_named(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    name = some(tmp_path / "j")
    assert main(["diff", name, "--right", "--model x"]) == 2
    assert "--left and --right" in capsys.readouterr().err
    assert main(["diff", name, "--left", "--model x", "--url", "http://127.0.0.1:1"]) == 2
    assert "--right ARGUMENTS" in capsys.readouterr().err
    assert main(["diff", name, "--left", "--model x", "--right", "--model x", "--tenant", "cd"]) == 2
    assert "none of its records fits" in capsys.readouterr().err


def test_a_journal_that_somebody_else_made_costs_neither_memory_nor_time(tmp_path: Any, monkeypatch: Any) -> None:
    name = some(tmp_path / "j")
    whole = (tmp_path / "j" / "1.journal").read_bytes()
    # Damage in between, at every distance from the end of a piece that is read at once.
    monkeypatch.setattr(browsing, "PIECE", 64)
    data = whole + whole[:40] + b"xxx" + whole[40:] + MARK + b"\xff\xff\xff\x0f" + whole + whole[:-1]
    (tmp_path / "j" / "1.journal").write_bytes(data)
    assert [frame.data for frame in browsing.browse(name)] == [frame.data for frame in frames(data)]
    (tmp_path / "j" / "2.journal").write_bytes((MARK + (4000).to_bytes(4, "little") + b"\0" * 4) * 2000)
    monkeypatch.setattr(browsing, "MOST_WASTED", 0)
    with pytest.raises(UserError, match="too many damaged records"):
        list(browsing.browse(name))
    (tmp_path / "j" / "2.journal").unlink()
    os.mkfifo(tmp_path / "j" / "3.journal")
    with pytest.raises(UserError, match="no file"):
        list(browsing.browse(name))
    (tmp_path / "j" / "3.journal").unlink()
    monkeypatch.setattr(browsing, "MOST_KEPT", 10)
    with pytest.raises(UserError, match="copy some of its files"):
        list(read_requests(name))
    monkeypatch.setattr(browsing, "MOST_FILES", 0)
    with pytest.raises(UserError, match="at most 0 are read"):
        is_journal(name)


@pytest.mark.slow
def test_two_real_engines_compute_a_journal_anew(tiny_llama: Any, tmp_path: Any, monkeypatch: Any) -> None:
    words = f"--model {tiny_llama} --max-model-len 64 --kv-cache-memory-bytes 64MiB"
    name = some(tmp_path / "j")
    with (tmp_path / "j" / "1.journal").open("ab") as file:
        file.write(accepted(6, chat([Prompt("long", [3] * 500)])).data)
    monkeypatch.chdir(tmp_path)
    sides = ["--left", words, "--right", words, "--speed-seconds", "0"]
    assert main(["diff", name, *sides, "--json", "all.json", "--fail-on", "token"]) == 0
    told = json.loads((tmp_path / "all.json").read_text())
    [refused] = told["rows"]
    assert told["requests"] == 3 and refused["number"] == 6
    assert refused["problem"].startswith("Left: The engine refuses the request")
    assert told["tokens"] > 50, "the chat had no limit but the context"
