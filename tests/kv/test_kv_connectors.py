"""Several connectors in order, and connectors that fail: pages are found, and no engine goes down."""

import threading

import numpy as np
import pytest

from core.api.kv_load import KVLoad
from core.api.specs import KVGroup
from core.kv.connector import KVConnector
from core.kv.connectors import KVConnectors
from core.kv.loads import MAX_LOAD_S
from core.kv.manager import KVManager
from core.kv.sequence import KVSequence
from tests.kv.tier_fakes import FIRST, OTHER, PAGE_BYTES, Engine, look_up


class Shelf(KVConnector):
    """Pages in a dictionary. fails: names of methods that raise."""

    def __init__(self):
        self.pages = {}
        self.fails = set()
        self.is_closed = False

    def get(self, group, key):
        self.check("get")
        return self.pages.get((group, key))

    def contains(self, group, key):
        self.check("contains")
        return (group, key) in self.pages

    def wants(self, group, key):
        self.check("wants")
        return (group, key) not in self.pages

    def put(self, group, key, page, *, evicted):
        self.check("put")
        self.pages[group, key] = page

    def cleared(self):
        self.pages.clear()

    def close(self, timeout_s):
        self.is_closed = True

    def check(self, name):
        if name in self.fails:
            raise RuntimeError("the shelf fell down")


class SlowShelf(KVConnector):
    """Has the pages of another shelf; loads wait until the test fills them."""

    def __init__(self, pages):
        self.pages = pages
        self.loads = []
        self.fails = False

    def can_load(self):
        return True

    def may_load(self, group, key):
        return (group, key) in self.pages

    def start_load(self, load):
        self.loads.append(load)

    def is_loaded(self, load):
        if self.fails:
            raise RuntimeError("no answer")
        return load.is_done

    def fill(self, load):
        load.fill(self.may_load, lambda group, key: self.pages.get((group, key)))
        load.finish()


def saved():
    """The pages of FIRST."""
    shelf = Shelf()
    engine = Engine(shelf, num_blocks=10)
    for tokens in (FIRST, OTHER):
        engine.run(tokens)
    return shelf.pages


def test_each_connector_that_wants_a_page_gets_it_with_one_copy():
    one, two = Shelf(), Shelf()
    engine = Engine(KVConnectors([one, two]), num_blocks=10)
    engine.run(FIRST)
    sequence = KVSequence(list(OTHER))
    engine.kv.attach(sequence, look_up(engine.kv, sequence))
    engine.kv.allocate_slots(sequence, len(OTHER))
    transfers = engine.kv.take_transfers()
    assert len(transfers.saves) == len(set(transfers.saves)) == 8
    engine.kv.settle_transfers(transfers, engine.device.copy(transfers))
    assert len(one.pages) == 8 and one.pages.keys() == two.pages.keys()


def test_the_first_connector_with_a_page_gives_it():
    pages = saved()
    one, two = Shelf(), Shelf()
    some = list(pages)[:3]
    one.pages = {name: pages[name] for name in some}
    two.pages = {name: page if name not in some else np.zeros_like(page) for name, page in pages.items()}
    assert Engine(KVConnectors([one, two]), num_blocks=20).run(FIRST) == 32, "and with the bytes of the first"


@pytest.mark.parametrize("method", ["get", "contains", "wants", "put"])
def test_a_connector_that_fails_is_left_out_and_the_others_go_on(method, caplog):
    bad, good = Shelf(), Shelf()
    bad.fails = {method}
    connectors = KVConnectors([bad, good], names=["bad", "good"])
    engine = Engine(connectors, num_blocks=10)
    with caplog.at_level("WARNING", "core"):
        for tokens in (FIRST, OTHER):
            engine.run(tokens)
        assert engine.run(FIRST) == 32
    assert f"connector 'bad' failed in {method} and is left out" in caplog.text and "fell down" in caplog.text
    assert connectors.connectors == (good,) and bad.is_closed


def test_a_connector_that_fails_alone_leaves_an_engine_without():
    bad = Shelf()
    bad.fails = {"put"}
    engine = Engine(bad, num_blocks=10)
    for tokens in (FIRST, OTHER):
        engine.run(tokens)
    assert engine.run(FIRST) == 0


def test_a_load_is_given_to_the_first_connector_that_may_have_more():
    pages = saved()
    empty, full = SlowShelf({}), SlowShelf(pages)
    connectors = KVConnectors([empty, full])
    kv = Engine(connectors, num_blocks=20).kv
    sequence = KVSequence(list(FIRST))
    assert isinstance(kv.lookup(sequence), KVLoad)
    assert not empty.loads and full.loads == [sequence.load] and not kv.loads.is_over(sequence.load)
    threading.Thread(target=full.fill, args=full.loads).start()
    kv.loads.wait(20.0)
    assert kv.loads.is_over(sequence.load) and kv.lookup(sequence).num_tokens == 32


def test_a_connector_that_never_answers_costs_a_bounded_wait():
    now = 5.0
    slow = SlowShelf(saved())
    kv = Engine(KVConnectors([slow], clock=lambda: now), num_blocks=20).kv
    sequence = KVSequence(list(FIRST))
    kv.lookup(sequence)
    now += MAX_LOAD_S - 0.1
    assert not kv.loads.is_over(sequence.load)
    now += 0.2
    assert kv.loads.is_over(sequence.load) and kv.lookup(sequence).num_tokens == 0
    slow.fill(slow.loads[0])
    assert kv.lookup(sequence).num_tokens == 0, "what comes later is not mixed in"


def test_sequences_that_wait_for_a_connector_that_fails_go_on():
    slow = SlowShelf(saved())
    kv = Engine(slow, num_blocks=20).kv
    sequence = KVSequence(list(FIRST))
    kv.lookup(sequence)
    slow.fails = True
    assert kv.loads.is_over(sequence.load) and kv.lookup(sequence).num_tokens == 0


def test_a_sequence_names_the_argument_that_it_waits_for():
    slow = SlowShelf(saved())
    slow.argument = "shelf_path"
    kv = Engine(slow, num_blocks=20).kv
    sequence = KVSequence(list(FIRST))
    kv.lookup(sequence)
    assert kv.loads.owners[sequence.load].argument == "shelf_path"


def test_a_prefix_comes_back_with_the_state_behind_it():
    groups = (KVGroup("full", (0,)), KVGroup("state", (1,), num_state_blocks=2))
    shelf = Shelf()

    def run(kv, tokens, device):
        """Compute a prompt up to its last edge, keep the state there, then the rest; returns the cached tokens."""
        sequence = KVSequence(list(tokens))
        hit = look_up(kv, sequence)
        kv.attach(sequence, hit)
        held = {}
        while sequence.num_computed_tokens < len(tokens):
            start = sequence.num_computed_tokens
            kv.snapshots.keep(sequence, start)
            count = kv.snapshots.chunk(sequence, start, len(tokens) - start)
            assert kv.allocate_slots(sequence, count) is not None
            transfers = kv.take_transfers()
            pages = [] if transfers is None else [device[block_id].copy() for block_id in transfers.saves]
            for sources, targets in kv.take_copies():
                device[targets] = device[sources]
            if transfers is not None:
                for block_id, page in transfers.loads:
                    device[block_id] = page
                kv.settle_transfers(transfers, pages)
            state = kv.states.blocks(sequence)
            if start:
                held[start] = device[state].copy()
            sequence.num_computed_tokens += count
            device[state] = [[sum(tokens[: start + count]) % 251], [len(tokens[: start + count])]]
        kv.free(sequence)
        return hit.num_tokens, held

    device = np.zeros((20, PAGE_BYTES), np.uint8)
    kv = KVManager(20, 4, groups=groups, connectors=KVConnectors([shelf]), max_step_tokens=64)
    for tokens in (FIRST, OTHER, range(200, 233)):
        run(kv, tokens, device)
    assert {group for group, _ in shelf.pages} == {0, 2, 3}, "states are pages of groups of their own"
    again = KVManager(20, 4, groups=groups, connectors=KVConnectors([shelf]), max_step_tokens=64)
    num_cached, held = run(again, FIRST, np.zeros((20, PAGE_BYTES), np.uint8))
    assert num_cached == 32
    assert (held[32][0] == sum(range(32)) % 251).all() and (held[32][1] == 32).all()
    shelf.pages = {name: page for name, page in shelf.pages.items() if name[0] != 3}
    third = KVManager(20, 4, groups=groups, connectors=KVConnectors([shelf]), max_step_tokens=64)
    assert run(third, FIRST, device)[0] == 0, "half a state is none"


def test_a_connector_that_promises_a_page_and_has_none_shortens_the_prefix():
    shelf = Shelf()
    shelf.pages = dict.fromkeys(saved())
    assert Engine(shelf, num_blocks=20).run(FIRST) == 0


def test_a_page_of_another_size_is_computed(caplog):
    shelf = Shelf()
    shelf.pages = {name: page[:-1] for name, page in saved().items()}
    connectors = KVConnectors([shelf], page_bytes=PAGE_BYTES)
    assert Engine(connectors, num_blocks=20).run(FIRST) == 0
    assert f"a page of {PAGE_BYTES - 1} bytes, expected {PAGE_BYTES}" in caplog.text


def test_a_state_is_loaded_although_its_keys_and_values_are_in_the_pool():
    groups = (KVGroup("full", (0,)), KVGroup("state", (1,), num_state_blocks=1))
    slow = SlowShelf({})
    kv = KVManager(20, 4, groups=groups, connectors=KVConnectors([slow]), max_step_tokens=64)
    first = KVSequence(list(FIRST))
    kv.attach(first, look_up(kv, first))
    assert kv.allocate_slots(first, len(FIRST)) is not None
    first.num_computed_tokens = len(FIRST)
    slow.pages[2, kv.key(first, 7)] = np.zeros(PAGE_BYTES, np.uint8)
    kv.free(first)
    again = KVSequence(list(FIRST))
    assert isinstance(kv.lookup(again), KVLoad), "the pool has all keys and values, and no state"
    slow.fill(slow.loads[0])
    assert kv.lookup(again).num_tokens == 32


def crowded():
    """An engine whose blocks of FIRST are leaving for the room of OTHER, by copies that are still to be made."""
    engine = Engine(Shelf(), num_blocks=12)
    engine.run(FIRST)
    other = KVSequence(list(OTHER))
    engine.kv.attach(other, look_up(engine.kv, other))
    assert engine.kv.allocate_slots(other, len(OTHER)) is not None
    return engine


def test_a_sequence_waits_for_pages_of_blocks_that_were_evicted_for_the_same_step():
    engine = crowded()
    kv = engine.kv
    sequence = KVSequence(list(FIRST))
    assert isinstance(kv.lookup(sequence), KVLoad) and not kv.loads.is_over(sequence.load)
    assert kv.copy_now(engine.device.copy)
    assert kv.loads.is_over(sequence.load) and kv.lookup(sequence).num_tokens == 32
    unknown = KVSequence(list(range(300, 333)))
    assert kv.lookup(unknown).num_tokens == 0, "who lacks nothing of it does not wait"


def test_a_sequence_whose_evicted_pages_do_not_arrive_is_computed():
    engine = crowded()
    kv = engine.kv
    sequence = KVSequence(list(FIRST))
    assert isinstance(kv.lookup(sequence), KVLoad)
    assert not kv.copy_now(lambda transfers: None)
    assert kv.loads.is_over(sequence.load) and kv.lookup(sequence).num_tokens < 32
