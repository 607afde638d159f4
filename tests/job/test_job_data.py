"""A job's data in each form: which samples each step has, also after a resume, and what is refused."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from plait.errors import FileError, RunError
from plait.job.data import Data, data_of
from plait.job.job import Job
from plait.runtime.batch import Portion

MINE = """
import torch
from torch.utils.data import DataLoader, IterableDataset

def listed(count=10, broken=-1):
    class Listed:
        def __len__(self):
            return count
        def __getitem__(self, index):
            if index == broken:
                raise OSError("the image is broken")
            return {"x": torch.tensor(index), "noise": torch.rand(())}
    return Listed()

class Stream(IterableDataset):
    def __iter__(self):
        return iter(listed()[i] for i in range(10))

def stream():
    return Stream()

def loader():
    return DataLoader(listed(), batch_size=4)

def shuffled():
    return DataLoader(listed(), batch_size=4, shuffle=True)

def stateful():
    from torchdata.stateful_dataloader import StatefulDataLoader
    return StatefulDataLoader(listed(), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(5))

def dicts():
    for start in (0, 4):
        yield {"x": torch.arange(start, start + 4)}

def renamed(samples):
    return {"y": torch.stack([sample["x"] for sample in samples])}

def listed_x(samples):
    return {"x": torch.stack([sample["x"] for sample in samples])}

class ByStep:
    def batch(self, step):
        return {"x": torch.full((4,), step)}
    def held_out(self):
        return [{"x": torch.arange(2)}]

def lists():
    return iter([[1, 2]])

def number():
    return 3
"""


def data(folder: Path, factory: str, **fields: Any) -> Data:
    (folder / "mine.py").write_text(MINE)
    given = {"model": {"factory": "m:f"}, "global_batch": 4, "steps": 10, "cluster": "c"}
    given |= {"data": {"factory": f"mine:{factory}", **fields}}
    Job.from_data({"format": "plait-job/1"} | given, "job.yaml").save(folder / "job.yaml")
    return data_of(Job.load(folder / "job.yaml"))


def samples(given: Data, count: int, name: str = "x") -> list[list[int]]:
    return [fed.whole[name].tolist() for fed in islice(given.batches(0), count)]


def test_a_dataset_gives_each_sample_once_an_epoch_in_another_order(tmp_path: Path) -> None:
    found = samples(data(tmp_path, "listed"), 6)
    assert [len(batch) for batch in found] == [4, 4, 2, 4, 4, 2]
    first, second = [i for batch in found[:3] for i in batch], [i for batch in found[3:] for i in batch]
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second


def test_order_seed_and_the_last_short_batch_are_the_users_choice(tmp_path: Path) -> None:
    assert samples(data(tmp_path, "listed", shuffle=False), 3) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert samples(data(tmp_path, "listed", shuffle=False, drop_last=True), 3)[2] == [0, 1, 2, 3]
    assert samples(data(tmp_path, "listed", seed=1), 3) != samples(data(tmp_path, "listed", seed=2), 3)


def test_an_iterable_of_samples_is_put_together(tmp_path: Path) -> None:
    assert samples(data(tmp_path, "stream"), 4) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], [0, 1, 2, 3]]
    assert samples(data(tmp_path, "stream", drop_last=True), 3)[2] == [0, 1, 2, 3]


@pytest.mark.filterwarnings("ignore:.*set_vital")  # torchdata looks at all that torch has
@pytest.mark.parametrize("kind", ["listed", "stream", "loader", "shuffled", "stateful", "ByStep"])
@pytest.mark.parametrize("taken", [1, 3, 4])
def test_a_resumed_run_has_the_samples_that_would_have_come(tmp_path: Path, kind: str, taken: int) -> None:
    whole = samples(data(tmp_path, kind), 7)
    *_, last = islice(data(tmp_path, kind).batches(0), taken)
    stored = json.loads(json.dumps(last.after))
    rest = islice(data(tmp_path, kind).batches(taken, stored), 7 - taken)
    assert [fed.whole["x"].tolist() for fed in rest] == whole[taken:]


def test_of_a_dataset_only_the_samples_that_this_rank_reads_are_read(tmp_path: Path) -> None:
    for fields in ({}, {"workers": 1}, {"collate": "mine:listed_x", "whole": False}):
        given = data(tmp_path, "listed", options={"broken": 1}, shuffle=False, **fields)
        batch = next(given.batches(0, None, lambda samples: [0, samples - 1])).batch
        assert isinstance(batch, Portion)
        assert (batch.samples, batch.positions, batch.inputs["x"].tolist()) == (4, (0, 3), [0, 3])
        assert next(given.batches(0, None, lambda _: [])).batch == Portion(4, (), {})


def test_a_collate_is_given_the_whole_batch_unless_told_otherwise(tmp_path: Path) -> None:
    for fields in ({"collate": "mine:listed_x"}, {"whole": True}):
        given = data(tmp_path, "listed", shuffle=False, **fields)
        assert next(given.batches(0, None, lambda _: [0])).whole["x"].tolist() == [0, 1, 2, 3]


def test_random_numbers_in_worker_processes_are_the_same_on_every_rank(tmp_path: Path) -> None:
    def noise() -> list[list[int]]:
        return samples(data(tmp_path, "listed", workers=1), 4, "noise")

    one = noise()
    assert noise() == one
    assert one[0] != one[3]  # another epoch


def test_a_loader_that_shuffles_gives_all_ranks_the_same(tmp_path: Path) -> None:
    torch.manual_seed(1)
    one = samples(data(tmp_path, "shuffled"), 6)
    torch.manual_seed(2)
    assert samples(data(tmp_path, "shuffled"), 6) == one
    assert one[:3] != one[3:]


def test_batches_and_collate_are_the_users(tmp_path: Path) -> None:
    assert samples(data(tmp_path, "dicts", batched=True), 2) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert samples(data(tmp_path, "listed", collate="mine:renamed", shuffle=False), 1, "y") == [[0, 1, 2, 3]]


def test_held_out_data_come_once_and_in_order(tmp_path: Path) -> None:
    for kind in ("listed", "stream", "loader"):
        found = data(tmp_path, "listed", held_out=f"mine:{kind}").held_out()
        assert [batch["x"].tolist() for batch in found] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [b["x"].tolist() for b in data(tmp_path, "ByStep").held_out()] == [[0, 1]]
    with pytest.raises(FileError, match=r"data.held_out: missing"):
        data(tmp_path, "listed").held_out()


@pytest.mark.parametrize(
    ("factory", "fields", "words"),
    [
        ("number", {}, "data.factory: mine:number gives a int; data is a dataset"),
        ("loader", {"shuffle": False}, "data.shuffle: it has no effect on an iterable, which mine:loader gives"),
        ("ByStep", {"collate": "mine:renamed"}, "data.collate: it has no effect on data with batch"),
        ("listed", {"collate": "mine:absent"}, "data.collate: .* has no 'absent'"),
        ("listed", {"options": {"size": 3}}, "data.options: listed has no option 'size'"),
    ],
)
def test_wrong_data_are_told_by_field(tmp_path: Path, factory: str, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(FileError, match=words):
        data(tmp_path, factory, **fields)


@pytest.mark.parametrize(
    ("factory", "fields", "words"),
    [
        ("listed", {"options": {"broken": 1}}, "mine:listed raised OSError: the image is broken"),
        ("lists", {"batched": True}, "mine:lists gives a list as a batch; a batch maps"),
        ("dicts", {"batched": True}, "the iterable gives no batch"),
        ("listed", {"options": {"count": 3}, "drop_last": True}, "its 3 samples fill no batch of 4"),
    ],
)
def test_bad_batches_are_told(tmp_path: Path, factory: str, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(RunError, match=words):
        samples(data(tmp_path, factory, **fields), 5)
