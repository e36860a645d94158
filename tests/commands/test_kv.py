"""`core kv`: what a log computes again, and the pages on disk."""

import json
import re
import socket

import numpy as np
import pytest

from core.api.kv_transfer import PrefixKey
from core.commands.main import main
from core_kit.fixtures.kv_context import config_of
from core_kv_connectors.handoff.connector import Handoff
from core_kv_connectors.handoff.roles import Roles
from core_kv_connectors.peers import trial
from core_kv_connectors.tiers.page_directory import PageDirectory, page_name
from core_kv_connectors.tiers.page_file import page_parts
from core_kv_connectors.tiers.shared_files import read_key
from tests.apis.serving_processes import free_port

SYSTEM = {"role": "system", "content": "Be kind and brief in all that you say to people."}
USER = {"role": "user", "content": "Hello there, how are you?"}
TURN = [{"role": "assistant", "content": "Fine."}, {"role": "user", "content": "Good."}]
FINGERPRINT = "0123456789abcdef" * 2


def log(tmp_path, *bodies):
    """A log of chats."""
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in bodies))
    return str(path)


def test_an_audit_shows_what_is_computed_again_and_why(tmp_path, capsys):
    other = {**SYSTEM, "content": SYSTEM["content"].replace("kind", "rude")}
    name = log(tmp_path, [SYSTEM, USER], [SYSTEM, USER, *TURN], [other, USER, *TURN, *TURN])
    assert main(["kv", "audit", name, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    first, second, third = told["turns"]
    assert (first["cause"], second["cause"], third["cause"]) == ("first_seen", "extends", "history_changed")
    assert second["common"] == first["tokens"] and second["again"] == 0
    assert third["common"] + third["again"] == second["tokens"] and told["again"] == third["again"] > 0
    assert (third["change"]["message"], third["change"]["character"]) == (0, 3)


def test_the_exit_status_of_an_audit(tmp_path, capsys):
    other = {**SYSTEM, "content": "Be rude."}
    good = log(tmp_path, [SYSTEM, USER], [SYSTEM, USER, *TURN])
    assert main(["kv", "audit", good, "--most", "0"]) == 0
    bad = log(tmp_path, [SYSTEM, USER], [other, USER, *TURN])
    assert main(["kv", "audit", bad, "--most", "0"]) == 1
    assert main(["kv", "audit", bad]) == 0
    assert "history_changed  message 0 (system) content at 3" in capsys.readouterr().out


def test_an_audit_that_cannot_tell_is_no_success(tmp_path, capsys):
    refused = log(tmp_path, [SYSTEM, USER], [])
    assert main(["kv", "audit", refused]) == 0
    assert "2 turns, 1 of them refused, " in capsys.readouterr().out
    assert main(["kv", "audit", refused, "--most", "0"]) == 1
    assert main(["kv", "audit", log(tmp_path), "--most", "0"]) == 2
    assert "there is no chat in it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "this is no JSON"),
        ('{"prompt": "a"}', "expected the body of a chat"),
        ("[1]", "expected the body of a chat"),
    ],
)
def test_a_line_that_is_no_chat(tmp_path, capsys, line, words):
    path = tmp_path / "log.jsonl"
    path.write_text(line + "\n")
    assert main(["kv", "audit", str(path)]) == 2
    assert "line 1: " in (said := capsys.readouterr().err) and words in said


def pages(root, count, secret=b""):
    """A directory with pages, and their names. secret: for a MAC of each."""
    directory = PageDirectory(root, FINGERPRINT)
    names = []
    for number in range(count):
        key = PrefixKey(bytes([number]) * 16, b"payload")
        parts = page_parts(FINGERPRINT, 0, key, np.full(4096, number, np.uint8), secret)
        with directory.temporary(parts) as made:
            directory.publish(made, page_name(0, key))
        names.append(page_name(0, key))
    return names


def test_pages_are_listed_verified_and_deleted(tmp_path, capsys):
    root = tmp_path / "kv"
    names = pages(root, 3)
    assert main(["kv", "list", str(root)]) == 0
    assert re.search(rf"{FINGERPRINT}  3 ", capsys.readouterr().out)
    assert main(["kv", "verify", str(root)]) == 0
    assert "3 pages, 0 damaged" in capsys.readouterr().out
    path = root / FINGERPRINT / names[1]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    (root / FINGERPRINT / names[2]).write_bytes(b"short")
    assert main(["kv", "verify", str(root)]) == 1
    out = capsys.readouterr().out
    assert f"{names[1]}: its checksum is wrong" in out and f"{names[2]}: it has no header" in out
    foreign = root / "notes.txt"
    foreign.write_text("mine")
    assert main(["kv", "clear", str(root)]) == 0
    assert "3 pages deleted" in capsys.readouterr().out
    assert foreign.exists() and not list((root / FINGERPRINT).glob("*.kv"))


def test_pages_with_a_mac_need_the_key_file(tmp_path, capsys):
    root, key_file = tmp_path / "kv", tmp_path / "key"
    key_file.write_text("a" * 64)
    key_file.chmod(0o600)
    names = pages(root, 3, read_key(str(key_file)))
    root.chmod(0o777)
    with_key = [str(root), "--key-file", str(key_file)]
    assert main(["kv", "verify", str(root)]) == 2
    assert "can be written by other users" in capsys.readouterr().err
    assert main(["kv", "list", *with_key]) == 0
    assert re.search(rf"{FINGERPRINT}  3 ", capsys.readouterr().out)
    assert main(["kv", "verify", *with_key]) == 0
    path = root / FINGERPRINT / names[1]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert main(["kv", "verify", *with_key]) == 1
    assert f"{names[1]}: its MAC is wrong" in capsys.readouterr().out
    root.chmod(0o700)
    assert main(["kv", "verify", str(root)]) == 1
    assert f"{names[0]}: it carries a MAC; name the secret with --key-file" in capsys.readouterr().out
    key_file.chmod(0o644)
    assert main(["kv", "clear", *with_key]) == 2
    assert "chmod 600" in capsys.readouterr().err
    key_file.chmod(0o600)
    assert main(["kv", "clear", *with_key]) == 0
    assert "3 pages deleted" in capsys.readouterr().out


def test_a_directory_that_others_may_write_is_refused(tmp_path, capsys):
    root = tmp_path / "kv"
    pages(root, 1)
    root.chmod(0o777)
    assert main(["kv", "clear", str(root)]) == 2
    assert "can be written by other users" in capsys.readouterr().err
    assert main(["kv", "list", str(tmp_path / "none")]) == 2


@pytest.fixture
def engine(tmp_path):
    """Opens engines that lease pages; returns the address of each."""
    opened = []

    def make(fingerprint=FINGERPRINT, page_bytes=4096):
        roles = Roles.read("kv_producer", f"127.0.0.1:{free_port()}", (), lease_s=30.0, engine_id="P", has_key=False)
        options = {"roles": roles, "secret": b"", "capacity": 1 << 20, "buffer": 1 << 20}
        opened.append(Handoff(config_of(tmp_path), lambda: fingerprint, page_bytes, **options))
        return "{}:{}".format(*roles.listen)

    yield make
    for one in opened:
        one.close(0.0)


def test_a_check_of_two_engines_that_agree(engine, capsys):
    one, other = engine(), engine()
    assert main(["kv", "check", one, other]) == 0
    told = capsys.readouterr().out
    assert one in told and other in told and "They agree" in told
    assert main(["kv", "check", one, other, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [found["page_bytes"] for found in result["engines"]] == [4096, 4096]
    assert all(found["bandwidth"] > 0 and found["latency_s"] > 0 for found in result["engines"])


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        ({"fingerprint": "f" * 32}, "has the fingerprint"),
        ({"page_bytes": 8192}, "pages of 4096 bytes"),
        (None, "cannot be reached: Connection refused; give kv_ip and kv_port"),
    ],
)
def test_a_check_says_what_is_wrong(engine, capsys, other, sentence):
    second = f"127.0.0.1:{free_port()}" if other is None else engine(**other)
    assert main(["kv", "check", engine(), second]) == 1
    assert sentence in capsys.readouterr().out


def test_a_check_of_a_port_that_is_no_engines(engine, capsys, monkeypatch):
    monkeypatch.setattr(trial, "LIMIT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        other = f"127.0.0.1:{silent.getsockname()[1]}"
        assert main(["kv", "check", engine(), other]) == 1
    assert f"{other}: it took the connection and said nothing" in capsys.readouterr().out


def test_a_check_names_the_key_file_as_it_was_given(tmp_path, capsys):
    key = tmp_path / "key"
    key.write_text("short")
    key.chmod(0o600)
    assert main(["kv", "check", "127.0.0.1:1", "127.0.0.1:2", "--key-file", str(key)]) == 2
    assert f"core: --key-file {key}: has 5 bytes; expected 32" in capsys.readouterr().err


def test_a_check_needs_two_addresses(capsys):
    assert main(["kv", "check", "127.0.0.1:1"]) == 2
    assert main(["kv", "check", "127.0.0.1:1", "here"]) == 2
    assert "here: expected HOST:PORT" in capsys.readouterr().err
    assert main(["kv", "check", "127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"]) == 2
    assert (
        "core kv check 127.0.0.1:3: unexpected; expected: core kv check HOST:PORT HOST:PORT" in capsys.readouterr().err
    )
