"""Rules about the order of kernels.

Owns: those rules and their order. Called by: the table (`core_config.rules`).
"""

from __future__ import annotations

from core.api.errors import nearest
from core_config.rules.rule import Facts, Findings, Problem, Rule
from core_runtime.specs.operation_order import OPERATIONS, SPECIAL_OPERATIONS, TORCH, as_order


def an_order_names_operations_and_providers(facts: Facts) -> Findings:
    """The order of one operation names operations that have one, and providers that were chosen, or torch."""
    given = facts["ir_op_priority"]
    try:
        order = as_order(given)
    except ValueError as error:
        yield Problem(
            f"--ir-op-priority.{error}: expected names of providers, such as {','.join([*facts.kernels, TORCH[0]])}."
        )
        return
    known = (*OPERATIONS, *SPECIAL_OPERATIONS)
    for operation, names in order.items():
        if operation not in known:
            yield Problem(
                f"--ir-op-priority.{operation}: no such operation; known: {', '.join(known)}.{nearest(operation, known)}"
            )
        for name in names:
            if name not in (*facts.kernels, *TORCH):
                there = ", ".join([*facts.kernels, TORCH[0]])
                yield Problem(
                    f"--ir-op-priority.{operation} {name}: it is none of the providers here, {there}; --kernels chooses them."
                )


RULES: tuple[Rule, ...] = (Rule(an_order_names_operations_and_providers, "plugins"),)
