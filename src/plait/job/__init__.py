"""The job file: what to train, on what, how. ``Job`` is its form; the other modules make its parts."""
