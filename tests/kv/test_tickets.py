"""1,000 tickets that must not serve: forged, replayed, another tenant's, stale, of other engines, keys and weights."""

import random
import time
from collections import Counter

from core_kv_connectors.handoff.leases import Leases
from core_kv_connectors.handoff.ticket import KEY_BYTES, Ticket, read, tenant_digest, written
from tests.kv.tier_fakes import OTHER_PRINT, PAGE_BYTES, PRINT, key

LEASE_S = 30.0
BLOCKS = [(0, key(number)) for number in range(3)]
LAST = BLOCKS[-1][1].digest
LETTERS = "abcXYZ019-_.=+/ !é\n\0"


def altered(ticket: str, rng: random.Random) -> str:
    """Another text, of the same length or not."""
    while True:
        place, other = rng.randrange(len(ticket)), rng.randrange(len(ticket))
        found = rng.choice((
            ticket[:place] + rng.choice(LETTERS) + ticket[place + 1 :],
            ticket[:place] + ticket[place + 1 :],
            ticket[:place] + rng.choice(LETTERS) + ticket[place:],
            ticket[:place],
            ticket[place:],
            ticket + ticket[other:],
            ticket[:place] + ticket[other : other + 1] + ticket[place + 1 :],
            ticket.swapcase(),
            "",
        ))  # fmt: skip
        if found != ticket:
            return found


def test_none_of_1000_is_served_and_each_good_one_is() -> None:
    rng, now = random.Random(38), [0.0]
    leases = Leases(PRINT, PAGE_BYTES, 1 << 20, LEASE_S, "P", lambda: now[0])
    others = Leases(PRINT, PAGE_BYTES, 1 << 20, LEASE_S, "P", lambda: now[0])
    kinds = ("altered", "resigned", "replayed", "tenant", "stale", "engine", "dropped", "other engine", "renewed")
    tried: Counter[str] = Counter()
    served = good = 0

    def issue(tenant: str) -> str:
        ticket = leases.issue(BLOCKS, LAST, len(BLOCKS), tenant)
        assert ticket is not None
        return ticket

    while sum(tried.values()) < 1000:
        kind, tenant = rng.choice(kinds), rng.choice(("", "ann", "bob"))
        ticket, engine_id = issue(tenant), rng.choice(("", "P"))
        shown, whose, is_spent = ticket, tenant, False
        if kind == "altered":
            shown = altered(ticket, rng)
        elif kind == "resigned":
            content = read(ticket, leases._key)
            assert content is not None
            shown = written(content, rng.randbytes(KEY_BYTES))
        elif kind == "renewed":  # all that it says is right, and it was written without the key
            made_up = Ticket(
                next(iter(leases._leases)), PRINT, LAST, len(BLOCKS), tenant_digest(tenant), time.time() + 1e6
            )
            shown = written(made_up, bytes(KEY_BYTES))
        elif kind == "replayed":
            granted = leases.claim(ticket, tenant, engine_id)
            assert not isinstance(granted, str)
            if rng.randrange(2):
                leases.end(granted[0], len(BLOCKS))
            is_spent = True
        elif kind == "tenant":
            whose = rng.choice([other for other in ("", "ann", "bob", "ann\0", "annb") if other != tenant])
        elif kind == "stale":
            now[0] += LEASE_S
            is_spent = True
        elif kind == "engine":
            engine_id = rng.choice(("p", "P ", "another"))
        elif kind == "dropped":
            leases.drop_all()
            is_spent = True
        else:
            other = others.issue(BLOCKS, LAST, len(BLOCKS), tenant)
            assert other is not None
            shown = other
            others.drop_all()
        tried[kind] += 1
        served += not isinstance(leases.claim(shown, whose, engine_id), str)
        if not is_spent:
            granted = leases.claim(ticket, tenant, "P")
            assert not isinstance(granted, str), "what was refused took nothing away"
            assert leases.end(granted[0], 0) == 0
            good += 1
        leases.check_integrity()
    assert served == 0 and good > 300 and min(tried.values()) > 50
    refused = sum(number for name, number in leases.counts.items() if name.startswith("refused."))
    assert refused == 1000 and {f"refused.{name}" for name in ("forged", "spent", "tenant")} <= set(leases.counts)
    leases.drop_all()
    assert (len(leases), leases.num_pages) == (0, 0)


def test_tickets_of_other_weights_are_of_another_producer() -> None:
    """New weights begin new leases with a new key."""
    first = Leases(PRINT, PAGE_BYTES, 1 << 20, LEASE_S, "P")
    second = Leases(OTHER_PRINT, PAGE_BYTES, 1 << 20, LEASE_S, "P")
    ticket = first.issue(BLOCKS, LAST, len(BLOCKS), "t")
    assert ticket is not None and isinstance(second.claim(ticket, "t", "P"), str)
    assert second.counts["refused.forged"] == 1
