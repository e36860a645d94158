"""Thousands of handoffs of KV pages while engines go, connections are cut and bytes change: `make soak-kv`.

Owns: producers and consumers without a model, what happens to them, and the tally. Never does: compute. Called by: the command
line, and a short run by the tests.

Engines have one, two, four or eight ranks, drawn when they start, so most pages are arranged anew; prompts end with a state,
which several pages hold. A request may get fewer pages than were leased, since the rest is computed; it must never get another
page, wait for ever, or leave a lease, a page or memory on either side.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.api.kv_transfer import PrefixKey
from core_kit.fixtures.kv_context import config_of
from core_kv_connectors.handoff.claim import Claim, Source
from core_kv_connectors.handoff.connector import Handoff
from core_kv_connectors.handoff.roles import Roles
from tests.kv.between import Between
from tests.kv.shaped_pages import KEYS, Shaped
from tests.kv.test_peers import free_port
from tests.kv.tier_fakes import PRINT, key

Place = tuple[int, PrefixKey]
TENANTS = ("", "ann", "bob")
NUM_PROMPTS, LONGEST, MOST_OPEN = 40, 12, 24
LEASE_S, ENDS_S = 1.0, 30.0
BAD = ("altered", "tenant", "spent", "engine", "stale")
SHAPES = {ranks: Shaped(ranks) for ranks in (1, 2, 4, 8)}
OLD_S = 1.2 * LEASE_S


@dataclass
class Request:
    """One request: its claim, and the prompt whose pages it may get.

    shown: producer, ticket and tenant. bad: why it may get none; empty: it may. is_known: whether the claim knows the prompt.
    looks_left: looks after which it is aborted, unless it has ended; 0: never.
    """

    consumer: int
    shown: tuple[int, str, str]
    claim: Claim
    prompt: int
    bad: str
    begun: float
    looks_left: int
    is_known: bool = False


class World:
    """Two producers, two consumers, and a machine before each producer that damages what it passes on."""

    def __init__(self, home: Path, seed: int) -> None:
        self.rng = random.Random(seed)  # for what happens, one after the other
        self._dice = random.Random(-seed)  # for what depends on how fast threads are, so that `rng` does not
        self.tally: Counter[str] = Counter()
        self._config = config_of(home)
        self._ports = [free_port(), free_port()]
        self._harm = [0, 0]
        self._lock = threading.Lock()
        self._spent: list[tuple[int, str, str, int]] = []
        self._unshown: list[tuple[float, tuple[int, str, str, int]]] = []
        self._ranks: dict[Handoff, Shaped] = {}
        self.between: list[Any] = []
        for number, port in enumerate(self._ports):
            machine: Any = Between(("127.0.0.1", port))  # type: ignore[no-untyped-call]
            machine.pass_on = lambda data, number=number: self._passed(number, data)
            self.between.append(machine)
        self.producers = [self._producer(number) for number in range(2)]
        self.consumers = [self._consumer() for _ in range(2)]
        self.open: dict[str, Request] = {}
        self._number = 0

    def turn(self) -> None:
        """Begin a request, or do something to an engine; then see to all requests."""
        chance = self.rng.random()
        if chance < 0.01:
            self._replace_producer(self.rng.randrange(2))
        elif chance < 0.02:
            self._replace_consumer(self.rng.randrange(2))
        elif chance < 0.025:
            self.rng.choice([*self.producers, *self.consumers]).cleared()
            self.tally["resets"] += 1
        elif chance < 0.06:
            with self._lock:
                self._harm[self.rng.randrange(2)] = 1
        else:
            self._begin()
        while True:
            for name in list(self.open):
                self._see_to(name)
            if len(self.open) < MOST_OPEN:
                return
            time.sleep(0.0005)

    def end(self) -> None:
        """Wait for every request, and look that nothing is left. Raises AssertionError."""
        deadline = time.monotonic() + ENDS_S
        while self.open:
            assert time.monotonic() < deadline, f"{len(self.open)} requests never end"
            for name in list(self.open):
                self._see_to(name)
            time.sleep(0.001)
        time.sleep(OLD_S)
        for _, old in self._unshown:
            self._show(old, "stale", "", self.rng.randrange(2))
        while self.open:
            assert time.monotonic() < deadline, f"{len(self.open)} requests never end"
            for name in list(self.open):
                self._see_to(name)
        while any(one.report_counts()["leases"] for one in self.producers) or any(
            one.report_counts()["buffered_bytes"] for one in self.consumers
        ):
            assert time.monotonic() < deadline, "leases or memory are left"
            time.sleep(0.01)
        for one in self.producers:
            one.check_integrity()
            assert one.report_counts()["leased_pages"] == 0
        for one in (*self.producers, *self.consumers):
            one.close(0.0)
        for machine in self.between:
            machine.cut()

    def _begin(self) -> None:
        rng, number = self.rng, self.rng.randrange(2)
        producer, prompt, tenant = self.producers[number], rng.randrange(NUM_PROMPTS), rng.choice(TENANTS)
        bad, engine_id, consumer = rng.choice((*BAD, *[""] * 12)), rng.choice(("", f"P{number}")), rng.randrange(2)
        shaped = self._ranks[producer]
        places = places_of(prompt, shaped)
        leased = [(None, group, of, shaped.pages(seed_of(of))[group][0]) for group, of in places]
        ticket = producer.lease(leased, places[-1][1].digest, len(places), tenant)
        if ticket is None:
            self.tally["without room"] += 1
            return
        if bad == "altered":
            place = rng.randrange(len(ticket))
            ticket = ticket[:place] + ("A" if ticket[place] != "A" else "B") + ticket[place + 1 :]
        elif bad == "tenant":
            tenant = rng.choice([other for other in TENANTS if other != tenant])
        elif bad == "engine":
            engine_id = "another"
        shown = number, ticket, tenant, prompt
        if bad == "spent":
            if self._spent:
                shown, engine_id = self._dice.choice(self._spent), ""
            else:
                bad, engine_id = "engine", "another"
        elif bad == "stale":
            self._unshown.append((time.monotonic(), shown))
            since, shown = self._unshown[0]
            if time.monotonic() - since < OLD_S:
                return
            del self._unshown[0]
            engine_id = ""
        self._show(shown, bad, engine_id, consumer)

    def _show(self, shown: tuple[int, str, str, int], bad: str, engine_id: str, consumer: int) -> None:
        """Have a consumer claim with a ticket. shown: producer, ticket, tenant, prompt. Other arguments: see `Request`."""
        number, ticket, tenant, prompt = shown
        self._number += 1
        name = f"r{self._number}"
        host, _, port = self.between[number].address.rpartition(":")
        connector = self.consumers[consumer]
        for rest in connector._rests.values():
            rest.end()  # as if the time in which a peer is left alone had passed
        why = connector.claim(name, Source(host, int(port), ticket, engine_id), tenant)
        self.tally["requests"] += 1
        claim = connector.claim_of(name)
        if claim is None:
            self.tally[f"no claim: {why}"] += 1
            return
        self.tally[f"bad: {bad}" if bad else "good"] += 1
        looks = self._dice.choice((1, 2, 3, *[0] * 27))
        self.open[name] = Request(consumer, (number, ticket, tenant), claim, prompt, bad, time.monotonic(), looks)

    def _see_to(self, name: str) -> None:
        request, rng = self.open[name], self._dice
        claim, connector = request.claim, self.consumers[request.consumer]
        request.looks_left -= 1
        if not request.looks_left:
            self.tally["aborted"] += 1
            self._end(name)
            return
        if not request.is_known and rng.random() < 0.5:
            request.is_known = True
            claim.know(lambda: places_of(request.prompt, self._ranks[connector]))
        if claim.offered.done():
            claim.want(claim.offered.result())
        if not claim.done.done():
            assert time.monotonic() - request.begun < ENDS_S, "a request never ends"
            return
        connector.collect(name)
        self._check(request, connector)
        self._end(name)

    def _check(self, request: Request, connector: Handoff) -> None:
        """Count the pages that a request has received. Raises AssertionError for any that it must not have."""
        count = 0
        shaped = self._ranks[connector]
        for group, of in places_of(request.prompt, shaped):
            got = request.claim.pages.get((group, of.digest))
            count += got is not None
            assert got is None or shaped.is_right(seed_of(of), group, got[1]), (
                "a page has other bytes than its tokens have"
            )
            held = connector.get(group, of)
            assert held is None or shaped.is_right(seed_of(of), group, held)
        assert count == len(request.claim.pages), "a request has pages of another prompt"
        assert not count or not request.bad, f"a ticket served that must not: {request.bad}"
        if count:
            self._spent = [*self._spent[-50:], (*request.shown, request.prompt)]
        self.tally["pages"] += count
        self.tally["whole"] += count == len(places_of(request.prompt, shaped))
        self.tally["with failure"] += bool(request.claim.failure)

    def _end(self, name: str) -> None:
        self.consumers[self.open.pop(name).consumer].end_claim(name)

    def _replace_producer(self, number: int) -> None:
        self.producers[number].close(0.0)
        del self._ranks[self.producers[number]]
        self.producers[number] = self._producer(number)
        self.tally["producers replaced"] += 1

    def _replace_consumer(self, number: int) -> None:
        for name in [name for name, request in self.open.items() if request.consumer == number]:
            self._end(name)
        self.consumers[number].close(0.0)
        del self._ranks[self.consumers[number]]
        self.consumers[number] = self._consumer()
        self.tally["consumers replaced"] += 1

    def _producer(self, number: int) -> Handoff:
        return self._engine("kv_producer", f"127.0.0.1:{self._ports[number]}", (), f"P{number}")

    def _consumer(self) -> Handoff:
        return self._engine("kv_consumer", None, [machine.address for machine in self.between], "C")

    def _engine(self, role: str, listen: str | None, peers: Any, engine_id: str) -> Handoff:
        roles = Roles.read(role, listen, peers, lease_s=LEASE_S, engine_id=engine_id, has_key=False)
        shaped = SHAPES[self.rng.choice(tuple(SHAPES))]
        options: dict[str, Any] = {"roles": roles, "secret": b"", "capacity": 1 << 20, "buffer": 1 << 14}
        made = Handoff(self._config, lambda: PRINT, shaped.page_bytes, **options)
        made.arrange(shaped.shape, "numerics")
        self._ranks[made] = shaped
        return made

    def _passed(self, number: int, data: bytes) -> bytes:
        """What becomes of bytes to a consumer."""
        with self._lock:
            if not self._harm[number]:
                return data
            self._harm[number] = 0
            self.tally["harmed"] += 1
            place, kind = self._dice.randrange(len(data)), self._dice.randrange(3)
        if kind == 0:
            return data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :]
        if kind == 1:
            raise OSError("cut")
        return data[:place] + data


def start_of(prompt: int) -> int:
    """Number of a prompt's first page; neighbours share pages."""
    return 7 * (prompt // 2)


def places_of(prompt: int, shaped: Shaped) -> list[Place]:
    """Group and key of the pages of a prompt: a page of each block, and of its last one those of the window and the state."""
    start = start_of(prompt)
    keys = [key(start + index) for index in range(1 + prompt % LONGEST)]
    return [*((KEYS, of) for of in keys), *((number, keys[-1]) for number in shaped.numbers if number != KEYS)]


def seed_of(of: PrefixKey) -> int:
    """What the values of the pages of a key are drawn from."""
    return int.from_bytes(of.payload[:4], "little")


def soak(home: Path, num_requests: int, seed: int) -> Counter[str]:
    """Run handoffs; returns the tally. Raises AssertionError for anything that must not be."""
    world = World(home, seed)
    while world.tally["requests"] < num_requests:
        world.turn()
    world.end()
    assert world.tally["whole"] > world.tally["good"] // 8, "hardly anything was handed over"
    return world.tally


def main() -> int:
    """Soak, and print the tally."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.handoffs", description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    logging.disable()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory() as home:
        tally = soak(Path(home), options.requests, options.seed)
    for name, number in sorted(tally.items()):
        print(f"{number:8d} {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
