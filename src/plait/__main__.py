"""``python -m plait``: the command line, as torchrun starts it on several machines."""

from plait.cli import main

main()
