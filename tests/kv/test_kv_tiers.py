"""Tiers: evicted blocks come back with their own bytes, and nothing else ever does."""

import os
import subprocess
import sys

import msgspec
import numpy as np
import pytest

from core.api.config import ModelConfig, ResolvedPlugin
from core.api.errors import ConfigError
from core.api.specs import KVGroup
from core.kv.connectors import KVConnectors
from core.kv.fingerprint import fingerprint
from core.kv.integrity import IntegrityError
from core.kv.sequence import KVSequence
from core_kv_connectors.tiers.host import HostTier
from core_kv_connectors.tiers.page_file import PageError, page_parts, read_page
from core_kv_connectors.tiers.tiers import KVTiers
from tests.kv.connector_rows import tiers_of
from tests.kv.tier_fakes import FIRST, OTHER, OTHER_PRINT, PAGE_BYTES, PRINT, Engine, config_of, disk_of, key, page


@pytest.fixture(params=["host", "disk", "both"])
def tiers(request, tmp_path):
    host = HostTier(1 << 20) if request.param != "disk" else None
    disk = disk_of(tmp_path) if request.param != "host" else None
    made = KVTiers(host, disk)
    yield made
    made.close()


def test_evicted_blocks_come_back_with_their_bytes(tiers):
    engine = Engine(tiers, num_blocks=10)
    assert engine.run(FIRST) == 0
    assert engine.run(OTHER) == 0, "evicts the first"
    assert engine.run(FIRST) == 32
    assert engine.kv.num_external_tokens == 32 and engine.kv.connectors.copies.num_loaded == 8
    assert engine.run([*FIRST, 7]) == 32
    assert engine.kv.num_external_tokens == 32, "now they are in the pool again"


def test_groups_come_back_each_with_its_own(tiers):
    groups = (KVGroup("full", (0,)), KVGroup("sliding", (1,), window=8))
    engine = Engine(tiers, num_blocks=19, groups=groups)
    engine.run(FIRST)
    engine.run(OTHER)
    assert engine.run(FIRST) == 32
    assert engine.kv.connectors.copies.num_loaded == 8 + 2, "of the sliding group only the window"


def test_what_could_not_be_copied_is_forgotten(tiers):
    engine = Engine(tiers, num_blocks=10)
    engine.run(FIRST)
    engine.run(OTHER)
    assert engine.run(FIRST, fails=True) == 32
    assert engine.run(OTHER) == 0, "its blocks were to be saved in the step that failed"
    assert engine.run(FIRST) == 32, "the tier still has them"


def test_a_block_that_was_not_filled_is_not_a_hit(tiers):
    engine = Engine(tiers, num_blocks=10)
    engine.run(FIRST)
    engine.run(OTHER)
    engine.run(FIRST, fails=True)
    engine.device.blocks[:] = 255
    num_loaded = engine.kv.connectors.copies.num_loaded
    assert engine.run(FIRST) == 32, "loaded again, with the right bytes"
    assert engine.kv.connectors.copies.num_loaded == num_loaded + 8


def test_wrong_values_are_not_saved():
    connectors = KVConnectors([KVTiers(HostTier(1000))])
    connectors.removed(3, 0, key(1), valid=False)
    assert connectors.copies.take() is None
    connectors.removed(3, 0, key(1), valid=True)
    assert connectors.copies.take().saves == [3]


def test_reset_forgets_tiers_too(tiers):
    engine = Engine(tiers, num_blocks=10)
    engine.run(FIRST)
    engine.run(OTHER)
    assert engine.kv.reset()
    assert engine.run(FIRST) == engine.run(OTHER) == 0


def test_the_host_tier_drops_what_was_not_used_for_longest():
    tier = HostTier(3 * PAGE_BYTES)
    for number in range(3):
        tier.write(0, key(number), page(number))
    assert tier.read(0, key(0)) is not None
    tier.write(0, key(3), page(3))
    assert [tier.contains(0, key(number)) for number in range(4)] == [True, False, True, True]
    tier.write(0, key(4), page(4, 4 * PAGE_BYTES))
    assert len(tier) == 3 and tier.num_bytes == 3 * PAGE_BYTES
    tier.check_integrity()


def test_broken_invariants_of_tiers_are_named():
    tier = HostTier(300)
    tier.write(0, key(1), page(1))
    tier.num_bytes = 7
    tiers = KVConnectors([KVTiers(tier)])
    with pytest.raises(IntegrityError, match="host_tier: 7 bytes are counted, 100 are held"):
        tiers.check_integrity(10)
    tier.num_bytes, tier.capacity = 100, 50
    with pytest.raises(IntegrityError, match="host_tier: 100 bytes are held, 50 may be"):
        tiers.check_integrity(10)
    tier.capacity = 300
    tiers.removed(12, 0, key(2), valid=True)
    with pytest.raises(IntegrityError, match="block_copies: a copy names no block"):
        tiers.check_integrity(10)
    tiers.copies.take()
    tiers.copies.load(3, page(1))
    tiers.copies.load(3, page(2))
    with pytest.raises(IntegrityError, match="block_copies: a block is to be filled twice"):
        tiers.check_integrity(10)


def test_disk_pages_survive_a_restart_but_not_another_model(tmp_path):
    disk = disk_of(tmp_path)
    disk.write(0, key(1), page(1))
    disk.close()
    again, other = disk_of(tmp_path), disk_of(tmp_path, OTHER_PRINT)
    assert (again.read(0, key(1)) == page(1)).all()
    assert again.read(1, key(1)) is None and not other.contains(0, key(1))
    again.close()
    other.close()


def damage_tail(data):
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (damage_tail, "checksum"),
        (lambda data: data[:-5], "95 bytes of values, expected 100"),
        (lambda data: data[:3], "no header"),
        (lambda data: b"", "no header"),
        (lambda data: b"\x00" * len(data), "no header"),
        (lambda data: data[:4] + b"\xff" * 50 + data[54:], "header cannot be read"),
        (lambda data: data[:6] + b"\xff" + data[7:], "header cannot be read"),  # text that is no UTF-8
        (lambda data: data.replace(b"core-kv-1", b"core-kv-9"), "format is 'core-kv-9'"),
        (lambda data: data.replace(PRINT.encode(), OTHER_PRINT.encode()), "another model"),
        (lambda data: data.replace(key(1).payload, key(2).payload), "other tokens"),
    ],
)
def test_damaged_files_are_ignored_and_deleted(tmp_path, caplog, harm, why):
    disk = disk_of(tmp_path)
    disk.write(0, key(1), page(1))
    assert disk.flush()
    (path,) = disk.directory.glob("*.kv")
    path.write_bytes(harm(path.read_bytes()))
    with caplog.at_level("WARNING", "core"):
        assert disk.read(0, key(1)) is None
    assert why in caplog.text
    assert not path.exists() and not disk.contains(0, key(1))
    disk.write(0, key(1), page(1))
    disk.close()
    assert disk.read(0, key(1)) is not None, "written anew"


def test_a_damaged_block_shortens_the_hit(tmp_path):
    tiers = KVTiers(None, disk_of(tmp_path))
    engine = Engine(tiers, num_blocks=10)
    engine.run(FIRST)
    engine.run(OTHER)
    assert tiers.disk.flush()
    name = f"{engine.kv.key(KVSequence(list(FIRST)), 5).digest.hex()}-0.kv"
    path = tiers.disk.directory / name
    path.write_bytes(damage_tail(path.read_bytes()))
    assert engine.run(FIRST) == 20
    tiers.close()


def test_the_directory_stays_within_its_size_and_loses_the_oldest(tmp_path):
    disk = disk_of(tmp_path, capacity=4000)
    for number in range(10):
        disk.write(0, key(number), page(number))
        assert disk.flush()
        (path,) = disk.directory.glob(f"{key(number).digest.hex()}*")
        os.utime(path, (1000 + number, 1000 + number))
    disk.write(0, key(0), page(0))
    assert disk.read(0, key(0)) is not None, "used last"
    for number in range(10, 40):
        disk.write(0, key(number), page(number))
        assert disk.flush()
        total = sum(path.stat().st_size for path in tmp_path.rglob("*.kv"))
        assert total <= 4000
    assert disk.contains(0, key(39)) and not disk.contains(0, key(1))
    disk.close()


def test_other_fingerprints_count_and_crash_leftovers_go(tmp_path):
    old = disk_of(tmp_path, OTHER_PRINT)
    for number in range(10):
        old.write(0, key(number), page(number))
    old.close()
    leftover = tmp_path / OTHER_PRINT / f".{'0' * 32}.tmp"
    leftover.write_bytes(b"half")
    os.utime(leftover, (0, 0))
    disk = disk_of(tmp_path, capacity=1000)
    disk.write(0, key(1), page(1))
    disk.close()
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.kv")) <= 1000
    assert not leftover.exists()


def test_a_writer_that_is_killed_leaves_no_page_that_is_believed(tmp_path):
    """A process writes pages as fast as it can and is killed in the middle; whatever is there must be whole."""
    script = (
        "import sys, numpy as np\n"
        "from core_kv_connectors.tiers.disk import DiskTier\n"
        "from core.kv.hashing import PrefixHasher\n"
        "disk, hasher = DiskTier(sys.argv[1], '0a' * 16, 1 << 30, 1 << 20), PrefixHasher()\n"
        "for number in range(200):\n"
        "    disk.write(0, hasher.key(b'root', [number]), np.full(1 << 20, number % 251, np.uint8))\n"
        "    print(number, flush=True)\n"
        "    disk.flush()\n"
    )
    process = subprocess.Popen([sys.executable, "-P", "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        if int(line) == 20:
            process.kill()
            break
    process.wait()
    process.stdout.close()
    disk = disk_of(tmp_path, capacity=1 << 30, page_bytes=1 << 20)
    whole = 0
    for number in range(200):
        values = disk.read(0, key(number))
        if values is not None:
            whole += 1
            assert (values == number % 251).all()
    disk.close()
    assert whole >= 19


def test_processes_share_a_directory(tmp_path):
    first, second = disk_of(tmp_path), disk_of(tmp_path)
    for number in range(20):
        (first if number % 2 else second).write(0, key(number), page(number))
        first.write(0, key(1000), page(5))
        second.write(0, key(1000), page(5))
    assert first.flush() and second.flush()
    assert all((first.read(0, key(number)) == page(number)).all() for number in range(20))
    assert (second.read(0, key(1000)) == page(5)).all()
    first.clear()
    assert second.read(0, key(3)) is None
    first.close()
    second.close()


def test_a_slow_disk_drops_pages_instead_of_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("core_kv_connectors.tiers.page_queue.MAX_PENDING_BYTES", 250)
    disk = disk_of(tmp_path)
    with disk.writer._changed:
        for number in range(5):
            disk.write(0, key(number), page(number))
    assert disk.num_dropped == 3
    disk.close()


def test_pages_are_private_to_the_user(tmp_path):
    disk = disk_of(tmp_path / "cache")
    disk.write(0, key(1), page(1))
    disk.close()
    assert disk.directory.stat().st_mode & 0o077 == 0
    (path,) = disk.directory.glob("*.kv")
    assert path.stat().st_mode & 0o077 == 0


def test_a_directory_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--kv-offloading-disk-path .*file.* cannot be made"):
        disk_of(tmp_path / "file")


def test_a_page_file_holds_any_bytes(tmp_path):
    values = np.frombuffer(os.urandom(70000), np.uint8)
    path = tmp_path / "x.kv"
    path.write_bytes(b"".join(page_parts(PRINT, 3, key(9), values)))
    with path.open("rb") as file:
        assert (read_page(file, PRINT, 3, key(9), 70000) == values).all()
        file.seek(0)
        with pytest.raises(PageError, match="other tokens"):
            read_page(file, PRINT, 2, key(9), 70000)


def test_the_fingerprint_changes_with_everything_that_values_depend_on(tmp_path):
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"w" * 100_000)
    base = config_of(tmp_path)
    prints = [
        fingerprint(base, "numerics"),
        fingerprint(base, "other numerics"),
        fingerprint(config_of(tmp_path, block_size=32), "numerics"),
        fingerprint(config_of(tmp_path, dtype="float32"), "numerics"),
        fingerprint(config_of(tmp_path, groups=(KVGroup("full", (0,)),)), "numerics"),
        fingerprint(msgspec.structs.replace(base, model=ModelConfig(model=str(tmp_path), served_names=("m",),
                                                                    hf_config={"rope_theta": 5})), "numerics"),
    ]  # fmt: skip
    times = weights.stat()
    weights.write_bytes(b"v" + b"w" * 99_999)
    os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))
    prints.append(fingerprint(base, "numerics"))
    assert len(set(prints)) == len(prints)
    assert fingerprint(config_of(tmp_path, host_bytes=5, num_blocks=7), "numerics") == prints[-1]
    assert fingerprint(config_of("hub/name"), "n") != fingerprint(config_of("hub/other"), "n")


def test_the_fingerprint_is_the_same_whatever_moves_blocks(tmp_path):
    """Pages are found again after a restart with `--keep-kv`, another connector, or another policy."""
    rows = [ResolvedPlugin(kind=kind, name=kind, target="m:o") for kind in ("kernels", "kv_connector", "policy")]
    base = config_of(tmp_path)

    def of(*table, arguments):
        choices = msgspec.structs.replace(base.plugins, table=table, arguments=arguments)
        return fingerprint(msgspec.structs.replace(base, plugins=choices), "n")

    plain = of(rows[0], arguments={"kernels.a": {"b": 1}})
    assert of(*rows, arguments={"kernels.a": {"b": 1}, "kv_connector.file": {"directory": "d"}}) == plain
    assert of(*rows, arguments={"kernels.a": {"b": 2}}) != plain
    assert of(*rows[1:], arguments={"kernels.a": {"b": 1}}) != plain


def test_without_prefix_caching_nothing_is_opened(tmp_path):
    path = tmp_path / "cache"
    config = config_of("m", enable_prefix_caching=False, disk_path=str(path), disk_bytes=1, host_bytes=1)
    tiers = tiers_of(KVConnectors.open(config, "n", PAGE_BYTES))
    assert tiers.host is None and tiers.disk is None
    assert not path.exists()
