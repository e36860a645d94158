"""The KV connector `file`: engines that share a directory serve each other's pages, and nobody else's."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from core.api.errors import ConfigError
from core_kit.fixtures.kv_context import config_of, context_of
from core_kv_connectors.manifests import shm
from core_kv_connectors.tiers import shared_files
from core_kv_connectors.tiers.page_directory import page_name
from core_kv_connectors.tiers.shared_files import SharedFiles
from tests.kv.tier_fakes import OTHER_PRINT, PAGE_BYTES, PRINT, Engine, key, page

PROMPTS = [range(start, start + 29) for start in (0, 100, 200)]


@pytest.fixture
def open_files(tmp_path):
    """Opens connectors that are closed at the end, on the directory `shared` unless another is named."""
    opened = []

    def make(fingerprint=PRINT, directory=tmp_path / "shared", key_file=None, capacity=1 << 20):
        config = config_of(tmp_path)
        options = {"directory": str(directory), "capacity": capacity, "key_file": key_file and str(key_file)}
        opened.append(SharedFiles(config, lambda: fingerprint, PAGE_BYTES, **options))
        return opened[-1]

    yield make
    for files in opened:
        files.close()


@pytest.fixture
def new_key(tmp_path):
    """Writes a key file."""

    def make(name, text="k" * 40, mode=0o600):
        path = tmp_path / name
        path.write_text(text)
        path.chmod(mode)
        return path

    return make


def fill(files, engine=None):
    """Have an engine's prompts evict one another, until their pages are files."""
    engine = engine or Engine(files)
    for tokens in PROMPTS:
        engine.run(tokens)
    assert files.disk.flush()
    return engine


def hits(files):
    """Tokens of the first prompt that a new engine takes from pages."""
    return Engine(files).run(PROMPTS[0])


def pages_in(directory):
    return sorted(directory.glob("*/*.kv"))


def test_two_engines_share_pages(open_files):
    one, two = open_files(), open_files()
    fill(one)
    assert hits(two) == 28
    two.discard(0, key(1))
    assert one.disk.contains(0, key(1)) is False


def test_shared_memory_is_of_this_user_alone(monkeypatch, tmp_path):
    monkeypatch.setattr(shared_files, "SHARED_MEMORY", tmp_path)
    context = context_of(tmp_path, shm.Arguments())
    connector = shm.core_load(context)
    fill(connector)
    (place,) = tmp_path.glob("core-kv-*")
    assert place.name == f"core-kv-{os.geteuid()}"
    modes = {path.stat().st_mode & 0o777 for path in place.rglob("*.kv")}
    assert (place.stat().st_mode & 0o777, modes) == (0o700, {0o600})
    assert connector.places == ("shm", "shm"), "what a session's bytes by place are called"
    connector.close()
    place.chmod(0o777)
    with pytest.raises(ConfigError, match=r"--kv-connectors-config.shm.directory .*other users"):
        shm.core_load(context)
    monkeypatch.setattr(shared_files, "SHARED_MEMORY", tmp_path / "none")
    with pytest.raises(ConfigError, match=r"this system has no .*none; give --kv-connectors-config.shm.directory"):
        shm.core_load(context)


def test_pages_of_other_weights_are_not_used(open_files):
    fill(open_files())
    assert hits(open_files(OTHER_PRINT)) == 0


@pytest.mark.parametrize("fault", ["missing", "short", "damaged", "swapped", "linked"])
@pytest.mark.parametrize("keyed", [False, True])
def test_a_page_with_a_fault_is_computed(open_files, new_key, tmp_path, fault, keyed):
    key_file = new_key("key") if keyed else None
    fill(open_files(key_file=key_file))
    contents = {path: path.read_bytes() for path in pages_in(tmp_path / "shared")}
    previous = [*contents.values()][-1]
    for path, content in contents.items():
        path.unlink()
        if fault == "short":
            path.write_bytes(content[:-1])
        elif fault == "damaged":
            path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        elif fault == "swapped":
            path.write_bytes(previous)
        elif fault == "linked":
            real = tmp_path / f"real-{path.name}"
            real.write_bytes(content)
            path.symlink_to(real)
        previous = content
    reader = open_files(key_file=key_file)
    assert hits(reader) == 0
    fill(reader)
    found = hits(open_files(key_file=key_file))
    assert found == 0 if fault == "linked" else found > 0, "a faulty page is replaced once it was read, a link never"


def test_a_directory_that_others_can_write_needs_a_key_file(open_files, new_key, tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(ConfigError, match=r"--kv-connectors-config.file.directory .*can be written by other users"):
        open_files()
    fill(open_files(key_file=new_key("key")))
    assert hits(open_files(key_file=new_key("key"))) == 28
    (place,) = shared.iterdir()
    assert place.stat().st_mode & 0o777 == 0o777
    assert {path.stat().st_mode & 0o777 for path in pages_in(shared)} == {0o666}, "others may read what they share"


def test_engines_with_another_key_leave_pages_alone(open_files, new_key, tmp_path):
    fill(open_files(key_file=new_key("key")))
    before = pages_in(tmp_path / "shared")
    for key_file in (new_key("other", "o" * 40), None):
        assert hits(open_files(key_file=key_file)) == 0
    assert set(before) <= set(pages_in(tmp_path / "shared"))
    assert hits(open_files(key_file=new_key("key"))) == 28


def test_a_page_written_without_the_secret_is_refused(open_files, new_key, tmp_path, caplog):
    """Somebody who may write there puts well-formed pages with checksums of their own under the right names."""
    forger = open_files()
    keyed = open_files(key_file=new_key("key"))
    forger.disk.fingerprint = keyed.disk.fingerprint
    forger.disk.writer._fingerprint = keyed.disk.fingerprint
    forger.disk.write(0, key(1), page(7))
    assert forger.disk.flush()
    forged = forger.disk.directory / page_name(0, key(1))
    os.replace(forged, keyed.disk.directory / page_name(0, key(1)))
    assert keyed.disk.read(0, key(1)) is None
    assert "checksum is wrong" in caplog.text


@pytest.mark.parametrize(
    ("text", "mode", "sentence"),
    [("k" * 40, 0o644, "chmod 600"), ("short", 0o600, "has 5 bytes; expected 32 to 4096"), (None, 0, "cannot be read")],
)
def test_key_files_are_checked(open_files, new_key, tmp_path, text, mode, sentence):
    path = tmp_path / "absent" if text is None else new_key("key", text, mode)
    with pytest.raises(ConfigError, match=f"--kv-connectors-config.file.key_file .*{sentence}"):
        open_files(key_file=path)


def test_a_full_disk_costs_hits_alone(open_files, monkeypatch):
    files = open_files()
    write = os.write

    def full(descriptor, data):
        if len(data) >= PAGE_BYTES:
            raise OSError(28, "No space left on device")
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", full)
    engine = Engine(files)
    for tokens in (*PROMPTS, *PROMPTS):
        engine.run(tokens)
    files.check_integrity()


def test_the_size_is_a_bound_on_all_engines_pages(open_files, tmp_path):
    first, second = open_files(capacity=4000), open_files(OTHER_PRINT, capacity=4000)
    for number in range(40):
        for files in (first, second):
            files.disk.write(0, key(number), page(number))
            assert files.disk.flush()
    assert sum(path.stat().st_size for path in pages_in(tmp_path / "shared")) <= 4000 + 300


WRITER = """
import sys
from pathlib import Path
from core_kit.fixtures.kv_context import config_of
from core_kv_connectors.tiers.shared_files import SharedFiles
from tests.kv.tier_fakes import PAGE_BYTES, PRINT, key, page
root = Path(sys.argv[1])
files = SharedFiles(config_of(root), lambda: PRINT, PAGE_BYTES, directory=str(root / "shared"), capacity=1 << 30, key_file=None)
number = 0
while True:
    files.disk.write(0, key(number), page(number))
    number += 1
    if number == 50:
        files.disk.flush()
        print("written", flush=True)
"""


def test_a_killed_writer_leaves_whole_pages(open_files, tmp_path):
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE)
    assert writer.stdout.readline() == b"written\n"
    time.sleep(0.05)
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    files = open_files()
    for number in range(50):
        np.testing.assert_array_equal(files.disk.read(0, key(number)), page(number))
    damaged = [n for n in range(50, 5000) if files.disk.contains(0, key(n)) and files.disk.read(0, key(n)) is None]
    assert damaged == []
