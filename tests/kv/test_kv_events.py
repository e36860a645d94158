"""KV events as a subscriber sees them, and residency."""

import hashlib
import random
import time
from array import array

import cbor2
import msgspec
import pytest
import zmq

from core import LLM, SamplingParams
from core.api.config import KVEventsConfig
from core.api.errors import ConfigError
from core.api.specs import KVGroup
from core.kv.connectors import KVConnectors
from core.kv.hashing import PrefixHasher
from core.kv.manager import KVManager
from core.kv.sequence import KVSequence
from core_kv_connectors.event_history import EventHistory
from core_kv_connectors.event_publisher import END_OF_REPLAY, EventPublisher, PublishedEvents
from core_kv_connectors.events import AllBlocksCleared, BlockRemoved, BlockStored, EventLog, KVEventBatch
from core_kv_connectors.kv_residency import RESIDENCY_BUCKETS
from core_kv_connectors.residency import Residency
from core_kv_connectors.tiers.host import HostTier
from core_kv_connectors.tiers.tiers import KVTiers
from tests.inside import core_of
from tests.kv.tier_fakes import PAGE_BYTES, key, page


@pytest.fixture
def context():
    made = zmq.Context()
    yield made
    made.destroy(linger=0)


def run(kv, tokens):
    sequence = KVSequence(list(tokens))
    kv.attach(sequence, kv.lookup(sequence))
    assert kv.allocate_slots(sequence, len(sequence.token_ids) - sequence.num_computed_tokens) is not None
    sequence.num_computed_tokens = len(sequence.token_ids)
    kv.free(sequence)


class Mirror:
    """What a router knows: the hashes that are cached, from events alone, as plain msgpack values."""

    def __init__(self):
        self.blocks = {}

    def apply(self, payload):
        ts, events = msgspec.msgpack.decode(payload)
        assert abs(ts - time.time()) < 60
        for name, *fields in events:
            if name == "BlockStored":
                hashes, parent, token_ids, block_size, lora_id, medium, *_, group, kind, window = fields
                assert (lora_id, medium, group, kind, window) == (None, "GPU", 0, "full_attention", None)
                assert len(token_ids) == block_size * len(hashes)
                for index, digest in enumerate(hashes):
                    self.blocks[digest] = (parent, token_ids[index * block_size : (index + 1) * block_size])
                    parent = digest
            elif name == "BlockRemoved":
                assert fields[1:] == ["GPU", 0]
                for digest in fields[0]:
                    del self.blocks[digest]
            else:
                assert (name, fields) == ("AllBlocksCleared", [])
                self.blocks.clear()


def events_of(log):
    """What a log has collected, as a subscriber reads it."""
    batch = log.take()
    return [] if batch is None else msgspec.msgpack.decode(msgspec.msgpack.encode(batch))[1]


def cached(kv):
    """The same from the cache itself."""
    return {key.digest: list(array("I", key.payload)) for _, _, key in kv.pool.prefixes.entries()}


def test_a_mirror_built_from_events_equals_the_cache():
    log = EventLog(4)
    kv, mirror = KVManager(12, 4, connectors=KVConnectors([log])), Mirror()
    for start in (0, 0, 50, 100, 3, 150, 50):
        run(kv, range(start, start + 22))
        told = log.take()
        if told is not None:
            mirror.apply(msgspec.msgpack.encode(told))
        assert {digest: tokens for digest, (_, tokens) in mirror.blocks.items()} == cached(kv)
    assert kv.reset()
    mirror.apply(msgspec.msgpack.encode(log.take()))
    assert mirror.blocks == {} and log.take() is None


def test_a_sequence_is_one_event_with_its_chain():
    log = EventLog(2)
    kv = KVManager(12, 2, connectors=KVConnectors([log]))
    run(kv, [1, 2, 3, 4, 5])
    hasher = PrefixHasher()
    first = hasher.key(hasher.root(None), [1, 2])
    second = hasher.key(first.digest, [3, 4])
    named = {"medium": "GPU", "group_idx": 0, "kv_cache_spec_kind": "full_attention"}
    assert log.take().events == [BlockStored([first.digest, second.digest], None, [1, 2, 3, 4], 2, None, **named)]
    run(kv, [1, 2, 3, 4, 5, 6, 7])
    third = hasher.key(second.digest, [5, 6])
    assert log.take().events == [BlockStored([third.digest], second.digest, [5, 6], 2, None, **named)]


def test_events_tell_of_states_under_their_own_group():
    groups = (KVGroup("full", (0,)), KVGroup("state", (1,), num_state_blocks=2))
    log = EventLog(4, groups)
    kv = KVManager(16, 4, groups=groups, connectors=KVConnectors([log]))
    told, known = [], set()
    for start in (0, 0, 100, 200, 300, 0):
        sequence = KVSequence(list(range(start, start + 16)))
        kv.attach(sequence, kv.lookup(sequence))
        assert kv.allocate_slots(sequence, len(sequence.token_ids) - sequence.num_computed_tokens) is not None
        sequence.num_computed_tokens = len(sequence.token_ids)
        kv.free(sequence, at_rest=True)
        batch = log.take()
        told += [] if batch is None else msgspec.msgpack.decode(msgspec.msgpack.encode(batch))[1]
    for name, *fields in told:
        if name == "BlockStored" and fields[5:] == ["GPU", None, None, 1, "mamba", None]:
            [digest], parent, token_ids = fields[:3]
            assert digest not in known and parent is not None and len(token_ids) == 4
            known.add(digest)
        elif name == "BlockRemoved" and fields[2] == 1:
            assert known >= set(fields[0])
            known -= set(fields[0])
    assert known == {key.digest for _, group, key in kv.pool.prefixes.entries() if group == 2}
    assert any(name == "BlockRemoved" and fields[2] == 1 for name, *fields in told) and known


def test_every_group_names_its_kind_and_window():
    groups = (KVGroup("full", (0,)), KVGroup("sliding", (1,), window=6))
    log = EventLog(4, groups)
    kv = KVManager(14, 4, groups=groups, connectors=KVConnectors([log]))
    known = {0: set(), 1: set()}
    kinds = {0: ["full_attention", None], 1: ["sliding_window", 6]}
    for start in (0, 0, 100, 50, 0):
        run(kv, range(start, start + 20))
        for name, *fields in events_of(log):
            if name == "BlockStored":
                hashes, parent, token_ids, _, _, medium, _, _, group, *kind = fields
                assert medium == "GPU" and kind == kinds[group] and len(token_ids) == 4 * len(hashes)
                assert (parent is None) == (token_ids[0] == start)
                known[group] |= set(hashes)
            else:
                assert set(fields[0]) <= known[fields[2]], "what is removed was there, under its own group"
                known[fields[2]] -= set(fields[0])
        for group, hashes in known.items():
            assert hashes == {key.digest for _, one, key in kv.pool.prefixes.entries() if one == group}
    assert known[0] and known[1]


def test_short_hashes_are_numbers_in_events_alone():
    log, whole = EventLog(4, shortens=True), EventLog(4)
    kv = KVManager(9, 4, hash_algorithm="sha256_cbor_64bit", connectors=KVConnectors([log, whole]))
    plain = KVManager(9, 4, hash_algorithm="sha256_cbor")
    for start in (0, 50, 0):
        run(kv, range(start, start + 13))
        run(plain, range(start, start + 13))
        for (name, hashes, *_), (other, digests, *_) in zip(events_of(log), events_of(whole), strict=True):
            assert name == other and hashes == [int.from_bytes(digest, "big") % (1 << 64) for digest in digests]
    keys = {key.digest for _, _, key in kv.pool.prefixes.entries()}
    assert keys == {key.digest for _, _, key in plain.pool.prefixes.entries()} and all(len(key) == 32 for key in keys)


@pytest.mark.parametrize("shortens", [False, True])
def test_hashes_are_those_that_vllm_computes_with_hash_seed_0(shortens):
    """By vLLM's rule: a block hashes its parent's hash, its tokens and None; the first parent is the seed's hash."""

    def hashed(value):
        return hashlib.sha256(cbor2.dumps(value, canonical=True)).digest()

    log = EventLog(4, shortens=shortens)
    algorithm = "sha256_cbor_64bit" if shortens else "sha256_cbor"
    run(KVManager(9, 4, hash_algorithm=algorithm, connectors=KVConnectors([log])), range(100, 113))
    parent, expected = hashed("0"), []
    for start in (100, 104, 108):
        parent = hashed((parent, tuple(range(start, start + 4)), None))
        expected.append(int.from_bytes(parent, "big") & ((1 << 64) - 1) if shortens else parent)
    assert [digest for name, hashes, *_ in events_of(log) if name == "BlockStored" for digest in hashes] == expected


def test_host_memory_is_a_medium_of_its_own():
    log = EventLog(4)
    host = HostTier(3 * PAGE_BYTES)
    tiers = KVTiers(host, None)
    tiers.watch_host(log)
    known = set()

    def told():
        for name, *fields in events_of(log):
            if name == "AllBlocksCleared":
                known.clear()
            elif name == "BlockStored":
                assert fields[1:6] == [None, [], 4, None, "CPU"] and fields[8:] == [0, "full_attention", None]
                known.update(fields[0])
            else:
                assert fields[1:] == ["CPU", 0] and known >= set(fields[0])
                known.difference_update(fields[0])
        return known

    def here():
        return {digest for _, digest in host._pages}

    for number in range(5):
        host.write(0, key(number), page(number))
    assert told() == here() and len(known) == 3
    host.discard(0, key(4))
    assert told() == here() and len(known) == 2
    log.pool_replaced()
    assert told() == here() and len(known) == 2, "a sleep at level 1 keeps host memory"
    host.write(0, key(9), page(9))
    tiers.put_on(HostTier(PAGE_BYTES), None)
    assert told() == set(), "pages of other weights are none of these"
    tiers.host.write(0, key(1), page(1))
    assert told() == {key(1).digest}
    log.cleared()
    tiers.host.clear()
    assert told() == set()


def test_names_and_order_of_fields_are_the_published_ones():
    stored = BlockStored([b"a"], None, [1], 1, None, "GPU", None, None, 2, "sliding_window", 6)
    batch = KVEventBatch(1.5, [stored, BlockRemoved([b"a"], "GPU", 2), AllBlocksCleared()])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(batch)) == [
        1.5,
        [
            ["BlockStored", [b"a"], None, [1], 1, None, "GPU", None, None, 2, "sliding_window", 6],
            ["BlockRemoved", [b"a"], "GPU", 2],
            ["AllBlocksCleared"],
        ],
    ]


def free_address(tmp_path, name):
    return f"ipc://{tmp_path}/{name}"


def batch(number):
    return KVEventBatch(float(number), [BlockRemoved([bytes([number])])])


def test_subscribers_get_numbered_batches_and_may_ask_again(tmp_path, context):
    live, past = free_address(tmp_path, "live"), free_address(tmp_path, "past")
    publisher = EventPublisher(KVEventsConfig(endpoint=live, replay_endpoint=past, buffer_steps=3, topic="kv@1"))
    subscriber = context.socket(zmq.SUB)
    subscriber.subscribe("kv@")
    subscriber.connect(live)
    time.sleep(0.2)
    for number in range(5):
        publisher.publish(batch(number))
    for number in range(5):
        assert subscriber.poll(5000)
        topic, count, payload = subscriber.recv_multipart()
        assert (topic, int.from_bytes(count, "big")) == (b"kv@1", number)
        assert msgspec.msgpack.decode(payload, type=KVEventBatch) == batch(number)
    late = context.socket(zmq.DEALER)
    late.connect(past)
    late.send_multipart((b"", (3).to_bytes(8, "big")))
    replayed = []
    while True:
        assert late.poll(5000)
        empty, count, payload = late.recv_multipart()
        assert empty == b""
        if count == END_OF_REPLAY:
            break
        replayed.append((int.from_bytes(count, "big"), msgspec.msgpack.decode(payload, type=KVEventBatch)))
    assert replayed == [(3, batch(3)), (4, batch(4))]
    publisher.close()


def test_a_subscriber_that_starts_late_knows_every_block():
    log, kept = EventLog(4), EventHistory(3)
    kv, number = KVManager(40, 4, connectors=KVConnectors([log])), 0
    rng = random.Random(3)
    for turn in range(60):
        start = rng.choice((0, 0, 50, 100, 150, 200))
        run(kv, range(start, start + rng.randrange(5, 60)))
        if turn == 20:
            assert kv.reset()
        told = log.take()
        if told is not None:
            kept.add(number, msgspec.msgpack.encode(told))
            number += 1
        for first in (0, max(number - 2, 0)):
            mirror = Mirror()
            replayed = list(kept.since(first))
            assert [one for one, _ in replayed][-3:] == list(range(max(number - 3, first), number))[-len(replayed) :]
            if first:
                continue
            for _, payload in replayed:
                mirror.apply(payload)
            assert {digest: tokens for digest, (_, tokens) in mirror.blocks.items()} == cached(kv)
            for parent, _ in mirror.blocks.values():
                assert parent is None or parent in mirror.blocks, "each block follows one that is there"
    assert number > 30


def test_pages_in_host_memory_are_part_of_what_late_subscribers_get():
    log, kept = EventLog(4), EventHistory(1)
    for number in range(9):
        log.host_stored(0, key(number).digest)
        if number % 3 == 2:
            log.host_removed([(0, key(number - 1).digest)])
        kept.add(number, msgspec.msgpack.encode(log.take()))
    known = set()
    for _, payload in kept.since(0):
        for name, *fields in msgspec.msgpack.decode(payload)[1]:
            if name == "BlockStored":
                assert fields[1:6] == [None, [], 4, None, "CPU"]
                known |= set(fields[0])
            elif name == "BlockRemoved":
                known -= set(fields[0])
    assert known == {key(number).digest for number in range(9) if number % 3 != 1}


def test_a_stuck_subscriber_never_holds_the_engine_up(tmp_path, context):
    address = free_address(tmp_path, "live")
    publisher = EventPublisher(KVEventsConfig(endpoint=address, hwm=1, max_queue_size=5))
    subscriber = context.socket(zmq.SUB)
    subscriber.setsockopt(zmq.RCVHWM, 1)
    subscriber.subscribe("")
    subscriber.connect(address)
    for number in range(20_000):
        publisher.publish(batch(number % 250))
    assert publisher.num_dropped > 0, (
        "with five places in the queue and a subscriber that reads nothing, batches are dropped"
    )
    publisher.publish(batch(1))
    assert publisher._number == 20_001, "numbers of dropped batches are missing, so that a gap is seen"
    publisher.close()


def test_an_endpoint_in_use_is_named(tmp_path, context):
    other = context.socket(zmq.PUB)
    address = f"tcp://127.0.0.1:{other.bind_to_random_port('tcp://127.0.0.1')}"
    with pytest.raises(ConfigError, match=rf"--kv-events-config.endpoint {address}: it cannot be bound \(Address"):
        EventPublisher(KVEventsConfig(endpoint=address))


def test_services_tell_of_each_step(tmp_path, context):
    address = free_address(tmp_path, "live")
    services = KVConnectors([PublishedEvents(KVEventsConfig(endpoint=address), 4)])
    kv = KVManager(20, 4, connectors=services)
    subscriber = context.socket(zmq.SUB)
    subscriber.subscribe("")
    subscriber.connect(address)
    time.sleep(0.2)
    sequence = KVSequence(list(range(9)))
    kv.attach(sequence, kv.lookup(sequence))
    kv.allocate_slots(sequence, 9)
    sequence.num_computed_tokens = 9
    services.after_step(kv)
    assert subscriber.poll(5000), "a running sequence's prompt is told at once"
    mirror = Mirror()
    mirror.apply(subscriber.recv_multipart()[2])
    assert len(mirror.blocks) == 2
    services.close(kv, lambda transfers: None, 1.0)


def test_residency_counts_lives_idle_times_and_gaps():
    now = 0.0
    residency = Residency(1.0, lambda: now)
    kv = KVManager(4, 4, connectors=KVConnectors([residency]))
    run(kv, range(5))
    now = 7.0
    run(kv, [*range(4), 9])
    now = 20.0
    run(kv, range(100, 112))
    buckets = [*RESIDENCY_BUCKETS, float("inf")]
    for row, seconds in zip(residency.rows, [20.0, 13.0, 7.0], strict=True):
        assert row[-1] == seconds and sum(row[:-1]) == 1
        assert buckets[row.index(1)] >= seconds
    kv.reset()
    run(kv, range(12))
    assert residency.rows[0][-1] == 20.0


def test_a_small_sample_watches_a_small_part():
    residency = Residency(0.1, time.monotonic)
    kv = KVManager(2000, 1, connectors=KVConnectors([residency]))
    run(kv, range(1500))
    run(kv, range(5000, 6900))
    assert 90 <= sum(residency.rows[0][:-1]) <= 220


def test_an_engine_tells_what_it_caches(tiny_llama, tmp_path, context):
    address = free_address(tmp_path, "live")
    subscriber = context.socket(zmq.SUB)
    subscriber.subscribe("")
    subscriber.connect(address)
    events = {"enable_kv_cache_events": True, "endpoint": address}
    llm = LLM(model=str(tiny_llama), max_model_len=128, max_num_seqs=2, kv_events_config=events, kv_cache_metrics=True,
              kv_cache_metrics_sample=1.0)  # fmt: skip
    time.sleep(0.3)
    mirror = Mirror()
    for _ in range(2):
        llm.generate("p" * 40, SamplingParams(temperature=0, max_tokens=30, ignore_eos=True), use_tqdm=False)
    while subscriber.poll(1000):
        mirror.apply(subscriber.recv_multipart()[2])
    assert len(mirror.blocks) == (1 + 40 + 29) // 16
    assert sum(llm.stats().kv_residency[2][:-1]) == 2, "the second prompt used two blocks again"
    assert llm.reset_prefix_cache()
    llm.generate("q", SamplingParams(max_tokens=1), use_tqdm=False)
    while mirror.blocks and subscriber.poll(3000):
        mirror.apply(subscriber.recv_multipart()[2])
    assert mirror.blocks == {}
    llm.close()


def test_an_engine_tells_of_its_host_memory(tiny_llama, tmp_path, context):
    address = free_address(tmp_path, "live")
    subscriber = context.socket(zmq.SUB)
    subscriber.subscribe("")
    subscriber.connect(address)
    events = {"enable_kv_cache_events": True, "endpoint": address}
    llm = LLM(model=str(tiny_llama), max_model_len=128, max_num_seqs=1, num_gpu_blocks_override=10, kv_events_config=events,
              kv_offloading_size=0.001)  # fmt: skip
    time.sleep(0.3)
    host = next(one.host for one in core_of(llm).kv_services.connectors if isinstance(one, KVTiers))
    for letter in "abcdefgh":
        llm.generate(letter * 90, SamplingParams(max_tokens=2, ignore_eos=True), use_tqdm=False)
    known, num_gone = set(), 0
    while subscriber.poll(1000):
        for name, *fields in msgspec.msgpack.decode(subscriber.recv_multipart()[2])[1]:
            if name == "BlockStored" and fields[5] == "CPU":
                known |= set(fields[0])
            elif name == "BlockRemoved" and fields[1] == "CPU":
                num_gone += len(fields[0])
                known -= set(fields[0])
    assert known == {digest for _, digest in host._pages} and known
    llm.close()
