"""What the seeds bring along and Tundish doesn't: the few lines that do it instead."""

import asyncio
import contextlib
import csv
import json
import sqlite3
import struct
import threading
import wave

import numpy as np
import pytest
import torch

import tundish
from parity.peers import flat, ours
from tundish import ArrayDataset, DataLoader, DatasetFactory, MapDataset, StackDataset

WORKERS = pytest.mark.parametrize("workers", [0, 2])


@WORKERS
def test_a_table_of_a_database_is_a_batched_fetch_with_a_connection_for_each_thread(
    tmp_path, workers
):
    path = tmp_path / "train.db"
    with contextlib.closing(sqlite3.connect(path)) as made, made:
        made.execute("create table train (row_id integer primary key, name text, size real)")
        rows = [(k + 1, f"item {k}", k / 4) for k in range(20)]
        made.executemany("insert into train values (?, ?, ?)", rows)
    queries, opened = [], []

    class Table:
        def __init__(self):
            opened.append(threading.current_thread())
            # Used by one thread, and closed by whichever drops it.
            self.connection = sqlite3.connect(path, check_same_thread=False)

        def __len__(self):
            return self.connection.execute("select count(*) from train").fetchone()[0]

        def __getitems__(self, indices):
            queries.append(list(indices))
            marks = ",".join("?" * len(indices))
            found = self.connection.execute(
                f"select * from train where row_id in ({marks})", [k + 1 for k in indices]
            )
            by_row = {row_id: {"name": name, "size": size} for row_id, name, size in found}
            return [by_row[k + 1] for k in indices]

        def __del__(self):
            self.connection.close()

    loader = DataLoader(DatasetFactory(Table), 5, shuffle=True, seed=7, num_workers=workers)
    batches = list(loader)
    names = flat(batch["name"] for batch in batches)
    assert sorted(names) == sorted(f"item {k}" for k in range(20))
    assert names != [f"item {k}" for k in range(20)]
    assert len(queries) == 4  # one for each batch
    assert len({thread.ident for thread in opened}) <= workers + 1


def test_rows_of_csv_and_json_files_are_a_list(tmp_path):
    (tmp_path / "rows.csv").write_text("name,size\na,1\nb,2\nc,3\n")
    with (tmp_path / "rows.csv").open(newline="") as file:
        rows = [{"name": row["name"], "size": int(row["size"])} for row in csv.DictReader(file)]
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    with (tmp_path / "rows.jsonl").open() as file:
        again = [json.loads(line) for line in file]
    for items in (rows, again):
        found = list(DataLoader(items, 2))
        assert [batch["name"] for batch in found] == [["a", "b"], ["c"]]
        assert [batch["size"].tolist() for batch in found] == [[1, 2], [3]]


def test_columns_of_a_dataframe_are_an_array_dataset():
    columns = {"age": np.array([3, 1, 4]), "name": np.array(["a", "bc", "d"])}
    loader = DataLoader(ArrayDataset(**columns), 2, worker_mode="native")
    assert [batch["age"].tolist() for batch in loader] == [[3, 1], [4]]
    assert [batch["name"].tolist() for batch in loader] == [["a", "bc"], ["d"]]


@WORKERS
def test_a_folder_of_images_is_a_list_of_paths_and_a_function(tmp_path, workers):
    for label, kind in enumerate(["cat", "dog"]):
        (tmp_path / kind).mkdir()
        for k in range(3):
            np.save(tmp_path / kind / f"{k}.npy", np.full((4, 4, 3), 10 * label + k, "u1"))
    kinds = sorted(path.name for path in tmp_path.iterdir())

    def load(path):  # np.load stands for whatever decodes the images
        return {"image": np.load(path), "label": kinds.index(path.parent.name)}

    loader = DataLoader(MapDataset(sorted(tmp_path.glob("*/*.npy")), load), 3, num_workers=workers)
    found = list(loader)
    assert [batch["label"].tolist() for batch in found] == [[0, 0, 0], [1, 1, 1]]
    assert [batch["image"][:, 0, 0, 0].tolist() for batch in found] == [[0, 1, 2], [10, 11, 12]]
    assert found[0]["image"].shape == (3, 4, 4, 3)


def test_an_idx_file_is_a_memory_map(tmp_path):
    # The format of MNIST's files: a magic number, the sizes, the bytes.
    images = np.arange(5 * 2 * 3, dtype="u1").reshape(5, 2, 3)
    (tmp_path / "images").write_bytes(struct.pack(">4i", 2051, 5, 2, 3) + images.tobytes())
    magic, *shape = struct.unpack(">4i", (tmp_path / "images").read_bytes()[:16])
    assert magic == 2051
    mapped = np.memmap(tmp_path / "images", np.uint8, "r", offset=16, shape=tuple(shape))
    loader = DataLoader(ArrayDataset(image=mapped), 2, worker_mode="native")
    assert np.array_equal(np.concatenate([batch["image"] for batch in loader]), images)


def test_texts_of_several_encodings_and_sounds_are_read_by_a_function(tmp_path):
    texts = {"a.txt": ("Straße", "utf-8"), "b.txt": ("Straße", "latin-1")}
    for name, (text, encoding) in texts.items():
        (tmp_path / name).write_bytes(text.encode(encoding))

    def read(path):
        content = path.read_bytes()
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError:
            return content.decode("latin-1")

    paths = [tmp_path / name for name in texts]
    assert list(DataLoader(MapDataset(paths, read), 2)) == [["Straße", "Straße"]]
    with wave.open(str(tmp_path / "s.wav"), "wb") as made:
        made.setnchannels(1)
        made.setsampwidth(2)
        made.setframerate(8000)
        made.writeframes(np.arange(6, dtype="<i2").tobytes())

    def sound(path):
        with wave.open(str(path)) as file:
            return np.frombuffer(file.readframes(file.getnframes()), "<i2")

    (batch,) = DataLoader(MapDataset([tmp_path / "s.wav"] * 2, sound), 2)
    assert batch.tolist() == [[0, 1, 2, 3, 4, 5]] * 2


@WORKERS
def test_requests_are_awaited_side_by_side_and_tried_again(workers):
    tried = []

    class Remote:
        def __len__(self):
            return 12

        async def __getitem__(self, index):
            for attempt in range(3):
                tried.append(index)
                try:
                    return await self.request(index, attempt)
                except ConnectionError:
                    await asyncio.sleep(0.001)
            raise ConnectionError(f"no answer for {index}")

        async def request(self, index, attempt):
            await asyncio.sleep(0.001)
            if index % 5 == 2 and attempt == 0:
                raise ConnectionError("busy")
            return index

    loader = ours(Remote(), 4, num_workers=workers, items_in_parallel=4)
    assert flat(loader) == list(range(12))
    assert sorted(tried) == sorted([*range(12), 2, 7])


def test_a_transform_that_wants_the_index_gets_it_from_a_stack():
    numbered = StackDataset(["a", "b", "c"], range(3))
    loader = ours(MapDataset(numbered, lambda pair: f"{pair[0]}{pair[1]}"), 2)
    assert list(loader) == [["a0", "b1"], ["c2"]]


def test_a_batcher_is_a_collate_function():
    def batcher(items):  # infallible in burn by its type; here an error of its batch
        return {"sum": sum(items), "count": len(items)}

    loader = DataLoader(range(5), 2, collate_fn=batcher)
    assert list(loader) == [
        {"sum": 1, "count": 2},
        {"sum": 5, "count": 2},
        {"sum": 4, "count": 1},
    ]


def test_a_dataset_of_fakes_is_a_function_of_numbers():
    fakes = MapDataset(range(4), lambda k: {"id": k, "name": f"user {k}"})
    assert [sample["name"] for sample in fakes] == ["user 0", "user 1", "user 2", "user 3"]


def test_batches_of_any_strategy_are_a_batch_sampler():
    lengths = [3, 1, 9, 2, 8]

    class ByWeight:
        """As many samples as weigh ten together, in place of a fixed number."""

        def __iter__(self):
            batch, weight = [], 0
            for index, length in enumerate(lengths):
                if batch and weight + length > 10:
                    yield batch
                    batch, weight = [], 0
                batch.append(index)
                weight += length
            yield batch

    loader = ours(lengths, batch_sampler=ByWeight())
    assert list(loader) == [[3, 1], [9], [2, 8]]


def test_one_loader_for_each_device_is_an_epoch_for_each_rank():
    loader = ours(range(10), 2, shuffle=True, seed=7)
    parts = [flat(loader.epoch(3, rank=k, world_size=2, uneven="keep")) for k in range(2)]
    assert sorted(parts[0] + parts[1]) == list(range(10))
    assert sorted(map(len, parts)) == [5, 5]


def test_the_indices_of_a_batch_come_with_it():
    epoch = ours(range(100, 110), 4, shuffle=True, seed=7).epoch(0)
    for batch in epoch:
        assert [100 + index for index in epoch.info.indices] == batch


def test_a_batch_goes_to_a_device_from_where_it_lies():
    for batch in DataLoader(ArrayDataset(x=np.arange(6.0)), 3):
        tensor = torch.from_numpy(batch["x"])  # no copy, no warning: it is writable
        assert tensor.data_ptr() == batch["x"].ctypes.data
        assert tensor.to("cpu", non_blocking=True).sum() == batch["x"].sum()


def test_what_pickled_loaders_are_wanted_for_is_a_function_that_makes_one():
    loader = ours(range(3), 2)
    with pytest.raises(TypeError, match="can't be pickled"):
        __import__("pickle").dumps(loader)
    assert list(ours(range(3), 2)) == list(loader)


def test_negative_and_far_epochs_need_no_counting():
    loader = ours(range(10), 4, shuffle=True, seed=7)
    assert sorted(flat(loader.epoch(10**12))) == list(range(10))
    with pytest.raises(tundish.ConfigError, match="epoch"):
        loader.epoch(-1)
