"""The command line: one module per command. Nothing here imports torch before a command needs it."""

from plait.cli.app import main

__all__ = ["main"]
