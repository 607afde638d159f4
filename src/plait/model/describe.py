"""From the cut to the BranchGraph: what each layer reads, writes, holds and costs."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence, Set

import torch
from torch import nn

from plait.errors import CaptureError
from plait.model.branches import branch_names, layer_names
from plait.model.casting import weights_dtype
from plait.model.code import LayerNodes
from plait.model.graph import Layer, Parameter, Scope, TensorSpec
from plait.model.group import Cut, Group
from plait.model.precision import Precision
from plait.model.steps import find_module
from plait.model.tape import Here, Kind, Node, Ref


def layer_nodes(made: Cut, losses: Sequence[int], names: Mapping[int, str]) -> list[LayerNodes]:
    """Each group as the nodes that it runs; ``names`` are the values' names by node."""
    titles = layer_names(made, losses)
    read = {
        a for n, g in made.owner.items() for a in made.tape.nodes[n].arguments if made.owner.get(a) not in (None, g)
    }
    found = []
    for position, (title, group) in enumerate(zip(titles, made.groups, strict=True)):
        nodes, outside = _closure(made, group)
        inputs = [made.tape.nodes[n] for n in nodes if made.tape.nodes[n].kind is Kind.INPUT]
        inputs += _witness(made, [n.number for n in inputs] + outside)
        written = [n for n in group.nodes if n in made.wanted or n in read]
        found.append(
            LayerNodes(
                name=title,
                position=position,
                nodes=tuple(n for n in nodes if made.tape.nodes[n].kind is not Kind.INPUT),
                inputs={str(n.target): n.number for n in inputs},
                reads={names[n]: n for n in outside},
                writes={names[n]: n for n in written},
                random=any(made.measures.random[n] for n in group.nodes),
            )
        )
    return found


def _witness(made: Cut, given: Sequence[int]) -> list[Node]:
    """An input that tells the number of samples to a layer that reads nothing else that does."""
    sources = [made.tape.nodes[n] for n in given]
    if any(n.form is not None and n.form.per_sample for n in sources):
        return []
    inputs = [n for n in made.tape.nodes if n.kind is Kind.INPUT and n.form is not None and n.form.per_sample]
    return sorted(inputs, key=lambda n: (n.form.spec().nbytes(1) if n.form else 0, n.number))[:1]


def _closure(made: Cut, group: Group) -> tuple[list[int], list[int]]:
    """All nodes that a group runs, and those of other groups that it reads."""

    def foreign(number: int) -> bool:
        return made.owner.get(number, group) is not group

    nodes = made.tape.ancestors_until(group.nodes, foreign)
    outside = sorted({a for n in nodes for a in made.tape.nodes[n].arguments if foreign(a)})
    return nodes, outside


def learning(made: Cut, losses: Iterable[int]) -> frozenset[int]:
    """Nodes through which a gradient of the loss terms ``losses`` flows back."""
    gradient, nodes = made.measures.gradient, made.tape.nodes
    waiting = [number for number in losses if gradient[number]]
    found = set(waiting)
    while waiting:
        fresh = {a for a in nodes[waiting.pop()].arguments if gradient[a] and a not in found}
        found |= fresh
        waiting += fresh
    return frozenset(found)


def value_specs(made: Cut, layers: Sequence[LayerNodes], learns: Set[int]) -> dict[str, TensorSpec]:
    """Specs of all values that layers write, a gradient flowing through those of ``learns``.

    Raises CaptureError for one that no TensorSpec can describe.
    """
    found = {}
    for layer in layers:
        for name, number in layer.writes.items():
            node = made.tape.nodes[number]
            if node.form is None or not node.form.regular:
                sizes = "several tensors" if node.form is None else _sizes(node)
                raise CaptureError(
                    f"{name} ({node.line}): leaves the layer {layer.name} with the shape {sizes}; a value between "
                    "layers, or an output, may have one batch dimension only"
                )
            spec = node.form.spec(number in learns)
            found[name] = spec.model_copy(update={"dtype": made.measures.dtypes[number]})
    return found


def _sizes(node: Node) -> str:
    dims = node.form.dims if node.form else ()
    return str([f"{d.slope:g}*samples{d.offset:+g}" if d.slope else f"{d.offset:g}" for d in dims])


def describe(
    made: Cut,
    layers: Sequence[LayerNodes],
    model: nn.Module,
    canonical: Mapping[str, str],
    specs: Mapping[str, TensorSpec],
    precision: Precision,
) -> list[Layer]:
    """The layers as the graph tells them; ``specs`` are those of the values."""
    branches = branch_names(made, [layer.name for layer in layers])
    found = []
    for layer, group, branch in zip(layers, made.groups, branches, strict=True):
        calls = [path for n in layer.nodes for path in made.tape.nodes[n].modules]
        found.append(
            Layer(
                name=layer.name,
                branch=branch,
                modules=tuple(calls),
                scope=Scope.BATCH if group.batch else Scope.MICROBATCH,
                inputs=tuple(layer.inputs),
                reads=tuple(layer.reads),
                writes=tuple(layer.writes),
                parameters=tuple(_parameters(made, layer, calls, model, canonical, specs, precision)),
                buffers=tuple(_buffers(made, layer, calls, model)),
                flops=made.flops(group),
                random=layer.random,
                signature=_signature(made, layer, model, specs, precision),
            )
        )
    return found


def _parameters(
    made: Cut,
    layer: LayerNodes,
    calls: Sequence[str],
    model: nn.Module,
    canonical: Mapping[str, str],
    specs: Mapping[str, TensorSpec],
    precision: Precision,
) -> list[Parameter]:
    names = [f"{c}.{n}" for c in calls for n, _ in find_module(model, c).named_parameters()]
    names += [str(made.tape.nodes[n].target) for n in layer.nodes if made.tape.nodes[n].kind is Kind.PARAMETER]
    unique = dict.fromkeys(canonical.get(name, name) for name in names)
    reached = any(specs[name].gradient for name in layer.writes)  # not so under no_grad, or aside of the loss
    return [_parameter(model, name, reached, precision) for name in unique]


def _parameter(model: nn.Module, name: str, reached: bool, precision: Precision) -> Parameter:
    path, _, leaf = name.rpartition(".")
    tensor = getattr(find_module(model, path), leaf)
    trainable = tensor.requires_grad and reached
    return Parameter(
        name=name,
        shape=tuple(tensor.shape),
        dtype=str(weights_dtype(precision, tensor.dtype)).removeprefix("torch."),
        trainable=trainable,
        master="float32" if trainable and precision is Precision.BF16_PARAMS else None,
    )


def _buffers(made: Cut, layer: LayerNodes, calls: Sequence[str], model: nn.Module) -> dict[str, None]:
    names = [f"{c}.{n}" for c in calls for n, _ in find_module(model, c).named_buffers()]
    names += [str(made.tape.nodes[n].target) for n in layer.nodes if made.tape.nodes[n].kind is Kind.BUFFER]
    return dict.fromkeys(names)


def _signature(
    made: Cut, layer: LayerNodes, model: nn.Module, specs: Mapping[str, TensorSpec], precision: Precision
) -> str:
    """Twelve hex digits over all that its cost depends on: modules, glue, forms of what it reads and writes."""
    order = {n: i for i, n in enumerate(layer.nodes)}
    parts = []
    for number in layer.nodes:
        node = made.tape.nodes[number]
        what = _what(node, model, precision)
        given = [order.get(x.node, "read") if isinstance(x, Ref) else _plain(x) for x in node.leaves]
        parts.append((what, given, node.form))
    ends = [made.tape.nodes[n].form for n in (*layer.inputs.values(), *layer.reads.values())]
    text = repr((parts, ends, [specs[name] for name in layer.writes], *([precision.value] if precision.half else [])))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _what(node: Node, model: nn.Module, precision: Precision) -> str:
    if node.kind is Kind.OP:
        return str(getattr(node.target, "__name__", str(node.target)))
    called = [find_module(model, path) for path in node.modules]
    modules = " ".join(f"{m!r} {[_kind(p, precision) for p in m.parameters()]}" for m in called)
    if node.kind is Kind.PART:
        return f"{getattr(node.target.part.run, '__qualname__', '')} {modules}"
    return modules or node.kind.value


def _kind(parameter: nn.Parameter, precision: Precision) -> tuple[tuple[int, ...], torch.dtype, bool]:
    return tuple(parameter.shape), weights_dtype(precision, parameter.dtype), parameter.requires_grad


def _plain(leaf: object) -> str:
    return "device" if isinstance(leaf, Here) else repr(leaf)
