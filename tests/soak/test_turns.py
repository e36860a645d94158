"""Turns of sessions in a soak: equal tokens must have equal answers, whatever happened between."""

import json
import random
from typing import Any

import pytest

from tests.soak.clients import Clients
from tests.soak.run import Extent
from tests.soak.tally import Tally

MOST = 40


@pytest.mark.parametrize("is_right", [True, False])
def test_a_turn_that_is_answered_otherwise_than_before_is_wrong(
    is_right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tally = Tally()
    clients = Clients(None, tally, [], {})  # type: ignore[arg-type]  # no request is sent

    def answered(method: str, path: str, fields: dict[str, Any]) -> bytes:
        if "messages" not in fields:
            return b""
        if tally.turns >= MOST:
            clients.over.set()
        text = json.dumps(fields["messages"])
        ids = [len(text), 0 if is_right else tally.turns]
        choice = {"message": {"content": f"answer {len(text)}"}, "token_ids": ids}
        return json.dumps({"prompt_token_ids": list(text.encode()), "choices": [choice]}).encode()

    monkeypatch.setattr(clients, "_session", answered)
    monkeypatch.setattr(random.Random, "uniform", lambda *_: 0.0)
    clients.talking(random.Random(1))
    assert tally.turns > MOST
    assert (not tally.wrong) is is_right


def test_a_soak_of_turns_ends_with_the_last_of_them_or_after_two_hours() -> None:
    tally, extent = Tally(), Extent(1200.0, turns=3)
    assert not extent.is_over(1300.0, tally), "the time alone does not end it"
    assert extent.is_over(7200.0, tally)
    for _ in range(3):
        tally.count("turns")
    assert extent.is_over(1.0, tally)
    assert "3 turns" in tally.totals
