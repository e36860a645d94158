"""Checks of platforms: the probe, the proposals, the opened device.

Owns: the checks. Never does: require a device; without one, only the parts that need none run.
Called by: `core_kit.suite`.
"""

from __future__ import annotations

import functools
from typing import Any

from core.api.errors import CoreError, PluginError, nearest
from core.api.specs import KernelQuery
from core.args.schema import schema
from core.plugin.hookspecs import Device, PlatformView, Probe
from core_config.arguments import foreign
from core_config.arguments.convert import convert
from core_kit.case import Failure, Skipped, Subject
from core_runtime.contracts import Runtime
from core_runtime.specs.checkpoint import CheckpointFacts

CONTEXTS = ("serve", "llm", "explain")
DTYPES = ("bfloat16", "float16", "float32")


def probe_answers(subject: Subject) -> None:
    """The probe answers in time, in a process of its own: devices, or a sentence why there are none."""
    answer = _probe(subject)
    if not answer.devices and not answer.unavailable.strip():
        raise Failure("the probe found no device and does not say why")
    for device in answer.devices:
        if device.name.partition(":")[0] != subject.row.name:
            raise Failure(
                f"the probe names a device '{device.name}', expected '{subject.row.name}' or '{subject.row.name}:N'"
            )
        if device.memory_bytes <= 0:
            raise Failure(
                f"device '{device.name}' has {device.memory_bytes} bytes of memory; the memory plan needs to know"
            )


def proposals_are_valid(subject: Subject) -> None:
    """It proposes values that the arguments can have, each with a reason, on small and large devices."""
    fields = schema().fields
    values = foreign.WithNeutral({name: field.default for name, field in fields.items()})
    for context in CONTEXTS:
        for memory in (1 << 30, 80 << 30):
            device = Device(subject.row.name, "a device", memory, memory, processors=4)
            facts = CheckpointFacts("model", "safetensors", "llama", tensor_dtypes=("BF16",))
            view = PlatformView(context, facts, values, (), device)
            proposals = subject.manifest.call("core_propose", view=view) or {}
            for name, proposal in proposals.items():
                if not proposal.reason.strip():
                    raise Failure(f"it proposes {name} without a reason; `core config explain` has nothing to show")
                row = foreign.named(name)
                if name == "attention_backend" or (row is not None and row.is_neutral(proposal.value)):
                    continue
                if name not in fields:
                    raise Failure(f"it proposes '{name}', which is no engine argument.{nearest(name, fields)}")
                try:
                    convert(fields[name], proposal.value)
                except ValueError as error:
                    raise Failure(f"it proposes {name} = {proposal.value!r}: {error}") from None


def opens_its_devices(subject: Subject) -> None:
    """open gives a complete runtime for every device that the probe found."""
    runtime = _runtime(subject)
    expected = [*Runtime.__annotations__, *_methods(Runtime)]
    lacking = [name for name in expected if not hasattr(runtime, name)]
    if lacking:
        raise Failure(f"open answered a {type(runtime).__name__} without {', '.join(lacking)}; see Runtime")


def refuses_other_devices(subject: Subject) -> None:
    """open refuses a device that does not exist with a sentence."""
    _runtime(subject)
    try:
        subject.loaded.open(f"{subject.row.name}:4096", [])
    except CoreError as error:
        if str(error).strip():
            return
    except Exception as error:
        raise Failure(f"open raises {type(error).__name__} for a device that does not exist; raise UserError") from None
    raise Failure("open accepts a device that does not exist; raise UserError")


def memory_is_zeroed(subject: Subject) -> None:
    """allocate gives zeroed bytes of its own, of exactly the size asked for."""
    import torch

    runtime = _runtime(subject)
    first = runtime.allocate(4096)
    second = runtime.allocate(4096)
    for memory in (first, second):
        is_bytes = memory.dtype is torch.uint8 and tuple(memory.shape) == (4096,)
        if not is_bytes or bool(memory.any()):
            raise Failure(
                f"allocate(4096) gave {memory.dtype} {tuple(memory.shape)}, expected 4096 zeroed bytes of uint8"
            )
    first.fill_(7)
    if bool(second.any()):
        raise Failure("two allocations share their memory")
    if runtime.available_memory() <= 0:
        raise Failure(f"available_memory tells {runtime.available_memory()} bytes")


def activations_have_a_dtype(subject: Subject) -> None:
    """activation_dtype answers for every dtype that it declares, and is the one declared for the memory plan."""
    import torch

    runtime, declared = _runtime(subject), subject.manifest.spec.capabilities
    for dtype in declared.get("dtypes") or DTYPES:
        answer = runtime.activation_dtype(dtype)
        if not isinstance(answer, torch.dtype):
            raise Failure(f"activation_dtype({dtype!r}) answers {answer!r}, expected a torch.dtype")
        planned = declared.get("activation_dtype", dtype)
        if str(answer).removeprefix("torch.") != planned:
            raise Failure(
                f"with {dtype}, activations are {answer}, but the memory plan counts with {planned}; declare activation_dtype"
            )


def kernels_are_complete(subject: Subject) -> None:
    """The runtime's kernels serve every operation of a forward pass, also without any provider."""
    from core_runtime.specs.operation_order import OPERATIONS

    kernels = _runtime(subject).kernels
    for op in OPERATIONS:
        if not callable(getattr(kernels, op, None)):
            raise Failure(
                f"the runtime's kernels have no '{op}'; build them with core_runtime.layers.kernels.KernelSet"
            )
    reasons = kernels.supports(KernelQuery("rms_norm", subject.row.name))
    if reasons:
        raise Failure(f"the runtime's kernels refuse rms_norm: {reasons[0]}")


CHECKS = (
    probe_answers,
    proposals_are_valid,
    opens_its_devices,
    refuses_other_devices,
    memory_is_zeroed,
    activations_have_a_dtype,
    kernels_are_complete,
)


def _probe(subject: Subject) -> Probe:
    answer = subject.registry.probe([subject.row])[subject.row]
    if isinstance(answer, PluginError):
        raise answer
    return answer


def _runtime(subject: Subject) -> Any:
    """Return the first device, opened once per subject and closed with the process. Raises Skipped without a device."""
    answer = _probe(subject)
    if answer.unavailable:
        raise Skipped(f"there is no device here: {answer.unavailable}")
    return _opened(subject.loaded, answer.devices[0].name)


@functools.lru_cache(maxsize=4)
def _opened(platform: Any, device: str) -> Any:
    return platform.open(device, [])


def _methods(contract: type) -> list[str]:
    names = []
    for name, value in vars(contract).items():
        if callable(value) and not name.startswith("_"):
            names.append(name)
    return names
