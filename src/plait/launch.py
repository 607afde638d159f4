"""Starts a plan's processes on this machine through torchrun, and says what went wrong if one fails."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from plait.errors import FileError, RunError
from plait.failures import explain
from plait.job.folder import RunFolder
from plait.worker import Task

HOST = "127.0.0.1"
PATIENCE = 45.0
"""Seconds that torchrun has to end its processes (it gives them 30) before it is ended itself."""


def launch(task: Task, ranks: int, *, port: int | None = None) -> None:
    """Run ``task`` in ``ranks`` processes and wait for their end.

    Raises RunError with the first cause if a rank fails, or if ``port`` is in use.
    """
    where = free_port() if port is None else checked_port(port)
    folder = RunFolder(task.run)
    _clear(folder.errors)
    log = folder.errors / "torchrun.txt"
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--master-addr", HOST,
        "--master-port", str(where), "--redirects", "2", "--log-dir", str(folder.errors / "output"),
        "-m", "plait.worker", *task.arguments(),
    ]  # fmt: skip
    environment = {"OMP_NUM_THREADS": "1"} | dict(os.environ)
    with open(log, "wb") as errors:
        process = subprocess.Popen(command, env=environment, stderr=errors, start_new_session=True)  # noqa: S603
        code = _wait(process)
    if code:
        raise RunError(explain(folder.errors, code))
    shutil.rmtree(folder.errors, ignore_errors=True)


def free_port() -> int:
    """A port that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def checked_port(port: int) -> int:
    """``port``, if it is free; raises RunError."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except (OSError, OverflowError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise RunError(
                f"port {port} cannot be used: {reason}; give another by --port, or none to take one that is free"
            ) from None
    return port


def _clear(folder: Path) -> None:
    """What a former run said is gone, so that it isn't taken for this one's."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    except OSError as error:
        raise FileError(f"{folder}: cannot write: {error.strerror or error}") from None


def _wait(process: "subprocess.Popen[bytes]") -> int:
    """The exit code; every rank is ended where this process is told to end."""
    with _termination_as_interrupt():
        try:
            return process.wait()
        except KeyboardInterrupt:
            _end(process)
            raise


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def _termination_as_interrupt() -> Iterator[None]:
    """SIGTERM ends this process as Ctrl-C does: after its ranks."""

    def interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        raise KeyboardInterrupt

    former = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)
