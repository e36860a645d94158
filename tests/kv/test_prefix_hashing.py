"""Block keys against hashlib itself, and the table's refusal to believe a hash alone."""

import hashlib
import struct

import cbor2
import pytest
import xxhash

from core.api.errors import ConfigError
from core.kv.block_keys import AHEAD, BlockKeys
from core.kv.hashing import HASH_ALGORITHMS, KeyExtras, MediaSpan, PrefixHasher, PrefixKey
from core.kv.manager import KVManager
from core.kv.prefix_table import PrefixTable
from core.kv.sequence import KVSequence
from core_observers.engine.pinned_prefix import beginning


def test_digest_is_sha256_over_parent_and_tokens():
    hasher = PrefixHasher()
    root = hasher.root(None)
    first = hasher.key(root, [1, 2, 3])
    second = hasher.key(first.digest, [70000, 5, 6])
    assert first.digest == hashlib.sha256(root + struct.pack("=3I", 1, 2, 3)).digest()
    assert second.digest == hashlib.sha256(first.digest + struct.pack("=3I", 70000, 5, 6)).digest()


@pytest.mark.parametrize(
    ("algorithm", "digest"),
    [("sha256_cbor", lambda data: hashlib.sha256(data).digest()), ("xxhash_cbor", xxhash.xxh3_128_digest)],
)
def test_cbor_forms_hash_what_any_cbor_library_writes(algorithm, digest):
    hasher = PrefixHasher(algorithm)
    root = hasher.root(None)
    assert hasher.key(root, [1, 70000]).digest == digest(cbor2.dumps([root, [1, 70000], None], canonical=True))
    with_extra = hasher.key(root, [1, 70000], ["lora:a"]).digest
    assert with_extra == digest(cbor2.dumps([root, [1, 70000], ["lora:a"]], canonical=True))


def test_xxhash_is_xxh3_128_over_parent_and_tokens():
    hasher = PrefixHasher("xxhash")
    root = hasher.root("salt")
    assert hasher.key(root, [1, 2]).digest == xxhash.xxh3_128_digest(root + struct.pack("=2I", 1, 2))


def test_cbor_bytes_are_those_of_the_standard():
    """RFC 8949: an array of three, a byte string of one, an array with 1 and 70000, null."""
    expected = bytes.fromhex("8341aa82011a00011170f6")
    assert PrefixHasher("sha256_cbor").key(b"\xaa", [1, 70000]).digest == hashlib.sha256(expected).digest()


@pytest.mark.parametrize("algorithm", HASH_ALGORITHMS)
def test_every_algorithm_finds_a_prefix_and_keeps_adapters_and_media_apart(algorithm):
    kv = KVManager(30, 4, hash_algorithm=algorithm)

    def sequence(**extra):
        return KVSequence(list(range(13)), extras=KeyExtras(**extra) if extra else None)

    image = MediaSpan(5, 7, "cat")
    first = sequence(media=(image,))
    kv.attach(first, kv.lookup(first))
    kv.allocate_slots(first, 13)
    first.num_computed_tokens = 13
    kv.free(first)
    assert kv.lookup(sequence(media=(image,))).num_tokens == 12
    assert kv.lookup(sequence(media=(MediaSpan(5, 7, "dog"),))).num_tokens == 4, "the image is in the second block"
    assert kv.lookup(sequence()).num_tokens == 4
    assert kv.lookup(sequence(adapter="pirate", media=(image,))).num_tokens == 0


def test_an_adapter_counts_from_its_first_position_on():
    """An activated adapter shares the base model's prefix in front of its invocation, in both directions."""
    kv = KVManager(40, 4)
    tokens = list(range(17))

    def ask(**extra):
        sequence = KVSequence(list(tokens), extras=KeyExtras(**extra) if extra else None)
        hit = kv.lookup(sequence)
        kv.attach(sequence, hit)
        kv.allocate_slots(sequence, len(tokens) - hit.num_tokens)
        sequence.num_computed_tokens = len(tokens)
        kv.free(sequence)
        return hit.num_tokens

    assert ask() == 0
    assert ask(adapter="one", adapter_from=9) == 8, "two blocks lie before it"
    assert ask(adapter="one", adapter_from=9) == 16
    assert ask(adapter="one", adapter_from=10) == 8, "it begins elsewhere in the same block"
    assert ask(adapter="two", adapter_from=9) == 8
    assert ask(adapter="one") == 0
    assert ask() == 16


@pytest.mark.parametrize("algorithm", HASH_ALGORITHMS)
def test_equal_digests_of_different_adapters_are_no_hit(algorithm):
    """The payload is compared besides the digest, since digests of xxhash can be constructed."""
    hasher = PrefixHasher(algorithm)
    keys = [hasher.key(b"", [1, 2], KeyExtras(adapter=name).of_block(0, 2)) for name in ("", "one", "two")]
    assert len({key.payload for key in keys}) == 3
    table = PrefixTable()
    assert table.insert(PrefixKey(b"same", keys[1].payload), 3)
    assert table.find(PrefixKey(b"same", keys[2].payload)) is None


def test_extra_keys_tell_where_a_block_cuts_an_item():
    span = MediaSpan(2, 10, "cat")
    keys = [KeyExtras(media=(span,)).of_block(start, start + 4) for start in (0, 4, 8, 12)]
    assert len({tuple(key) for key in keys}) == 4
    assert keys[3] == []


def test_nothing_is_registered_behind_a_collision(monkeypatch):
    """Two prefixes with one digest: the later one's following blocks would be taken for the earlier one's."""
    kv = KVManager(30, 4)

    def weak(hasher, parent, token_ids, extra=()):
        return PrefixKey(parent[:1] + bytes([sum(token_ids) % 251]), bytes(token_ids))

    monkeypatch.setattr(PrefixHasher, "key", weak)
    for tokens in ([1, 2, 3, 4, 9, 9, 9, 9, 0], [4, 3, 2, 1, 5, 5, 5, 5, 0]):
        sequence = KVSequence(tokens)
        kv.attach(sequence, kv.lookup(sequence))
        kv.allocate_slots(sequence, 9)
        sequence.num_computed_tokens = 9
        kv.free(sequence)
    assert kv.lookup(KVSequence([1, 2, 3, 4, 5, 5, 5, 5, 0])).num_tokens == 4


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


@pytest.mark.parametrize("algorithm", ["sha256", "xxhash", "sha256_cbor"])
@pytest.mark.parametrize(("tenant", "num_public"), [("", 0), ("ann", 0), ("ann", 1), ("ann", 70), ("ann", 500)])
def test_keys_that_are_computed_ahead_are_those_of_one_block_after_the_other(algorithm, tenant, num_public):
    size, num_blocks = 4, 150
    tokens = [(number * 7919) % 1000 for number in range(num_blocks * size + 3)]
    hasher = PrefixHasher(algorithm)
    parent, expected = hasher.root("salt"), []
    for index in range(num_blocks):
        if tenant and index == num_public:
            parent = hasher.private(parent, tenant)
        expected.append(hasher.key(parent, tokens[index * size : (index + 1) * size]))
        parent = expected[-1].digest
    keys = BlockKeys(algorithm, size)
    for order in (range(num_blocks), reversed(range(num_blocks))):
        sequence = KVSequence(tokens, "salt", tenant=tenant, num_public_tokens=num_public * size + 1)
        found = {index: keys.key(sequence, index) for index in order}
        assert [found[index] for index in range(num_blocks)] == expected
        assert sequence.prefix_keys == expected, "a block that is not full has no key"


def test_a_prefix_that_is_looked_up_for_a_pin_leaves_the_keys_of_its_sequence_right():
    tokens = list(range(1, 17))
    keys, whole = BlockKeys("sha256", 4), KVSequence(tokens)
    expected = [keys.key(KVSequence(tokens), index) for index in range(4)]
    keys.key(beginning(whole, 7), 0)  # seven tokens and a stand-in fill two blocks
    assert [keys.key(whole, index) for index in range(4)] == expected


@pytest.mark.parametrize("tenant", ["", "ann"])
def test_a_history_that_comes_again_is_hashed_at_its_end_alone(tenant, monkeypatch):
    size, history = 4, [(number * 7919) % 1000 for number in range(4 * AHEAD * 3)]
    keys = BlockKeys("sha256", size)
    num_hashed = 0
    hash_once = keys._hasher._digest

    def digest(data):
        nonlocal num_hashed
        num_hashed += 1
        return hash_once(data)

    monkeypatch.setattr(keys._hasher, "_digest", digest)
    first, again = (KVSequence([*history, *end], tenant=tenant) for end in (range(9), range(100, 150)))
    for sequence in (first, again):
        before = num_hashed
        for index in range(3 * AHEAD):
            keys.key(sequence, index)
    assert num_hashed - before <= 2, "the roots of salt and tenant"
    assert again.prefix_keys[: 3 * AHEAD] == first.prefix_keys[: 3 * AHEAD]
    keys.key(again, 3 * AHEAD)
    assert again.prefix_keys[3 * AHEAD] not in first.prefix_keys
    other = KVSequence(history, tenant="bob")
    assert keys.key(other, 0) not in first.prefix_keys
