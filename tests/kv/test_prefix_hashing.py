"""Block keys against hashlib itself, and the table's refusal to believe a hash alone."""

import hashlib
import struct

import pytest

from core.api.errors import ConfigError
from core.kv.hashing import PrefixHasher, PrefixKey, PrefixTable


def test_digest_is_sha256_over_parent_and_tokens():
    hasher = PrefixHasher()
    root = hasher.root(None)
    first = hasher.key(root, [1, 2, 3])
    second = hasher.key(first.digest, [70000, 5, 6])
    assert first.digest == hashlib.sha256(root + struct.pack("=3I", 1, 2, 3)).digest()
    assert second.digest == hashlib.sha256(first.digest + struct.pack("=3I", 70000, 5, 6)).digest()


def test_salts_separate_equal_prefixes():
    hasher = PrefixHasher()
    roots = {hasher.root(salt) for salt in (None, "", "a", "b", "unsalted")}
    assert len(roots) == 5


def test_an_unknown_algorithm_is_named_with_the_nearest():
    with pytest.raises(ConfigError, match=r"'sha257'.*Did you mean 'sha256'"):
        PrefixHasher("sha257")


def test_a_hash_collision_is_no_hit():
    table = PrefixTable()
    assert table.insert(PrefixKey(b"same", b"tokens"), 3)
    assert table.find(PrefixKey(b"same", b"tokens")) == 3
    assert table.find(PrefixKey(b"same", b"others")) is None
    assert not table.insert(PrefixKey(b"same", b"others"), 4)
    table.check_integrity()


def test_discard_forgets_both_directions():
    table = PrefixTable()
    table.insert(PrefixKey(b"a", b"x"), 1)
    table.discard(1)
    assert table.find(PrefixKey(b"a", b"x")) is None
    assert 1 not in table
    assert table.insert(PrefixKey(b"a", b"x"), 2)
