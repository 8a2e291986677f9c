"""The run folder names its own files, and passes over those of others."""

from topout.schema.run_folder import RunFolder


def test_copies_beside_recordings_are_no_ranks(tmp_path):
    for name in ("rank-00001.events", "rank-00000.events", "rank-00001 (1).events", "rank-2.events", "rank-.events"):
        (tmp_path / name).touch()
    assert RunFolder(tmp_path).ranks_recorded() == [0, 1]
