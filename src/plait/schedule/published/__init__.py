"""Schedules from the literature, one readable function each: placement in, schedule out."""

from plait.schedule.published.chimera import chimera
from plait.schedule.published.forward_only import forward_only
from plait.schedule.published.gpipe import gpipe
from plait.schedule.published.one_f_one_b import one_f_one_b
from plait.schedule.published.sequential import sequential

__all__ = ["chimera", "forward_only", "gpipe", "one_f_one_b", "sequential"]
