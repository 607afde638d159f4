"""The verifier: programs that could fail are refused before any process starts.

Passes, each linear in the number of instructions: every action is there once (``complete``), each rank's order is
legal (``_check_order``), messages and reductions are paired and ordered (``verify_messages``), and all ranks come to
an end (``deadlock``). A pass may rely on those before it. Memory is ``plait.simulate.memory.check_memory``.
"""

from collections.abc import Iterator

from plait.errors import PlanError
from plait.schedule.action import ALL, BACKWARDS, FORWARDS, Action, Kind
from plait.schedule.deadlock import check_progress
from plait.schedule.lower import has_gradient
from plait.schedule.placement import Edge, PlacedStage, Placement
from plait.schedule.program import Op, Programs
from plait.schedule.verify_messages import check_messages, check_reductions

Table = dict[tuple[int, int], dict[Kind, int]]
"""(stage, micro-batch) → kind → position in its rank's program."""


def verify(programs: Programs) -> None:
    """Raise PlanError, naming stage, micro-batch and ranks, unless the programs are complete, ordered and end."""
    placement = programs.placement
    if len(programs.ranks) != placement.ranks:
        raise PlanError(f"the schedule has {len(programs.ranks)} rows, the plan {placement.ranks} ranks")
    tables = [_table(programs, rank) for rank in range(placement.ranks)]
    training = any(kind in BACKWARDS for table in tables for kinds in table.values() for kind in kinds)
    for rank, table in enumerate(tables):
        _check_complete(placement, rank, table, training)
        _check_step(programs, rank, training)
        _check_own_order(placement, rank, table)
    _check_local_edges(placement, tables, training)
    check_messages(programs, tables, training)
    check_reductions(programs, tables, training)
    check_progress(programs)


def _table(programs: Programs, rank: int) -> Table:
    """Where the rank does what; raises PlanError for what is done twice or belongs elsewhere."""
    placement = programs.placement
    table: Table = {work: {} for work in placement.work(rank)}
    for position, instruction in enumerate(programs.ranks[rank]):
        action = instruction.action
        if instruction.op is not Op.COMPUTE or action is None:
            continue
        kinds = table.get((action.stage, action.micro_batch))
        if kinds is None:
            raise PlanError(f"rank {rank} runs {action}, {_elsewhere(placement, action)}")
        if action.kind in kinds:
            raise PlanError(f"rank {rank} runs {_plain(action)} twice ({_what(placement, action)})")
        kinds[action.kind] = position
    return table


def _elsewhere(placement: Placement, action: Action) -> str:
    if not 0 <= action.stage < len(placement.stages):
        return f"but there are only stages 0 to {len(placement.stages) - 1}"
    stage = placement.stages[action.stage]
    if action.micro_batch in stage.rank_of:
        return f"but {_what(placement, action)} is placed on rank {stage.rank_of[action.micro_batch]}"
    known = "* (it has batch scope)" if stage.batch_scope else f"0 to {len(placement.micro_batches) - 1}"
    return f"but stage {stage.name} runs micro-batches {known}"


def _plain(action: Action) -> str:
    return str(Action(action.kind, action.stage, action.micro_batch))


def _what(placement: Placement, action: Action) -> str:
    batch = "the whole batch" if action.micro_batch == ALL else f"micro-batch {action.micro_batch}"
    return f"stage {placement.stages[action.stage].name}, {batch}"


def _check_complete(placement: Placement, rank: int, table: Table, training: bool) -> None:
    for (stage, micro_batch), kinds in table.items():
        wrong = _wrong_kinds(set(kinds), training and placement.stages[stage].backward)
        if wrong:
            what = _what(placement, Action(Kind.FORWARD, stage, micro_batch))
            batch = "*" if micro_batch == ALL else micro_batch
            has = " ".join(f"{stage}{kind}{batch}" for kind in kinds) or "nothing"
            raise PlanError(f"{what} on rank {rank}: {wrong}; its row has {has}")


def _wrong_kinds(kinds: set[Kind], backward: bool) -> str:
    """What is wrong with the kinds of action of one stage and micro-batch, or nothing."""
    forwards, backwards = kinds & {*FORWARDS, Kind.RECOMPUTE}, kinds - FORWARDS - {Kind.RECOMPUTE}
    if not backward:
        if backwards or Kind.RECOMPUTE in forwards:
            return "there is nothing to go backward for (the stage has no backward, or the schedule does not train)"
        return "" if len(forwards) == 1 else "expected one forward, F or N"
    if forwards not in ({Kind.FORWARD}, {Kind.FORWARD_ONLY, Kind.RECOMPUTE}):
        return "expected one forward, F, or N and later R"
    if backwards not in ({Kind.BACKWARD}, {Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT}):
        return "expected one backward, B, or I and later W"
    return ""


def _check_step(programs: Programs, rank: int, training: bool) -> None:
    program = programs.ranks[rank]
    steps = [position for position, instruction in enumerate(program) if instruction.op is Op.STEP]
    if steps and not training:
        raise PlanError(f"rank {rank}: STEP in a schedule without backwards")
    if training and steps != [len(program) - 1]:
        raise PlanError(f"rank {rank}: STEP stands {len(steps)} times in its row; it must stand once, at the end")


_ORDERS = (
    (Kind.FORWARD, Kind.BACKWARD), (Kind.FORWARD, Kind.INPUT_GRADIENT), (Kind.FORWARD_ONLY, Kind.RECOMPUTE),
    (Kind.RECOMPUTE, Kind.BACKWARD), (Kind.RECOMPUTE, Kind.INPUT_GRADIENT),
    (Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT),
)  # fmt: skip


def _check_own_order(placement: Placement, rank: int, table: Table) -> None:
    """The order of the actions of one stage and micro-batch."""
    for (stage, micro_batch), kinds in table.items():
        for first, then in _ORDERS:
            if first in kinds and then in kinds and kinds[first] > kinds[then]:
                early, late = Action(then, stage, micro_batch), Action(first, stage, micro_batch)
                raise PlanError(f"rank {rank} runs {early} before {late} ({_what(placement, late)})")


def _check_local_edges(placement: Placement, tables: list[Table], training: bool) -> None:
    """Inputs before outputs where both are on one rank."""
    for edge in placement.edges:
        both_ways = training and has_gradient(edge, placement)
        for rank, source, target in _local(placement, edge):
            _check_before(placement, rank, tables[rank], (source, target), FORWARDS)
            if both_ways:
                _check_before(placement, rank, tables[rank], (target, source), BACKWARDS)


def _local(placement: Placement, edge: Edge) -> Iterator[tuple[int, tuple[int, int], tuple[int, int]]]:
    """Rank, source and target as (stage, micro-batch), for each micro-batch that stays on its rank."""
    source, target = placement.stages[edge.source], placement.stages[edge.target]
    for m in range(len(placement.micro_batches)):
        here, there = _batch(source, m), _batch(target, m)
        if source.rank_of[here] == target.rank_of[there]:
            yield source.rank_of[here], (edge.source, here), (edge.target, there)


def _batch(stage: PlacedStage, micro_batch: int) -> int:
    return ALL if stage.batch_scope else micro_batch


def _check_before(
    placement: Placement,
    rank: int,
    table: Table,
    pair: tuple[tuple[int, int], tuple[int, int]],
    kinds: frozenset[Kind],
) -> None:
    first, then = (next((Action(k, *work) for k in kinds if k in table[work]), None) for work in pair)
    if first is None or then is None:
        return
    if table[pair[0]][first.kind] > table[pair[1]][then.kind]:
        raise PlanError(
            f"rank {rank} runs {then} before {first}, whose output it needs "
            f"({_what(placement, then)} after {_what(placement, first)})"
        )
