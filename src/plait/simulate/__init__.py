"""Programs and prices in, a timeline out. Calling the package is calling ``plait.plan.simulate.simulate`` on a plan."""

from plait._callable import make_callable

make_callable(__name__, "plait.plan.simulate", "simulate")
