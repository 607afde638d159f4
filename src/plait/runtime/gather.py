"""What ranks made, brought to rank 0: timelines and outputs of evaluations."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from plait.model.graph import TensorSpec
from plait.plan.plan import Plan
from plait.runtime.record import Record
from plait.schedule.action import ALL
from plait.schedule.placement import Placement
from plait.schedule.program import Programs
from plait.simulate.timeline import Timeline


def gather_timeline(record: Record, plan: Plan, programs: Programs) -> Timeline | None:
    """The measured timeline of all ranks, on rank 0."""
    records = [record]
    if dist.is_initialized() and dist.get_world_size() > 1:
        found: list[Any] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
        dist.gather_object(record, found)
        if found is None:
            return None
        records = found
    origin = _origin(records)
    return Timeline.build(
        [event for r in records for event in r.events(origin)],
        [sample for r in records for sample in r.memory(origin)],
        ranks=plan.devices,
        stages=tuple(stage.name for stage in plan.stages),
        step_time=max(r.end + r.offset for r in records) - origin,
        origin="measured",
        meta={
            "schedule": programs.schedule.name,
            "micro_batches": list(plan.micro_batches),
            "work_seconds": [r.work for r in records],
        },
    )


def _origin(records: Sequence[Record]) -> float:
    """When the step began, on rank 0's clock: when the last rank had ended the step before.

    A rank that ends its step early begins the next one early, so that its first events may lie before the origin;
    counted so, step times add up to the run's.
    """
    ends = [r.before + r.offset for r in records if r.before is not None]
    return max(ends) if len(ends) == len(records) else min(r.start + r.offset for r in records)


def gather_outputs(
    results: Mapping[tuple[str, int], Tensor],
    makers: Mapping[str, tuple[str, int]],
    placement: Placement,
    specs: Mapping[str, TensorSpec],
    rank: int,
    device: torch.device,
) -> dict[str, Tensor]:
    """Outputs by the user's names over all samples, on rank 0's CPU; nothing elsewhere.

    ``makers``: the user's name → (value, stage that makes it).
    """
    found: dict[str, Tensor] = {}
    for name, (value, stage) in makers.items():
        placed, spec = placement.stages[stage], specs[value]
        numbers = (ALL,) if placed.batch_scope else tuple(range(len(placement.micro_batches)))
        parts: list[Tensor] = []
        for m in numbers:
            shape = spec.shape_for(placement.samples(m))
            part = _fetch(results.get((value, m)), placed.rank_of[m], shape, getattr(torch, spec.dtype), rank, device)
            parts += [] if part is None else [part.cpu()]
        if parts:
            found[name] = parts[0] if spec.batch_dim is None else torch.cat(parts, spec.batch_dim)
    return found


def _fetch(
    own: Tensor | None, owner: int, shape: tuple[int, ...], dtype: torch.dtype, rank: int, device: torch.device
) -> Tensor | None:
    """The owner's tensor on rank 0, None elsewhere."""
    if rank == 0 and owner == 0:
        return own
    if rank == 0:
        buffer = torch.empty(shape, dtype=dtype, device=device)
        dist.recv(buffer, owner)
        return buffer
    if rank == owner and own is not None:
        dist.send(own.contiguous(), 0)
    return None
