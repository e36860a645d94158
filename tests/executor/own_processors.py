"""Logits processors as users write them: sound ones and others, of the engine's own contract and of vLLM's."""

import time
from collections.abc import Sequence
from typing import Any

import torch
from core_compat.v1.sample.logits_processor import (  # type: ignore[import-not-found]
    AdapterLogitsProcessor,
    BatchUpdate,
    LogitsProcessor,
    process_dict_updates,
)
from torch import Tensor

from core.api.sampling_params import SamplingParams
from core.plugin.hookspecs import LoadContext
from core_runtime.contracts import BatchChanges, LogitsRow


def argument(params: SamplingParams, name: str) -> Any:
    return (params.extra_args or {}).get(name)


class Shifts:
    """Adds `shift` to the token after the newest one: so a row depends on its tokens. `fault` says what goes wrong."""

    is_argmax_invariant = False

    def __init__(self, context: LoadContext | None = None) -> None:
        self.known: set[tuple[str, int]] = set()
        self.sizes: list[int] = []

    def validate_params(self, params: SamplingParams) -> None:
        shift = argument(params, "shift")
        if shift is not None and not isinstance(shift, int | float):
            raise ValueError(f"shift is {shift!r}; expected a number.")

    def wants(self, params: SamplingParams) -> bool:
        return argument(params, "shift") is not None

    def update(self, changes: BatchChanges) -> None:
        self.known |= {key for key, _ in changes.started}
        self.known -= set(changes.finished)

    def apply(self, logits: Tensor, rows: Sequence[LogitsRow]) -> Tensor:
        self.sizes.append(len(rows))
        for index, row in enumerate(rows):
            assert row.key in self.known
            changed = self.fault(argument(row.params, "fault"), logits, index)
            if changed is not None:
                return changed
            newest = int(row.output[-1]) if len(row.output) else int(row.prompt[-1])
            logits[index, (newest + 1) % logits.shape[1]] += argument(row.params, "shift")
        return logits

    def fault(self, word: str | None, logits: Tensor, index: int) -> Any:
        if word == "raises":
            raise KeyError("a defect")
        if word == "hangs":
            time.sleep(30)
        if word == "shape":
            return logits[:, :-1]
        if word == "nothing":
            return "nothing"
        if word == "nan":
            logits[index, 0] = torch.nan
        if word == "exits":
            raise SystemExit(3)
        return None


class Late(Shifts):
    """Takes out what is less than `least` times as likely as the best, as min-p does."""

    is_argmax_invariant = True

    def wants(self, params: SamplingParams) -> bool:
        return argument(params, "least") is not None

    def apply(self, logits: Tensor, rows: Sequence[LogitsRow]) -> Tensor:
        for index, row in enumerate(rows):
            likely = torch.softmax(logits[index], 0)
            logits[index, likely < argument(row.params, "least") * likely.max()] = -torch.inf
        return logits


class Target(LogitsProcessor):
    """Written for vLLM: leaves `target_token` alone, for requests that name one."""

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        target = argument(sampling_params, "target_token")
        if target is not None and not isinstance(target, int):
            raise ValueError(f"target_token {target!r} is no integer")

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        assert vllm_config.scheduler_config.max_num_seqs > 0
        assert device.type == "cpu" and not is_pin_memory
        self.targets: dict[int, int] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(
            self.targets, batch_update, lambda params, prompt, output: argument(params, "target_token")
        )

    def apply(self, logits: Tensor) -> Tensor:
        for row, target in self.targets.items():
            kept = logits[row, target].clone()
            logits[row] = -torch.inf
            logits[row, target] = kept
        return logits


class Counts(LogitsProcessor):
    """Written for vLLM: the n-th token of an output is `start` + n. It sees the output grow."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self.outputs: dict[int, tuple[int, list[int]]] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        def state(params: SamplingParams, prompt: list[int] | None, output: list[int]) -> Any:
            start = argument(params, "start")
            return None if start is None else (start, output)

        process_dict_updates(self.outputs, batch_update, state)

    def apply(self, logits: Tensor) -> Tensor:
        for row, (start, output) in self.outputs.items():
            logits[row, start + len(output)] = 1000.0
        return logits


class ByRequest(AdapterLogitsProcessor):
    """Written for vLLM request by request: bans tokens that came before, in the prompt too."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        return ban if argument(params, "no_repeats") else None


def ban(prompt: list[int], output: list[int], logits: Tensor) -> Tensor:
    logits[[*prompt, *output]] = -torch.inf
    return logits


class Refuses:
    """Cannot be built."""

    def __init__(self, context: LoadContext) -> None:
        raise RuntimeError("no table of words")


class Half:
    """Of neither contract."""

    def __init__(self, context: LoadContext) -> None:
        self.context = context

    def apply(self, logits: Tensor) -> Tensor:
        return logits


NO_CLASS = 3
