"""What an engine tells servers that quote: the cost of its steps, cached tokens, bytes of keys and values."""

from array import array

import pytest
from fakes import FakeExecutor, make_config

from core.api.messages import EngineRequest
from core.api.sampling_params import SamplingParams
from core.engine.core import EngineCore
from core.scheduler.step_cost import StepCost
from core_observers.engine.step_costs import ENOUGH, SELDOM, StepCosts


def prefix(tokens: list[int], **fields: object) -> dict[str, object]:
    return {"tokens": array("i", tokens).tobytes(), **fields}


def run(core: EngineCore, name: str, tokens: list[int], count: int = 5, **fields: object) -> None:
    core.add([EngineRequest(name, 0, tokens, SamplingParams(max_tokens=count), seed=1, **fields)])  # type: ignore[arg-type]
    while core.has_work():
        core.step()


@pytest.fixture
def core() -> EngineCore:
    config = make_config()
    return EngineCore(config, FakeExecutor(config), observers=[StepCosts()])


def test_it_learns_from_the_first_call_on(core: EngineCore) -> None:
    run(core, "before", list(range(10, 40)))
    assert core.call("step_costs", {"prefixes": [], "lengths": []})["cost"] is None
    run(core, "after", list(range(20, 50)))
    state = core.call("step_costs", {"prefixes": [], "lengths": []})["cost"]
    cost = StepCost.restored(state)
    assert cost.num_observed >= 5 and cost.predict(30, 1, 30) > 0.0


def test_cached_tokens_are_looked_at_for_the_own_tenant_alone(core: EngineCore) -> None:
    tokens = list(range(10, 50))
    run(core, "a", tokens, tenant="t")
    used = core.stats().prefix_queries
    own, other, salted = (prefix(tokens, tenant="t"), prefix(tokens, tenant="u"), prefix(tokens, tenant="t", salt="s"))
    facts = core.call("step_costs", {"prefixes": [own, other, salted], "lengths": [40, 80]})
    size = core.config.cache.block_size
    assert facts["cached"] == [(len(tokens) - 1) // size * size, 0, 0]
    assert facts["bytes"][1] == 2 * facts["bytes"][0] and facts["room"] > 0
    assert core.stats().prefix_queries == used and core.stats().kv_cache_usage == 0.0


def test_where_requests_may_move_it_learns_from_few_of_the_steps_that_continue_decodes() -> None:
    config = make_config(max_model_len=512)
    core = EngineCore(config, FakeExecutor(config), observers=[StepCosts(learns=True)])

    def observed() -> int:
        return StepCost.restored(core.call("step_costs", {"prefixes": [], "lengths": [40]})["cost"]).num_observed

    run(core, "first", list(range(10, 40)), ENOUGH)
    begun = observed()
    assert ENOUGH <= begun <= ENOUGH + 2, "from the first steps all"
    run(core, "second", list(range(20, 50)), 10 * SELDOM)
    assert begun + 10 <= observed() <= begun + 13, "the prompt, and one of many"
    assert core.call("step_costs", {"prefixes": [], "lengths": []})["cost"] is not None
    before = observed()
    run(core, "third", list(range(30, 60)), 20)
    assert observed() >= before + 20, "since a server has asked for a quote"
