"""Iterable datasets one after the other."""

import pickle

import pytest

from tundish import ConfigError
from tundish.views import ChainDataset, IterableDataset


class Letters(IterableDataset[str]):
    def __init__(self, letters):
        self.letters = letters
        self.begun = 0
        self.epochs = []

    def __iter__(self):
        self.begun += 1
        return iter(self.letters)

    def set_epoch(self, epoch):
        self.epochs.append(epoch)


class Sized(Letters):
    def __len__(self):
        return len(self.letters)


class Failing:
    """Fails where the letter is an exception, and goes on when it is asked again."""

    def __init__(self, letters):
        self.letters = letters

    def __iter__(self):
        if isinstance(self.letters, Exception):
            raise self.letters
        return _Failing(self.letters)


class _Failing:
    def __init__(self, letters):
        self.letters = iter(letters)

    def __iter__(self):
        return self

    def __next__(self):
        letter = next(self.letters)
        if isinstance(letter, Exception):
            raise letter
        return letter


def everything(iterator):
    """What comes, errors included, until it has ended twice."""
    found, ends = [], 0
    while ends < 2:
        try:
            found.append(next(iterator))
        except StopIteration:
            ends += 1
        except Exception as error:
            found.append(error)
    return found


def test_each_epoch_is_chained_anew():
    first, second = Letters("ab"), Letters("c")
    chain = ChainDataset([first, Letters(""), second])
    assert list(chain) == list(chain) == ["a", "b", "c"]
    assert (first.begun, second.begun) == (2, 2)
    assert list(first + range(2)) == ["a", "b", 0, 1]
    assert list(chain + chain) == ["a", "b", "c"] * 2
    assert list(ChainDataset([])) == []


def test_a_dataset_is_begun_when_its_turn_comes():
    second = Letters("c")
    chain = iter(ChainDataset([Letters("ab"), second]))
    assert [next(chain), next(chain), second.begun] == ["a", "b", 0]
    assert [next(chain), second.begun] == ["c", 1]


def test_the_epoch_is_passed_on_to_those_who_want_it():
    first, second = Letters("ab"), Letters("c")
    ChainDataset([first, "d", ChainDataset([second])]).set_epoch(4)
    assert first.epochs == second.epochs == [4]


def test_the_length_is_known_where_all_are():
    assert len(ChainDataset([Sized("ab"), "cde"])) == 5
    with pytest.raises(TypeError, match="Letters"):
        len(ChainDataset([Sized("ab"), Letters("c")]))
    assert list(ChainDataset([Sized("ab"), Letters("c")])) == ["a", "b", "c"]


def test_after_an_error_the_chain_goes_on():
    bad, worse, ended = ValueError("bad"), OSError("worse"), StopIteration("ended")
    chain = ChainDataset([Failing(["a", bad, "b"]), Failing(worse), Failing(ended), "c"])
    *found, last = everything(iter(chain))
    assert found[:4] == ["a", bad, "b", worse]
    assert type(found[4]) is RuntimeError
    assert str(found[4]) == "__iter__ of Failing raised StopIteration"
    assert found[4].__cause__ is ended
    assert last == "c"
    assert len(found) == 5


def test_what_has_ended_is_not_asked_again():
    class Reviving(_Failing):
        def __next__(self):
            try:
                return super().__next__()
            except StopIteration:
                self.letters = iter("again")
                raise

    class Revived(Failing):
        def __iter__(self):
            return Reviving(self.letters)

    worse = OSError("worse")
    assert everything(iter(ChainDataset([Revived("a"), Failing(worse), "c"]))) == ["a", worse, "c"]


def test_what_cannot_be_chained_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"dataset 1 is a \w+, which can be read only once"):
        ChainDataset([Letters("a"), iter("ab")])
    with pytest.raises(ConfigError, match="dataset 0 is a generator, which can be read only once"):
        ChainDataset([(letter for letter in "ab")])
    with pytest.raises(ConfigError, match="dataset 0 is a int without __iter__; use ConcatDataset"):
        ChainDataset([3])


def test_a_chain_is_a_plain_value():
    chain = pickle.loads(pickle.dumps(ChainDataset([Sized("ab"), range(2)])))
    assert list(chain) == ["a", "b", 0, 1]
    assert repr(chain) == "<ChainDataset of Sized, range>"
