"""The scheduler's invariants.

Owns: `check_sequences`. Never does: change or repair anything. Called by: `Scheduler.check_integrity`.
"""

from __future__ import annotations

from core.kv.integrity import require
from core.scheduler.sequence import NO_SLOT, SequenceState, SequenceStatus
from core.scheduler.state import SchedulerState


def check_sequences(state: SchedulerState, *, num_in_flight: int) -> None:
    """Raise `IntegrityError` unless every live sequence either waits without blocks or runs within its limits.

    num_in_flight: steps without a result; while there are any, columns are ahead of what is confirmed. O(sequences).
    """
    suspects = [suspect for suspect in state.seats.suspects if suspect.slot == NO_SLOT]
    _check_counts(state, suspects)
    _check_queues(state)
    for suspect in suspects:
        _check_waiting(suspect)
    for running in state.running.sequences:
        _check_running(state, running)
        _check_columns(state, running, num_in_flight)
    _check_order(state)


def _check_counts(state: SchedulerState, suspects: list[SequenceState]) -> None:
    """Check that every live sequence is in exactly one place."""
    live = set(state.roster)
    running = state.running.sequences
    waiting = [*state.waiting, *state.held, *state.awaiting, *state.places]
    placed = [*waiting, *suspects, *running]
    is_complete = live == set(placed)
    require(
        is_complete and len(placed) == len(live),
        "live_sequences",
        f"{len(live)} live, {len(waiting)} waiting, {len(suspects)} suspected, {len(running)} running",
    )
    num_live = len(state.roster)
    require(num_live == len(live), "num_live", f"{len(live)} live, {num_live} counted")
    pressed = sum(sequence.was_preempted for sequence in live)
    num_pressed = state.seats.num_pressed
    # The count decides on the reserve of admission; one too many would keep blocks unused for ever.
    require(pressed == num_pressed, "pressed", f"{pressed} live sequences were preempted, {num_pressed} counted")


def _check_queues(state: SchedulerState) -> None:
    """Check that every sequence of a queue, or aside, refers to that place, and has neither slot nor blocks."""
    for queue in (state.waiting, state.held, state.awaiting, state.places):
        for sequence in queue:
            assert isinstance(sequence, SequenceState)
            require(sequence.queue is queue, "waiting_sequences", f"{sequence.key} waits in another queue")
            _check_waiting(sequence)


def _check_waiting(sequence: SequenceState) -> None:
    is_waiting = sequence.status is SequenceStatus.WAITING
    wrong = f"{sequence.key} waits but holds blocks, a slot or another status"
    holds_nothing = sequence.slot == NO_SLOT and not sequence.block_ids
    require(is_waiting and holds_nothing, "waiting_sequences", wrong)


def _check_running(state: SchedulerState, sequence: SequenceState) -> None:
    """Check that a running sequence has a slot of its own, and room for another token."""
    key = sequence.key
    slot = sequence.slot
    length = len(sequence.token_ids)
    num_computed = sequence.num_computed_tokens
    is_active = sequence.status is SequenceStatus.RUNNING and sequence.queue is None
    require(is_active, "running_sequences", f"{key} runs but is queued or has another status")
    has_room = length < sequence.max_length
    wrong = f"{key}: {length} tokens, {num_computed} computed, limit {sequence.max_length}"
    require(num_computed < length and has_room, "sequence_length", wrong)
    require(state.running.at(slot) is sequence, "slots", f"{key} has slot {slot}, which is another's")


def _check_columns(state: SchedulerState, sequence: SequenceState, num_in_flight: int) -> None:
    """Check that the columns of a running sequence agree with its state, apart from the steps in flight."""
    key = sequence.key
    columns = state.running
    length = int(columns.length[sequence.slot])
    capacity = int(columns.capacity[sequence.slot])
    num_known = len(sequence.token_ids)
    num_ahead = length - num_known
    # Each step in flight that samples it has counted one token in advance.
    require(0 <= num_ahead <= num_in_flight, "length_column", f"{key}: {length} in the column, {num_known} known")
    has_capacity = capacity == sequence.num_slots
    require(has_capacity, "capacity_column", f"{key}: {capacity} in the column, {sequence.num_slots} in blocks")
    num_unsettled = sequence.num_unsettled
    require(num_unsettled >= 0, "unsettled_tokens", f"{key} has {num_unsettled} tokens unsettled")
    if num_in_flight:
        return
    require(not num_unsettled, "unsettled_tokens", f"{key} has {num_unsettled} tokens unsettled, nothing is in flight")
    if columns.is_partial(sequence):
        agrees = sequence.num_planned_tokens == sequence.num_computed_tokens
        require(agrees, "planned_tokens", f"{key}: {sequence.num_planned_tokens} planned, nothing in flight")
    else:
        num_pending = sequence.num_pending
        most = state.config.num_speculative_tokens + 1 if sequence.is_rolled_back else 1
        require(1 <= num_pending <= most, "pending_tokens", f"{key} decodes with {num_pending} tokens pending")


def _check_order(state: SchedulerState) -> None:
    """Check that the running list is in order, and that every slot is either taken or free."""
    columns = state.running
    require(len(columns) <= columns.max_num_seqs, "max_num_seqs", f"{len(columns)} sequences run")
    slots = {sequence.slot for sequence in columns.sequences}
    num_free = len(columns.free_slots)
    require(len(slots) == len(columns), "slots", "two sequences have one slot")
    is_complete = len(slots) + num_free == columns.max_num_seqs
    require(
        is_complete and slots.isdisjoint(columns.free_slots),
        "slots",
        f"{len(slots)} slots are taken and {num_free} are free of {columns.max_num_seqs}",
    )
    for listed in (columns.sequences, columns.partial):
        orders = [sequence.order for sequence in listed]
        require(orders == sorted(set(orders)), "running_order", "the running list is out of order")
    adapters = {sequence.request.adapter for sequence in columns.sequences} - {""}
    most = state.config.max_adapters or len(adapters)
    require(len(adapters) <= most, "max_adapters", f"{len(adapters)} adapters run, at most {most} may")
    stops = sum(len(sequence.stop_token_ids) for sequence in columns.sequences)
    require(stops == columns.stop_ids.total(), "stop_ids", "the table of stop tokens is not that of who runs")
