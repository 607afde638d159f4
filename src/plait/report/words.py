"""Events in words, for people who don't know the schedule's letters."""

from plait.schedule.action import ALL, Kind
from plait.simulate.timeline import Event, Lane

KINDS = {
    Kind.FORWARD: "forward",
    Kind.FORWARD_ONLY: "forward, keeping nothing",
    Kind.RECOMPUTE: "forward again",
    Kind.BACKWARD: "backward",
    Kind.INPUT_GRADIENT: "backward: input gradient",
    Kind.WEIGHT_GRADIENT: "backward: weight gradient",
    Kind.STEP: "optimizer step",
}


def kind_of(event: Event) -> Kind | None:
    """What a compute event does; None for the others and for labels that are no actions."""
    if event.lane is not Lane.COMPUTE:
        return None
    if event.label == "STEP":
        return Kind.STEP
    letter = event.label.lstrip("0123456789")[:1]
    return next((kind for kind in KINDS if kind.value == letter), None)


def batch_words(micro_batch: int) -> str:
    """A micro-batch's number in words."""
    return "the whole batch" if micro_batch == ALL else f"micro-batch {micro_batch}"


def describe(event: Event, stages: tuple[str, ...]) -> str:
    """An event in a line."""
    kind = kind_of(event)
    if kind is Kind.STEP:
        return KINDS[kind]
    if kind is not None:
        return f"{KINDS[kind]} of {stages[event.stage]} on {batch_words(event.micro_batch)}"
    if event.lane is Lane.REDUCE:
        return "gradients summed over ranks"
    what = "every rank to end its step" if event.label == "STEP" else _message(event, stages)
    return f"waits for {what}" if event.lane is Lane.WAIT else f"sends {what}"


def _message(event: Event, stages: tuple[str, ...]) -> str:
    """A message from its label, as in ``0>2:F3``."""
    ends, _, rest = event.label.partition(":")
    source, _, target = ends.partition(">")
    if not (source.isdigit() and target.isdigit() and int(source) < len(stages) and int(target) < len(stages)):
        return event.label
    what = "values" if rest.startswith("F") else "gradients"
    return f"{what} of {stages[int(source)]} to {stages[int(target)]}, {batch_words(event.micro_batch)}"
