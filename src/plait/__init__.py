"""plait trains concurrent-branch models on mixed accelerators in several places.

The names below are loaded when first used, so that planning works without torch and starts at once.
"""

import importlib
from typing import Any

_PUBLIC = {
    "BranchGraph": "plait.model.graph",
    "Branches": "plait.model.by_hand",
    "Cluster": "plait.cluster.spec",
    "GroupRule": "plait.plan.groups",
    "LossTerm": "plait.model.by_hand",
    "Part": "plait.model.by_hand",
    "Engine": "plait.runtime.engine",
    "Plan": "plait.plan.plan",
    "PlaitError": "plait.errors",
    "Timeline": "plait.simulate.timeline",
    "capture": "plait.model.capture",
    "parameter_groups": "plait.runtime.groups",
    "deferred": "plait.model.deferred",
    "plan": "plait.plan.search",
    "simulate": "plait.plan.simulate",
}
__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'plait' has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)
