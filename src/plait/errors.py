"""The errors that plait raises. Each says what is wrong, with the numbers, and what would be right."""


class PlaitError(Exception):
    """What a user can cause or must know. The command line prints it without a traceback and exits with 1."""


class FileError(PlaitError):
    """A file is missing, unreadable, or holds a field that is wrong."""


class UnitError(PlaitError, ValueError):
    """A quantity's text cannot be read, or its unit measures something else.

    It is a ``ValueError`` too, so that pydantic reports it with the field's name.
    """


class CaptureError(PlaitError):
    """A model cannot be captured; the message names the module."""


class ClusterError(PlaitError):
    """A cluster description contradicts itself or names an unknown device type."""


class CostError(PlaitError):
    """A cost is asked for that no table or model gives."""


class ScheduleError(PlaitError):
    """A schedule cannot be made for these stages, ranks and micro-batches."""


class PlanError(PlaitError):
    """A plan is incomplete, contradicts itself, deadlocks or does not fit the devices."""


class RunError(PlaitError):
    """A run failed: a peer died or was silent too long, data ran out, a loss is not finite."""


class CheckpointError(PlaitError):
    """A checkpoint is missing, incomplete or belongs to another model."""
