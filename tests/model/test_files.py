import os

import pytest

from departing.model.errors import InputError
from departing.model.files import atomic_write


def test_a_file_is_replaced_atomically(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), atomic_write(path) as part:
        part.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    with atomic_write(path) as part:
        part.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_the_file_has_default_permissions(tmp_path):
    (tmp_path / "plain").write_text("")
    with atomic_write(tmp_path / "made") as part:
        part.write_text("x")
    assert os.stat(tmp_path / "made").st_mode == os.stat(tmp_path / "plain").st_mode


def test_a_full_disk_raises_a_clear_error(tmp_path):
    with pytest.raises(InputError, match=r"Cannot write .*No space left"), atomic_write(tmp_path / "a.txt"):
        raise OSError(28, "No space left on device")


def test_errors_of_other_files_are_not_attributed_to_the_target(tmp_path):
    with pytest.raises(FileNotFoundError), atomic_write(tmp_path / "a.txt"):
        open(tmp_path / "other.txt")  # noqa: SIM115
    with pytest.raises(InputError, match=r"Cannot write .*null"), atomic_write(tmp_path / "a\0.txt"):
        pass
    assert list(tmp_path.iterdir()) == []
