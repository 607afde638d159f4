"""The barrier pass: stages of batch scope are put in, and everything they depend on before them.

Generators leave stages of batch scope out. This pass gives each action a phase (even: actions per micro-batch; odd:
actions of batch stages) and sorts each row by it, so that inside a phase the generator's order stays. With the loss
as the only batch stage: forwards, ``F*``, ``B*``, backwards.
"""

from dataclasses import replace

from plait.schedule.action import ALL, FORWARDS, Action, Kind, Schedule
from plait.schedule.placement import Placement


def with_barriers(schedule: Schedule, placement: Placement, *, training: bool) -> Schedule:
    """The schedule with the placement's batch stages; unchanged where there are none.

    ``training`` adds their backwards: the schedule may have none yet, if all else is frozen.
    """
    if not any(stage.batch_scope for stage in placement.stages):
        return schedule
    forward = forward_phases(placement)
    backward = _backward_phases(placement, forward)

    def phase(action: Action) -> int:
        if action.kind is Kind.STEP:
            return max(backward) + 1
        return forward[action.stage] if action.kind in FORWARDS else backward[action.stage]

    rows = (
        sorted((*row, *_batch_actions(placement, rank, training)), key=phase) for rank, row in enumerate(schedule.rows)
    )
    return replace(schedule, rows=tuple(map(tuple, rows)))


def forward_phases(placement: Placement) -> list[int]:
    """Per stage, the phase of its forwards: odd for batch stages, never before its inputs' phases."""
    phases: list[int] = []
    for index, stage in enumerate(placement.stages):
        earliest = max((phases[e.source] for e in placement.into[index]), default=0)
        phases.append(_round_up(earliest, odd=stage.batch_scope))
    return phases


def _backward_phases(placement: Placement, forward: list[int]) -> list[int]:
    phases = list(forward)
    for index in reversed(range(len(placement.stages))):
        earliest = max([forward[index], *(phases[e.target] for e in placement.out_of[index])])
        phases[index] = _round_up(earliest, odd=placement.stages[index].batch_scope)
    return phases


def _round_up(phase: int, *, odd: bool) -> int:
    return phase + (phase % 2 != odd)


def _batch_actions(placement: Placement, rank: int, training: bool) -> list[Action]:
    """F* of the rank's batch stages in topological order, then B* in reverse."""
    held = [s for s, m in placement.work(rank) if m == ALL]
    forward = Kind.FORWARD if training else Kind.FORWARD_ONLY
    actions = [Action(forward, s) for s in held]
    if training:
        actions += [Action(Kind.BACKWARD, s) for s in reversed(held) if placement.stages[s].backward]
    return actions
