"""Colours: one hue a branch, lighter forward, full backward; legible on light and dark ground."""

from plait.schedule.action import Kind

HUES = (
    ("#8fb8e8", "#3b78c2", "#1f4f8f"),
    ("#f3bd8a", "#d9782d", "#9c4f14"),
    ("#9fd6a8", "#3f9d52", "#24682f"),
    ("#cdb3e6", "#8657b8", "#573284"),
    ("#f0a7b4", "#c94862", "#8c2a3f"),
    ("#9ed8d6", "#2f9692", "#1a6461"),
)
"""(light, full, dark) per branch."""

STEP = "#8a8f98"
WAIT = "rgba(138,143,152,0.28)"
SEND = "rgba(138,143,152,0.75)"
REDUCE = "#b59b2b"
PARTS = {"compute": "#3b78c2", "step": STEP, "waiting": "#b59b2b", "barrier": "#dccb86", "idle": "#c9cdd3"}


def tone(branch: int, kind: Kind) -> str:
    """The colour of an action."""
    if kind is Kind.STEP:
        return STEP
    light, full, dark = HUES[branch % len(HUES)]
    if kind in (Kind.FORWARD, Kind.FORWARD_ONLY, Kind.RECOMPUTE):
        return light
    return dark if kind is Kind.WEIGHT_GRADIENT else full
