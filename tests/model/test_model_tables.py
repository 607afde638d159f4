"""A graph's tables."""

import pytest

from plait.model import zoo
from plait.model.capture import capture
from plait.model.tables import show_count, tables_of


def test_clip_as_tables() -> None:
    branches, interactions, losses = tables_of(capture(*zoo.clip()).graph)
    assert [row[:3] for row in branches.rows] == [
        ("vision_model", "3", "vision_model.embeddings … vision_model.encoder.layers.1"),
        ("text_model", "3", "text_model.embeddings … text_model.encoder.layers.1"),
        ("loss", "1", "loss"),
    ]
    assert [row[1:] for row in interactions.rows] == [
        ("vision_model.encoder.layers.1", "loss", "256 B", "batch"),
        ("text_model.encoder.layers.1", "loss", "256 B", "batch"),
    ]
    assert losses.rows == (("loss", "1", "batch", "all samples at once"),)


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (999, "999"), (1234, "1.23 k"), (5e9, "5 G"), (2e12, "2 T")])
def test_counts(value: float, text: str) -> None:
    assert show_count(value) == text
