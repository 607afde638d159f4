"""Plain modules as users write them, with a batch each. Importable by name, so that ranks can be sent to make them."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from support.jobs import Maker

WIDTH = 8
SAMPLES = 8


def block(inner: int = 2 * WIDTH) -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, inner), nn.ReLU(), nn.Linear(inner, WIDTH))


class Nested(nn.Module):
    """Lists in lists, a dictionary of modules, a Sequential of Sequentials and a counter in the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(block(), block())
        self.stages = nn.ModuleList(nn.ModuleList(block() for _ in range(2)) for _ in range(2))
        self.heads = nn.ModuleDict({"a": nn.Linear(WIDTH, WIDTH), "b": nn.Linear(WIDTH, WIDTH)})

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.stem(x)
        depth = 0
        for stage in self.stages:
            for layer in stage:  # type: ignore[attr-defined]
                depth += 1
                x = x + layer(x) / depth
        return functional.mse_loss(self.heads["a"](x), y) + 0.5 * functional.l1_loss(self.heads["b"](x), y)


class Auxiliary(nn.Module):
    """Losses from the middle, and a first value that several later layers use, across every cut."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(block() for _ in range(4))
        self.exits = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        first = x = self.blocks[0](x)
        total = torch.zeros((), device=x.device)
        for number, layer in enumerate(self.blocks[1:]):
            x = layer(x + first) + x
            if number < 2:
                total = total + 0.3 * functional.mse_loss(self.exits[number](x), y)
        return {"loss": total + functional.mse_loss(x, y)}


@dataclass
class Hidden:
    """What a user's module returns."""

    state: Tensor
    norm: Tensor


class Structured(nn.Module):
    """Takes keyword arguments; returns a tuple, a dictionary or a dataclass."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.inner, self.form = nn.Linear(WIDTH, WIDTH), form

    def forward(self, *, hidden: Tensor, scale: float = 1.0) -> object:
        state = self.inner(hidden).tanh() * scale
        norm = state.norm(dim=-1, keepdim=True)
        if self.form == "tuple":
            return state, norm
        return {"state": state, "norm": norm} if self.form == "dict" else Hidden(state, norm)


class Structures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = Structured("tuple"), Structured("dict"), Structured("dataclass")
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        state, norm = self.one(hidden=x)
        found = self.two(hidden=state / (1 + norm), scale=0.5)
        last = self.three(hidden=found["state"] + found["norm"])
        return functional.mse_loss(self.head(last.state * last.norm), y)


class Attending(nn.Module):
    """torch's own transformer and attention."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.cross = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.query = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        memory = self.encoder(x.view(len(x), 4, 2).repeat(1, 1, 4))
        found, _ = self.cross(self.query(y)[:, None], memory, memory)
        return functional.mse_loss(found[:, 0], y)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(2, WIDTH, num_layers=2, batch_first=True)
        self.gru = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        states, (hidden, _) = self.lstm(x.view(len(x), 4, 2))
        _, last = self.gru(states, hidden[-1:].contiguous())
        return functional.mse_loss(self.head(last[0]), y)


class Convolving(nn.Module):
    """Towers of convolutions with norms over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = (nn.ModuleList(self._layer(i) for i in range(2)) for _ in range(2))
        self.head = nn.Linear(8, WIDTH)

    @staticmethod
    def _layer(index: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv1d(4 if index else 1, 4, 3, padding=1), nn.BatchNorm1d(4), nn.ReLU())

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        one, two = x[:, None], y[:, None]
        for first, second in zip(self.one, self.two, strict=True):
            one, two = first(one), second(two)
        return functional.mse_loss(self.head(torch.cat([one.mean(-1), two.mean(-1)], -1)), y)


class Checkpointed(nn.Module):
    """Saves memory by itself, around blocks and inside of them."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Saving() for _ in range(3))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for number, layer in enumerate(self.blocks):
            x = checkpoint(layer, x, use_reentrant=False) if number == 1 else layer(x)
        return functional.mse_loss(x, y)


class Saving(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = block()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = checkpoint(self.inner, x, use_reentrant=False)
        return x + found


class Hooked(nn.Module):
    """Hooks that change what layers get and give; weight norm; a spectral norm's kin by parametrization."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = block(), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        parametrizations.weight_norm(self.middle)
        parametrizations.orthogonal(self.last)
        self.first.register_forward_hook(_doubled)
        self.middle.register_forward_pre_hook(_shifted)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return functional.mse_loss(self.last(self.middle(self.first(x)).relu()), y)


def _doubled(_: nn.Module, __: object, result: Tensor) -> Tensor:
    return 2 * result


def _shifted(_: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
    return (given[0] + 1,)


class Siamese(nn.Module):
    """One branch called for both inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.ModuleList([block(), block()])

    def _embed(self, x: Tensor) -> Tensor:
        for layer in self.tower:
            x = layer(x)
        return x

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return 1 - functional.cosine_similarity(self._embed(x), self._embed(y)).mean()


MODELS: Mapping[str, Callable[[], nn.Module]] = {
    "nested": Nested,
    "auxiliary": Auxiliary,
    "structures": Structures,
    "attending": Attending,
    "recurrent": Recurrent,
    "convolving": Convolving,
    "checkpointed": Checkpointed,
    "hooked": Hooked,
    "siamese": Siamese,
}


def make(name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """The model ``name`` and a batch."""
    torch.manual_seed(5)
    return MODELS[name](), {n: torch.randn(SAMPLES, WIDTH) for n in ("x", "y")}


def maker(name: str) -> Maker:
    """``make`` for one model; ranks can be sent it."""
    return functools.partial(make, name)
