"""Deferred construction: no memory for weights, and each tensor made later is the one an ordinary build makes."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from plait.errors import CaptureError
from plait.model import zoo
from plait.model.deferred import deferred, deferred_values


class Various(nn.Module):
    """Random numbers of several kinds, in an order that seeds, states and values decide."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.first = nn.Linear(9, 5)
        kept = torch.get_rng_state()
        self.second = nn.Conv1d(3, 4, 3)
        torch.manual_seed(7)  # the same seed again
        self.third = nn.Parameter(torch.randn(33))
        torch.set_rng_state(kept)
        self.fourth = nn.Parameter(torch.empty(7, 7))
        nn.init.orthogonal_(self.fourth)
        own = torch.Generator().manual_seed(3)
        self.fifth = nn.Parameter(torch.rand(5, generator=own) + torch.rand(5, generator=own))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            self.sixth = nn.Parameter(nn.init.trunc_normal_(torch.empty(50)))
        self.rates = torch.linspace(0, 0.5, 4).tolist()
        if torch.rand(()) < 2.0:
            self.seventh = nn.Parameter(torch.rand(4) * torch.rand(()).item())
        self.eighth = nn.Embedding(6, 4, padding_idx=2)
        self.tied = nn.Linear(4, 6, bias=False)
        self.tied.weight = self.eighth.weight
        self.register_buffer("order", torch.randperm(12).flip(0)[2:])
        self.register_buffer("table", torch.outer(torch.arange(5.0), 1.0 / 10 ** (torch.arange(0, 8, 2) / 8)), False)
        self.plain = torch.arange(3) * 2
        self.low = nn.Linear(3, 3).to(torch.bfloat16)
        self.turned = nn.Parameter(torch.empty(6, 4).t().normal_())
        self.from_data = nn.Parameter(torch.tensor([[1.0, 2.0], [3.0, 4.0]]).mul_(torch.randn(2)))


def everything(model: nn.Module) -> dict[str, Tensor]:
    named = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    return dict(named)


def made(model: nn.Module, names: list[str]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    deferred_values(model, {n: n for n in names}, lambda name, tensor: found.update({name: tensor.clone()}))
    return found


def clip() -> nn.Module:
    torch.manual_seed(1)
    return zoo.clip(layers=(2, 2), width=32)[0]


def llama() -> nn.Module:
    torch.manual_seed(1)
    return zoo.llama()[0]


@pytest.mark.parametrize("factory", [Various, clip, llama])
def test_every_tensor_has_exactly_the_values_of_an_ordinary_build(factory: Callable[[], nn.Module]) -> None:
    expected = everything(factory())
    model = deferred(factory)
    assert all(t.is_meta for t in everything(model).values())
    found = made(model, list(expected))
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
        assert (found[name].dtype, found[name].stride()) == (tensor.dtype, tensor.stride())


def test_one_tensor_alone_has_the_same_values() -> None:
    expected = everything(Various())
    model = deferred(Various)
    for name in ("order", "turned", "second.bias", "sixth", "low.weight"):
        assert torch.equal(made(model, [name])[name], expected[name]), name


def test_the_model_is_the_users_own_with_its_ties_and_plain_tensors() -> None:
    model = deferred(Various)
    assert isinstance(model, Various)
    assert model.tied.weight is model.eighth.weight
    assert model.plain.tolist() == [0, 2, 4]
    assert model.rates == Various().rates


def test_random_numbers_drawn_after_it_are_those_from_before_it() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    deferred(lambda: nn.Linear(4, 4))
    assert torch.equal(torch.rand(3), expected)


def test_memory_while_it_is_built_does_not_grow_with_the_model() -> None:
    model = deferred(lambda: nn.Linear(2**20, 2**20))  # 4 TiB
    assert model.weight.shape == (2**20, 2**20)


def test_what_cannot_be_made_later_is_refused_by_name() -> None:
    with pytest.raises(CaptureError, match="meta device itself"):
        deferred(lambda: nn.Linear(2, 2, device="meta"))
    with pytest.raises(CaptureError, match=r"gives a int, no nn\.Module"):
        deferred(lambda: 3)  # type: ignore[arg-type,return-value]
    with pytest.raises(CaptureError, match=r"weight is on the meta device and has no values; build .* plait\.deferred"):
        deferred_values(nn.Linear(2, 2, device="meta"), {"weight": 0}, print)


def test_two_parameters_that_share_memory_are_refused_by_name() -> None:
    def factory() -> nn.Module:
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        model[1].weight.data = model[0].weight.data
        return model

    with pytest.raises(CaptureError, match=r"1\.weight and 0\.weight are two parameters that share memory"):
        deferred(factory)
