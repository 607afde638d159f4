"""Plans of small models for tests: which layers form which stage is given, everything else derived."""

from collections.abc import Mapping, Sequence

from plait.cluster.spec import Cluster, Device, DeviceCount, DeviceType, Node, Site
from plait.cost.costs import LayerCost, Source
from plait.model.graph import BranchGraph, Layer
from plait.plan.assemble import StageChoice, assemble
from plait.plan.plan import Plan, SchedulePlan


class UnitCosts:
    """Every layer takes a millisecond a sample forward, and as much for each half of the backward."""

    def layer(self, layer: str, device: Device, samples: int, tensor_parallel: int = 1) -> LayerCost:
        seconds = 1e-3 * samples
        return LayerCost(seconds, seconds, seconds, 1e3 * samples, Source.MODELLED)

    def step_seconds(self, parameter_bytes: float, device: Device) -> float:
        return 1e-3


def cluster_of(count: int) -> Cluster:
    node = Node(name="n0", devices=(DeviceCount(type="core", count=count),))
    kinds = {"core": DeviceType(like="local", memory=2.0**30)}
    return Cluster(name="test", device_types=kinds, sites=(Site(name="here", nodes=(node,)),))


def cut(layers: Sequence[Layer], parts: int) -> list[tuple[str, ...]]:
    """Consecutive layers in ``parts`` runs, as equal as can be; fewer where there are fewer layers."""
    parts = min(parts, len(layers))
    share, rest = divmod(len(layers), parts)
    sizes = [share + (i < rest) for i in range(parts)]
    names = [layer.name for layer in layers]
    return [tuple(names[sum(sizes[:i]) : sum(sizes[: i + 1])]) for i in range(parts)]


Replicas = Sequence[tuple[int, tuple[int, ...] | str]]


def staged(
    graph: BranchGraph, spread: Mapping[str, Sequence[Replicas | int]], recompute: Sequence[str] = ()
) -> list[StageChoice]:
    """Stages: per branch, one for each entry of ``spread``, which is a rank or replicas."""
    choices = []
    for branch, homes in spread.items():
        layers = graph.branches[branch]
        for index, (names, home) in enumerate(zip(cut(layers, len(homes)), homes, strict=False)):
            replicas = ((home, "all"),) if isinstance(home, int) else tuple(home)
            choices.append(StageChoice(f"{branch}.{index}", names, replicas, branch in recompute))  # type: ignore[arg-type]
    return choices


def plan_of(
    graph: BranchGraph,
    ranks: int,
    spread: Mapping[str, Sequence[Replicas | int]],
    schedule: str,
    micro_batches: Sequence[int],
    recompute: Sequence[str] = (),
) -> Plan:
    cluster = cluster_of(ranks)
    devices = [d.name for d in cluster.devices]
    return assemble(
        graph,
        cluster,
        devices,
        staged(graph, spread, recompute),
        micro_batches,
        SchedulePlan(name=schedule),
        costs=UnitCosts(),
    )
