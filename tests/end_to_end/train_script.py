"""A user's own script, as torchrun starts it: a small CLIP under a plan, with an accident on request."""

import os
import signal
import sys
import time

import plait
from plait.errors import PlaitError
from support import models
from support.jobs import adam


def main(plan: str, steps: int, folder: str, accident: str) -> None:
    model, batch = models.clip()
    engine = plait.Engine(model, plan, optimizer=adam, timeout=float(os.environ.get("WAIT", "20")))
    engine.watch.on_terminate()
    for step in range(steps):
        if step == steps - 1 and engine.rank == 1:
            # This layer reads what rank 0 sends in this step, so rank 0 is in the midst of it as well.
            model.get_submodule("vision_model.encoder.layers.2").register_forward_pre_hook(lambda *_: _happen(accident))
        engine.step(batch)
        if folder:
            engine.save_checkpoint(folder)
    engine.close()


def _happen(accident: str) -> None:
    if accident == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if accident == "hang":
        time.sleep(3600)
    if accident == "raise":
        raise ValueError("the data of rank 1 are broken")


if __name__ == "__main__":
    try:
        main(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4])
    except PlaitError as error:
        sys.exit(f"plait: {error}")
