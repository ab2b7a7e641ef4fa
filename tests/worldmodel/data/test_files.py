"""Files that are written whole: what takes the place of what."""

import os

import pytest

from worldmodel.data.records import atomic_write


def test_a_link_is_written_through_and_nothing_else_is_replaced(tmp_path):
    real, link = tmp_path / "real.jsonl", tmp_path / "link.jsonl"
    real.write_text("old")
    link.symlink_to(real)
    with atomic_write(link) as file:
        file.write("new")
    assert real.read_text() == "new"
    assert link.is_symlink()
    os.mkfifo(tmp_path / "pipe")
    for name, kind in ((".", "a directory"), ("pipe", "no regular file")):
        with (
            pytest.raises(FileExistsError, match=f"{kind}; expected a file to write"),
            atomic_write(tmp_path / name) as file,
        ):
            file.write("new")
    (tmp_path / "to_pipe").symlink_to(tmp_path / "pipe")
    with (
        pytest.raises(FileExistsError, match="no regular file"),
        atomic_write(tmp_path / "to_pipe"),
    ):
        pass
    (tmp_path / "to_pipe").unlink()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(OSError), atomic_write(tmp_path / "loop"):  # noqa: PT011
        pass
    (tmp_path / "loop").unlink()
    assert (tmp_path / "pipe").is_fifo()
    assert {p.name for p in tmp_path.iterdir()} == {"real.jsonl", "link.jsonl", "pipe"}
