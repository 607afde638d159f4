"""The plan file and the search that writes it. Calling the package is calling ``plait.plan.search.plan``."""

from plait._callable import make_callable

make_callable(__name__, "plait.plan.search", "plan")
