"""The arguments of the executors `mp` and `ray`. Torch-free.

Owns: `RanksArguments`, `RayArguments`. Called by: their manifests, the executor. The configuration sets them from
`--tensor-parallel-size` and the like.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from core_runtime.specs.expert_placement import ExpertPlacement, Strategy


class RanksArguments(msgspec.Struct, frozen=True, kw_only=True):
    """The executor's own arguments."""

    ranks: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=64)],
        msgspec.Meta(description="processes that hold a part of every layer; --tensor-parallel-size sets it"),
    ] = 1
    stages: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=64)],
        msgspec.Meta(description="parts of the model's layers, one after the other; --pipeline-parallel-size sets it"),
    ] = 1
    context: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=64)],
        msgspec.Meta(
            description="ranks that divide keys and values by positions; --decode-context-parallel-size sets it"
        ),
    ] = 1
    timeout_seconds: Annotated[
        Annotated[float, msgspec.Meta(gt=0)],
        msgspec.Meta(description="how long a rank may be silent in a step before the engine ends"),
    ] = 30.0
    communicator: Annotated[
        str,
        msgspec.Meta(
            description="how ranks add their sums: native (shared memory), or gloo", pattern="^(native|gloo)$"
        ),
    ] = "native"
    placement: Annotated[
        str,
        msgspec.Meta(
            description="how ranks share experts; --expert-placement-strategy sets it", pattern="^(linear|round_robin)$"
        ),
    ] = "linear"
    redundant_experts: Annotated[
        Annotated[int, msgspec.Meta(ge=0)], msgspec.Meta(description="slots of each layer beyond one for each expert")
    ] = 0
    balance_interval: Annotated[
        Annotated[int, msgspec.Meta(ge=0)],
        msgspec.Meta(description="steps between two decisions about moves of experts; 0: they stay"),
    ] = 0
    balance_window: Annotated[
        Annotated[int, msgspec.Meta(ge=1)], msgspec.Meta(description="steps whose choices such a decision counts")
    ] = 1000
    balance_log_interval: Annotated[
        Annotated[int, msgspec.Meta(ge=0)],
        msgspec.Meta(description="steps between two lines of the log about the balance; 0: none"),
    ] = 0

    nodes: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=64)],
        msgspec.Meta(description="hosts, which have equally many ranks; --nnodes sets it"),
    ] = 1
    address: Annotated[str, msgspec.Meta(description="of the first host; --master-addr sets it")] = "127.0.0.1"
    port: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=65535)],
        msgspec.Meta(description="of the first host; --master-port sets it"),
    ] = 29501
    key_file: Annotated[
        str | None, msgspec.Meta(description="file with the secret of the hosts; --engine-key-file sets it")
    ] = None
    join_seconds: Annotated[
        Annotated[float, msgspec.Meta(gt=0)],
        msgspec.Meta(description="how long hosts wait for each other; --engine-connect-timeout sets it"),
    ] = 600.0
    launched: Annotated[
        bool,
        msgspec.Meta(
            description="whether address and port are those of a launcher's store, where ranks have yet to meet; "
            "--distributed-executor-backend external_launcher sets it"
        ),
    ] = False

    @property
    def experts(self) -> ExpertPlacement:
        """How ranks share experts."""
        strategy: Strategy = "round_robin" if self.placement == "round_robin" else "linear"
        return ExpertPlacement(strategy, self.redundant_experts, self.balance_interval > 0)


class RayArguments(RanksArguments, frozen=True, kw_only=True):
    """The arguments of the executor `ray`. nodes: bundles of the placement group, one of which is the engine's own."""

    address: Annotated[str, msgspec.Meta(description="of the engine; empty: that of its node in the cluster")] = ""
    port: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=65535)],
        msgspec.Meta(description="first of the ports of the engine; 0: free ones"),
    ] = 0
    spread: Annotated[
        bool, msgspec.Meta(description="whether each bundle is on a node of its own; otherwise on as few as possible")
    ] = False
    nsight: Annotated[
        bool, msgspec.Meta(description="run the actors with Nsight Systems; --ray-workers-use-nsight sets it")
    ] = False
