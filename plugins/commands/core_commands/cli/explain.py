"""Output of a resolution as text and as JSON.

Owns: the output of `core config explain` and `core plugins explain`. Never does: resolve. Called by: the commands.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from core.api.errors import UserError
from core.api.specs import KVGroup
from core.commands.tables import print_table
from core.kv.groups import UNLIMITED
from core_config.explained import explained, hidden
from core_config.layout_cost import LayoutCost
from core_config.resolve import Resolution
from core_config.stages.memory import MemoryPlan, human_bytes
from core_formats.response_format import ResponseFormat
from core_formats.selection import AnswerFormat, served_format
from core_frontend.prompts.tokenizing import load_tokenizer

UNTOLD = "known when the engine is up: a plugin does not declare it"


def explanation(resolution: Resolution) -> dict[str, Any]:
    """Return the whole resolution as plain values."""
    found = explained(resolution)
    found["operations"] = msgspec.to_builtins(resolution.computed())
    found["layout"] = msgspec.to_builtins(resolution.layout)
    found["response_format"] = msgspec.to_builtins(response_format(resolution))
    return found


def response_format(resolution: Resolution) -> AnswerFormat:
    """Return the format with which a server would parse answers; where no tokenizer can be read, a format without a
    row's parts.
    """
    try:
        tokenizer = load_tokenizer(resolution.manifest.tokenizer, resolution.engine)
    except UserError as error:
        return AnswerFormat(ResponseFormat(name="text"), reason=str(error))
    if tokenizer is None:
        return AnswerFormat(ResponseFormat(name="text"), reason="there is no tokenizer")
    model = resolution.engine.model
    return served_format(resolution.server.answers, tokenizer, resolution.server.chat_template, model.eos_token_ids)


def print_explanation(resolution: Resolution) -> None:
    """Print non-default arguments, selections with rejected candidates, and the memory plan."""
    print(f"model     {resolution.engine.model.model}")
    print(f"device    {resolution.engine.device}")
    print(f"numerics  {resolution.numerics or UNTOLD}")
    for warning in resolution.warnings:
        print(f"warning   {warning}")
    _heading("Arguments (all that are not at their default)")
    rows = [
        [f"  {name}", str(hidden(name, value)), origin, reason]
        for name, (value, origin, reason) in resolution.arguments.items()
        if origin != "default"
    ]
    print_table(("  name", "value", "from", "because"), rows)
    _heading("Plugins")
    for selection in resolution.selections:
        print(f"  {selection.kind}: {', '.join(selection.chosen) or 'none'} ({selection.why})")
        for candidate in selection.candidates:
            if candidate.verdict != "chosen":
                print(f"      {candidate.name}: {candidate.verdict}: {'; '.join(candidate.reasons)}")
    _heading("Operations")
    rows = [
        [f"  {', '.join(row.operations)}", row.by, row.same_bits, ", ".join(row.others)]
        for row in resolution.computed()
    ]
    print_table(("  what", "computed by", "same bits in every batch", "could be computed by"), rows)
    _heading("Waivers of: same request, same tokens")
    for waiver in resolution.waivers or ["none"]:
        print(f"  {waiver}")
    _heading("Format of answers")
    found = response_format(resolution)
    parts = [name for name, part in (("reasoning", found.row.reasoning), ("tool calls", found.row.calls)) if part]
    print(f"  {found.row.name}: {' and '.join(parts) or 'all of an answer is text'} ({found.reason})")
    _print_sizes(resolution)


def _print_sizes(resolution: Resolution) -> None:
    _heading("Memory, by shapes")
    remote = resolution.server.remote
    if remote is not None and remote.role == "api_server":
        print("  none here: the engine's command explains its own, and its values are what the API server goes by")
    else:
        _print_memory(resolution.memory)
    if resolution.layout is not None:
        _print_layout(resolution.layout)


def _print_layout(layout: LayoutCost) -> None:
    _heading(f"A step on paper: what a rank sends and reads (engines: {layout.engines}, ranks of each: {layout.ranks})")
    for name, cost in layout.steps.items():
        print(f"  {name}")
        for line in cost.lines():
            print(f"      {line}")
    for note in layout.notes:
        print(f"  {note}")


def _print_memory(plan: MemoryPlan) -> None:
    blocks = f"{plan.num_blocks} blocks of {plan.block_size} tokens, {human_bytes(plan.block)} each"
    longest = f"{plan.max_concurrency:.1f} requests of {plan.max_model_len} tokens at the same time"
    groups = ", ".join(map(_group, plan.groups))
    states = f"; {human_bytes(plan.state)} of states for each sequence" if plan.state else ""
    resident = f"at most {plan.num_adapters} of {human_bytes(plan.adapter)}: the largest rank on all matrices of blocks"
    tower = f"in the host's memory, with at most {human_bytes(plan.tower_rows)} of rows for later prompts"
    types = ", ".join(f"{dtype} in {count} layers" for dtype, count in plan.kept_layers.items())
    rows = [
        ["  weights", human_bytes(plan.weights), "as the kernels hold them"],
        *(_offloaded(plan) if plan.offload is not None else []),
        *([["  proposer", human_bytes(plan.proposer), "its own weights"]] if plan.proposer else []),
        *([["  adapters", human_bytes(plan.adapters), resident]] if plan.adapters else []),
        *([["  tower", human_bytes(plan.tower), tower]] if plan.tower else []),
        ["  KV cache", human_bytes(plan.kv), blocks],
        ["", "", f"{_tokens(plan)} tokens of {human_bytes(round(plan.kv_per_token))}; {longest}"],
        ["", "", f"groups of layers: {groups}{states}"],
        *([["", "", f"stored as {types}"]] if types else []),
        *([["", "", f"{plan.readers} more layers read those of earlier ones"]] if plan.readers else []),
        ["  workspace", human_bytes(plan.workspace), "buffers of the largest step; untouched pages cost nothing"],
    ]
    print_table(("  what", "size", "of"), rows)


def _offloaded(plan: MemoryPlan) -> list[list[str]]:
    """Return the rows about weights in host memory."""
    assert plan.offload is not None, "only then are there such rows"
    where = f"in the host's memory, of {len(plan.offload.roles)} blocks"
    rows = [["  of them", human_bytes(plan.offloaded), f"{where}, read there by kernels"]]
    if not plan.offload.in_place:
        rows[0][2] = f"{where}, copied to the device ahead of each"
        rows.append(
            ["  slots", human_bytes(plan.slots), f"on the device: {plan.offload.slots} that these blocks share"]
        )
    return rows


def _group(group: KVGroup) -> str:
    if group.kind == "state":
        return f"{len(group.layers)} with a state"
    return f"{len(group.layers)} that see " + (f"{group.window} tokens" if group.window else "all")


def _tokens(plan: MemoryPlan) -> str:
    """Format the tokens that fit for one sequence; any number if all layers have windows."""
    return "any number of" if plan.tokens >= UNLIMITED - plan.block_size else str(plan.tokens)


def _heading(text: str) -> None:
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}")
