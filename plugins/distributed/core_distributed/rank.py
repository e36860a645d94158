"""The process of one rank other than the first: `core_distributed.rank --memory FD --words FD --rank 1 ...`.

Owns: the process around one worker, and what each command does there. Never does: decide anything: rank 0 draws tokens and says
when to end. Called by: `Children`, as a child whose standard input stays open while the engine lives.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import logging
import os
import signal
import sys
from functools import partial

import msgspec

from core.api.config import EngineConfig
from core.api.step_plan import StepPlan
from core.api.weights import WeightsState
from core.logging_setup import setup_logging
from core.processes import end_with_parent, leave_signals_to_parent
from core_distributed import agreement, calls, commands
from core_distributed.adapters import RankAdapters, Reading
from core_distributed.arguments import RanksArguments
from core_distributed.balance import Balance
from core_distributed.commands import Command, Kind
from core_distributed.communicators import ranks_of
from core_distributed.hosts.meeting import Meeting
from core_distributed.layout import Groups, Layout
from core_distributed.pages import FollowingPages
from core_distributed.step_wire import decode_step
from core_platforms.cpu.ranks import GAVE_UP
from core_runtime.executor.ranks import Ranks
from core_runtime.executor.reloading.reloader import Reloader
from core_runtime.executor.stage import FAILED_ELSEWHERE
from core_runtime.executor.steps.plan_wire import PlanDecoder
from core_runtime.executor.worker import Worker
from core_runtime.executor.worker_class import worker_class

logger = logging.getLogger(__name__)

LAST_WORDS_S = 1.0
"""Limit of seconds in which other hosts get the last messages, such as why this rank cannot start."""


class Start(msgspec.Struct, frozen=True):
    """The payload of the command START.

    configs: configuration of each rank.
    arguments: the executor's own.
    spin_microseconds: how long to look for the other ranks before going to sleep.
    """

    configs: list[EngineConfig]
    arguments: RanksArguments
    spin_microseconds: int


class FollowingRank:
    """A rank that does what rank 0 says.

    words: descriptor for sentences about failures. pages: descriptor of the file of KV pages; -1: there is none.
    """

    def __init__(self, groups: Groups, words: int, pages: int = -1) -> None:
        self._groups = groups
        self._group = groups.world
        self._words = words
        self._pages_file = pages
        self._pages: FollowingPages | None = None
        self._ranks: Ranks | None = None
        self._number = 0
        self._plans = PlanDecoder()
        self._worker: Worker | None = None
        self._reloader: Reloader | None = None
        self._adapters: RankAdapters | None = None
        self._balance: Balance | None = None

    def run(self) -> int:
        """Carry out commands until END. Returns the exit code."""
        while True:
            command = commands.decode(self._group.read, self._number + 1)
            self._number = command.number
            self._group.begin(command.number)
            if command.kind == Kind.END:
                return 0
            if command.kind == Kind.START:
                if not self._start(command):
                    return 2
            elif command.kind == Kind.CALL:
                self._call(command)
            elif command.kind == Kind.READ:
                assert self._adapters is not None, "the first command is START"
                self._adapters.follow(msgspec.msgpack.decode(command.payload, type=Reading))
            else:
                self._step(command)

    def _start(self, command: Command) -> bool:
        start = msgspec.msgpack.decode(command.payload, type=Start)
        config = start.configs[self._group.rank]
        setup_logging("WARNING", f"rank {self._group.rank}", config=config.log_config)
        self._groups.set_patience(0, start.spin_microseconds)
        try:
            self._ranks = ranks_of(self._groups, start.arguments)
            self._worker = worker_class(config)(config, self._ranks)
            self._reloader = Reloader(self._worker)
            self._adapters = RankAdapters(self._worker, self._state)
            standing = agreement.standing_of(self._worker, self._groups.layout, self._group.rank)
            if start.arguments.balance_interval:
                self._balance = Balance(self._worker, self._group, start.arguments)
        except Exception as error:
            logger.exception("Rank %d could not start.", self._group.rank)
            standing = agreement.failed(error)
        answers = self._group.exchange(agreement.encode(standing))
        if self._pages_file >= 0:
            sizes = [agreement.decode(answer, agreement.Standing).page_bytes for answer in answers]
            self._pages = FollowingPages(self._pages_file, self._group.rank, sizes)
            self._plans = PlanDecoder(self._pages)
        gc.freeze()
        return not standing.error

    def _state(self) -> WeightsState:
        assert self._reloader is not None, "the first command is START"
        return self._reloader.state

    def _call(self, command: Command) -> None:
        assert self._reloader is not None and self._adapters is not None, "the first command is START"
        call = msgspec.msgpack.decode(command.payload, type=calls.Call)
        self._group.exchange(agreement.encode(calls.perform(self._reloader, self._adapters, call)))

    def _step(self, command: Command) -> None:
        assert self._worker is not None and self._ranks is not None, "the first command is START"
        stage = self._ranks.stage
        message = command.payload
        if stage is not None:
            outcomes, message = decode_step(command.number, message)
            for outcome in outcomes:
                stage.learn(outcome)
            stage.number = command.number
        plan = self._plans.decode(message)
        try:
            if self._balance is not None:
                self._balance.before_step()
            self._worker.execute(plan)
            self._passed(plan, command.number)
            if stage is None:
                self._group.barrier()
        except Exception as error:
            self._passed(plan, -command.number)
            if not any(known in str(error) for known in (GAVE_UP, FAILED_ELSEWHERE)):
                # Said first: rank 0 reads it once the step is given up.
                os.write(self._words, f"{type(error).__name__}: {error}\n".encode()[:4096])
            elif stage is None:
                return
            if stage is None:
                self._group.abort()
            else:
                stage.give_up()
            logger.error("Step %d failed on rank %d.", command.number, self._group.rank, exc_info=error)

    def _passed(self, plan: StepPlan, number: int) -> None:
        """Tell rank 0 that the copies of a step, if it has any, are over."""
        if plan.transfers is not None and self._pages is not None:
            self._pages.passed(number)

    def close(self) -> None:
        """Close the worker."""
        if self._adapters is not None:
            self._adapters.close()
        if self._worker is not None:
            self._worker.close()


def main(arguments: list[str] | None = None) -> int:
    """Entry point of the process."""
    leave_signals_to_parent()
    end_with_parent(0)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # rank 0 asks for stacks when a rank is silent
    parser = argparse.ArgumentParser(prog="core_distributed.rank", description="One rank; started by the engine.")
    for name in ("memory", "words", "rank", "tensor", "stages", "hosts", "slot-bytes", "pages"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--meeting", type=partial(msgspec.json.decode, type=Meeting))
    options = parser.parse_args(arguments)
    layout = Layout(options.tensor, options.stages, options.hosts)
    groups = Groups(options.memory, options.rank, layout, options.slot_bytes, options.meeting)
    rank = FollowingRank(groups, options.words, options.pages)
    try:
        return rank.run()
    finally:
        rank.close()
        groups.close(LAST_WORDS_S)


if __name__ == "__main__":
    sys.exit(main())
