"""Messages: what is packed comes out again."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from plait.model.graph import TensorSpec
from plait.runtime.layout import ALIGN, HEADER, layout_of

SPECS = st.builds(
    TensorSpec,
    shape=st.lists(st.integers(0, 4), min_size=1, max_size=3).map(tuple),
    dtype=st.sampled_from(["bool", "int64", "uint8", "bfloat16", "float16", "float32", "float64"]),
    batch_dim=st.sampled_from([0, None]),
)


@given(st.lists(SPECS, min_size=1, max_size=5), st.integers(1, 3))
def test_tensors_of_any_type_and_size_come_out_as_they_went_in(specs: list[TensorSpec], samples: int) -> None:
    by_name = {f"v{i}": spec for i, spec in enumerate(specs)}
    layout = layout_of(by_name, list(by_name), samples)
    given_tensors = {
        name: torch.randint(0, 2, spec.shape_for(samples)).to(getattr(torch, spec.dtype))
        for name, spec in by_name.items()
    }
    found = layout.unpack(layout.pack(given_tensors, torch.device("cpu")))
    for name, tensor in given_tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


@given(st.lists(SPECS, min_size=1, max_size=5))
def test_tensors_are_aligned_and_leave_the_header_alone(specs: list[TensorSpec]) -> None:
    layout = layout_of({f"v{i}": s for i, s in enumerate(specs)}, [f"v{i}" for i in range(len(specs))], 2)
    ends = HEADER
    for slot in layout.slots:
        assert slot.offset % ALIGN == 0
        assert slot.offset >= ends
        ends = slot.offset + slot.nbytes
    assert layout.total >= ends
