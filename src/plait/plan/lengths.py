"""Lengths: what is to be done with batches whose samples are longer or shorter than planned."""

from typing import Annotated

from pydantic import Field

from plait.files import Value


class Lengths(Value):
    """Inputs in ``pad`` are filled up along their second dimension; the others are taken as they come.

    ``length`` is the planned length; without it, it is that of the example batch. Without ``multiple_of`` inputs are
    filled up to the planned length, so that all steps are alike. With it they get the next multiple of it, and the
    model is traced once for each length that occurs: choose it so that these are few.
    """

    pad: dict[str, float] = Field(
        default_factory=dict,
        description="input → the value that it is filled up with",
        examples=[{"input_ids": 0, "attention_mask": 0, "labels": -100}],
    )
    length: Annotated[int, Field(gt=0)] | None = Field(
        default=None, description="the length to plan for; without it that of the first batch"
    )
    multiple_of: Annotated[int, Field(gt=0)] | None = Field(
        default=None, description="fill up to a multiple of this instead of the planned length"
    )
