"""The executor `mp`: rank 0 computes in the engine's process, the other ranks in children.

Owns: the group of an engine's ranks, the commands to them, and what a failure of one means. Never does: compute (workers do).
Called by: the engine core; the manifest.

Every plan goes to all ranks as bytes. A rank that raises fails the step on all of them; a rank that ends, or that is silent for
too long, ends the engine, whose owner starts another one.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import weakref
from collections.abc import Callable
from dataclasses import replace

import msgspec

from core.api.adapters import AdapterFacts, AdapterSource
from core.api.config import EngineConfig
from core.api.errors import CoreError, EngineDeadError
from core.api.kv_transfer import Page
from core.api.sampling_params import SamplingParams
from core.api.step_plan import NewSequence, StepPlan, StepResult
from core.api.structured_outputs import CompiledGrammar
from core_distributed import agreement, commands
from core_distributed.adapters import LeadingAdapters, RankAdapters, Reading
from core_distributed.arguments import RanksArguments
from core_distributed.balance import Balance
from core_distributed.calls import Call, Outcome, RanksReloader, perform
from core_distributed.children import Children
from core_distributed.commands import Command, Kind
from core_distributed.communicators import ranks_of, slot_bytes
from core_distributed.hosts.opening import open_hosts
from core_distributed.hosts.started import StartedHosts
from core_distributed.layout import Groups, Layout, layout_bytes
from core_distributed.pages import LeadingPages
from core_distributed.rank import Start
from core_distributed.rank_config import is_crowded, rank_config
from core_kv_connectors.peers.page_shape import PageShape
from core_platforms.cpu.ranks import SPIN_MICROSECONDS
from core_runtime.executor.reloading.reloader import Reloader
from core_runtime.executor.steps.plan_wire import PlanEncoder
from core_runtime.executor.worker_class import worker_class
from core_supervision.link.anonymous_file import anonymous_file

logger = logging.getLogger(__name__)


class RanksExecutor:
    """Runs steps on all ranks. The engine core owns it.

    num_blocks, page_bytes: number of KV blocks that every rank has, and bytes of one in all ranks.
    new_page: returns memory of a KV page that all ranks see; None over several hosts.
    numerics, phases, state: see `Worker`.
    balance: moves experts between ranks; None: they stay.
    reloader: releases and restores the memory of all ranks.
    started: the other hosts, if the engine starts them; owned by this object.
    """

    def __init__(self, config: EngineConfig, arguments: RanksArguments, started: StartedHosts | None = None) -> None:
        self._arguments = arguments
        self._started = started
        self._layout = Layout(arguments.ranks, arguments.stages, arguments.nodes)
        self._size = self._layout.size
        self._number = 0
        self._plans = PlanEncoder()
        self._failure = ""
        self._closed = False
        self._pages: LeadingPages | None = None
        self.new_page: Callable[[], Page] | None = None
        self._children: Children
        room = slot_bytes(config.model.vocab_size, self._layout.tensor)
        pages = -1
        if self._layout.hosts == 1:  # ranks of other hosts would not see it
            pages = anonymous_file("core-pages", 0)
            weakref.finalize(self, os.close, pages)  # pages that somebody keeps stay valid
        configs = self._open(config, room, pages)
        self._group = self._groups.world
        try:
            self._start(configs, pages)
        except BaseException:
            self._groups.end()
            self._children.end()
            self._groups.close(0.0)
            raise

    def _open(self, config: EngineConfig, room: int, pages: int) -> list[EngineConfig]:
        """Start the other ranks; returns the configuration of each rank. room: bytes of a slot. pages: see `Children`."""
        memory = anonymous_file("core-ranks", layout_bytes(self._layout, room))
        try:
            if self._layout.hosts > 1:
                self._groups, self._children, configs = open_hosts(
                    config, self._arguments, self._layout, memory, room, self._started
                )
                return configs
            self._groups = Groups(memory, 0, self._layout, room)
            patience_s = 2 * self._arguments.timeout_seconds  # A step that waits for a stopped rank says more.
            self._children = Children(self._layout, memory, room, self._groups.end, patience_s=patience_s, pages=pages)
            return [rank_config(config, rank, self._size) for rank in range(self._size)]
        finally:
            os.close(memory)

    def _start(self, configs: list[EngineConfig], pages: int) -> None:
        """Build the workers of all ranks at the same time. configs: configuration of each rank. pages: see `Children`."""
        own = configs[0]
        spin = 0 if is_crowded(own, self._layout.of_host) else SPIN_MICROSECONDS
        self._groups.set_patience(0, spin)
        start = Start(configs, self._arguments, spin)
        self._send(Kind.START, msgspec.msgpack.encode(start))
        try:
            self._ranks = ranks_of(self._groups, self._arguments)
            self.worker = worker_class(own)(own, self._ranks)
        except Exception:
            self._raise_death(CoreError)
            raise
        try:
            standing = agreement.standing_of(self.worker, self._layout, 0)
            answers = self._group.exchange(agreement.encode(standing))
        except Exception:
            self.worker.close()
            self._raise_death(CoreError)
            raise
        try:
            standings = [agreement.decode(answer, agreement.Standing) for answer in answers]
            self.num_blocks = agreement.agreed_blocks(standings)
        except Exception:
            self.worker.close()
            raise
        sizes = [standing.page_bytes for standing in standings]
        self.page_bytes = sum(sizes)
        if pages >= 0:
            self._pages = LeadingPages(pages, sizes)
            self.new_page = self._pages.new_page
        self.numerics = agreement.joint_numerics(standings)
        self.phases = self.worker.phases
        self.state = self.worker.state
        self._spin = spin
        self._groups.set_patience(self._arguments.timeout_seconds, spin)
        moves = self._arguments.balance_interval > 0
        self.balance = Balance(self.worker, self._group, self._arguments) if moves else None
        self._own = Reloader(self.worker)
        self.reloader = RanksReloader(self._own, self._ask)
        self._own_adapters = RankAdapters(self.worker, lambda: self._own.state)
        self._adapters = LeadingAdapters(self._own_adapters, self._ask, self._tell)

    @property
    def page_shape(self) -> PageShape:
        """The shape of a KV page, for engines with another number of ranks."""
        divides = self._layout.stages == 1 and self._arguments.context == 1
        return self.worker.page_shape(self._size) if divides else PageShape(self._size)

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step on all ranks and return the result of rank 0.

        Raises EngineDeadError when a rank has ended, or is silent.
        """
        self.check()
        self.tell_adapters()
        plan = self._placed(plan)
        try:
            self._send(Kind.STEP, self._plans.encode(_for_others(plan)))
            if self.balance is not None:
                self.balance.before_step()
            result = self.worker.execute(self._part(plan))
            self._group.barrier()
        except BaseException as error:
            self._explain(error, self._group.abort)
            raise
        if self._pages is not None:
            self._pages.complete(plan, result)
        return result

    def _placed(self, plan: StepPlan) -> StepPlan:
        """Return the plan of the next step with places for its KV pages."""
        return plan if self._pages is None else self._pages.place(plan, self._number + 1)

    def _part(self, plan: StepPlan) -> StepPlan:
        """Return rank 0's part of a placed plan."""
        return plan if self._pages is None else self._pages.own(plan)

    def _explain(self, error: BaseException, give_up: Callable[[], None]) -> None:
        """Raise what an error of a step means. give_up: has the other ranks leave the step.

        Raises EngineDeadError when a rank has ended or is silent, RuntimeError for an error of another rank.
        """
        if _is_of_silence(error):
            self._failure = self._children.silence(self._groups.late, self._arguments.timeout_seconds)
            faulthandler.dump_traceback()
            raise EngineDeadError(self._failure) from error
        self._raise_death(EngineDeadError)
        give_up()
        said = "; ".join(self._children.words())
        if said and isinstance(error, Exception):
            raise RuntimeError(said) from error

    def _ask(self, call: Call) -> list[Outcome]:
        """Carry out a call on all ranks. Raises EngineDeadError when one has ended."""
        self.check()
        self._groups.set_patience(0, self._spin)  # reading weights may take minutes
        try:
            self._send(Kind.CALL, msgspec.msgpack.encode(call))
            answers = self._group.exchange(agreement.encode(perform(self._own, self._own_adapters, call)))
        except Exception:
            self._raise_death(EngineDeadError)
            raise
        finally:
            self._groups.set_patience(self._arguments.timeout_seconds, self._spin)
        return [agreement.decode(answer, Outcome) for answer in answers]

    def check(self) -> None:
        """Raise EngineDeadError if a rank has ended."""
        self._failure = self._failure or self._children.death
        if self._failure:
            raise EngineDeadError(self._failure)

    def read_adapter(self, source: AdapterSource) -> AdapterFacts:
        """Read rank 0's share of an adapter; called in another thread than that of the steps. The other ranks follow."""
        return self._adapters.read(source)

    def place_adapter(self, digest: str) -> None:
        """Let later plans use an adapter that was read, on all ranks or none. Raises UserError."""
        self._adapters.place(digest)

    def drop_adapter(self, digest: str) -> None:
        """Forget an adapter that no sequence uses, on all ranks."""
        self._adapters.drop(digest)

    @property
    def has_untold(self) -> bool:
        """Whether rank 0 reads adapters of which the other ranks do not know yet."""
        return self._adapters.has_untold

    def tell_adapters(self) -> None:
        """Have the other ranks read the adapters that rank 0 reads. Called in the thread of the steps, between two of them."""
        self._adapters.tell()

    def _tell(self, reading: Reading) -> None:
        """Send what the other ranks read. Raises EngineDeadError when one has ended."""
        try:
            self._send(Kind.READ, msgspec.msgpack.encode(reading))
        except Exception:
            self._raise_death(EngineDeadError)
            raise

    def is_prepared(self, grammar: CompiledGrammar) -> bool:
        """Whether a step could use this grammar without delay."""
        return self.worker.grammars.is_prepared(grammar)

    def prepare(self, grammar: CompiledGrammar) -> None:
        """Prepare a grammar; called in another thread than that of the steps."""
        self.worker.grammars.prepare(grammar)

    def check_params(self, params: SamplingParams) -> str:
        """Validate a request's parameters with the logits processors. Returns an error message, empty if they are valid."""
        processors = self.worker.processors
        return "" if processors is None else processors.check(params)

    def close(self) -> None:
        """End the other ranks and close the worker. Does nothing when called again."""
        if self._closed:
            return
        self._closed = True
        self._children.expect_ends()
        if not self._children.death and not self._failure:
            self._send(Kind.END, b"")
        self._children.end()
        self._groups.end()
        self._groups.close(0.0)
        self.worker.close()

    def _send(self, kind: Kind, payload: bytes) -> None:
        """Begin the next command on all ranks."""
        self._number += 1
        self._children.step = self._number
        self._group.begin(self._number)
        self._group.write(commands.encode(Command(kind, self._number, payload)))

    def _raise_death(self, kind: type[CoreError]) -> None:
        """Raise an error of this kind if a rank has ended."""
        self._children.look()
        if self._children.death:
            raise kind(self._children.death)


def _is_of_silence(error: BaseException | None) -> bool:
    """Whether a rank was silent for too long. The worker wraps errors of the platform's code, which waits for ranks."""
    while error is not None and not isinstance(error, TimeoutError):
        error = error.__cause__
    return error is not None


def _for_others(plan: StepPlan) -> StepPlan:
    """Return a plan without what rank 0 alone needs to draw tokens."""
    if not any(new.request.grammar is not None for new in plan.new):
        return plan
    return replace(plan, new=[_without_grammar(new) for new in plan.new])


def _without_grammar(new: NewSequence) -> NewSequence:
    return replace(new, request=msgspec.structs.replace(new.request, grammar=None))
