"""What must not change a request's tokens, as a table, and the choice of cases from it.

`covering` picks cases so that every pair of values of two axes occurs in one case: the whole product would be 27648 cases
for each model, type and KV type, the pairs are about a dozen.
"""

from itertools import combinations

Case = dict[str, str]

RUN_AXES: dict[str, tuple[str, ...]] = {
    "company": ("random", "alone"), "chunk": ("whole", "16", "7", "1"), "cache": ("cold", "warm"),
    "block": ("16", "1", "128"), "memory": ("ample", "tight"), "planning": ("sync", "async"),
    "drafts": ("none", "ngram"), "client": ("inproc", "zmq"), "threads": ("2", "1"),
    "adapters": ("none", "beside", "own"), "interrupted": ("no", "sleep", "death"),
    "steps": ("recorded", "eager"),
}  # fmt: skip
TYPE_AXES: dict[str, tuple[str, ...]] = {
    "dtype": ("bfloat16", "float32"),
    "kv": ("auto", "fp8_e4m3", "int8_per_token_head", "k8v4_per_token_head"),
}
BASELINE: Case = {
    "company": "alone", "chunk": "whole", "cache": "cold", "block": "16", "memory": "ample", "planning": "sync",
    "drafts": "none", "client": "inproc", "threads": "1", "adapters": "none",
    "interrupted": "no", "steps": "eager",
}  # fmt: skip
"""How the expected results are made: the plainest way."""

ADAPTERS = frozenset({"beside", "own"})
"""Values of `adapters` with which an engine has some: others use them, or the requests in question do, too."""

Pair = frozenset[tuple[str, str]]
IMPOSSIBLE: frozenset[Pair] = frozenset(
    {
        frozenset({("company", "alone"), ("memory", "tight")}),  # one request alone never has too little memory
        frozenset({("client", "inproc"), ("interrupted", "death")}),  # the test would die, too
    }
)


def covering(axes: dict[str, tuple[str, ...]]) -> list[Case]:
    """Cases in which every possible pair of values occurs, the same ones each time."""
    pairs = {frozenset({(a, x), (b, y)}): None for a, b in combinations(axes, 2) for x in axes[a] for y in axes[b]}
    left = {pair: None for pair in pairs if pair not in IMPOSSIBLE}
    cases = []
    while left:
        case = dict(next(iter(left)))
        for axis, values in axes.items():
            if axis not in case:
                gains = [_gain(case, axis, value, left) for value in values]
                case[axis] = values[gains.index(max(gains))]
        left = {pair: None for pair in left if not pair <= case.items()}
        cases.append({axis: case[axis] for axis in axes})
    return cases


def _gain(case: Case, axis: str, value: str, left: dict[Pair, None]) -> int:
    """How many pairs that are left the value would add; the first of equal ones is taken."""
    pairs = [frozenset({(axis, value), other}) for other in case.items()]
    return -1 if any(pair in IMPOSSIBLE for pair in pairs) else sum(pair in left for pair in pairs)


def label(case: Case) -> str:
    """For the test's name."""
    return "-".join(
        value if axis in ("company", "cache", *TYPE_AXES) else f"{axis}:{value}" for axis, value in case.items()
    )
