"""`topout data` as a person types it: comparing with a source, and what it says of things that are no whole pack."""

import json
import os
import shutil

import pytest

from tests.packs.packs import file_folder, flip, image_folder, small_pack
from topout.cli.main import call


@pytest.fixture
def topout(tmp_path, monkeypatch, capsys):
    """Calls the command line in `tmp_path`: exit code, what was printed, what was said beside."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        code = call(list(words))
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def three_parts(err):
    problem, why, do = err.splitlines()[-3:]
    assert (why[:6], do[:5]) == ("  why ", "  do ")
    return problem, why, do


def test_a_pack_is_equal_to_the_source_it_was_made_from_and_to_a_copy_of_it(topout, tmp_path):
    image_folder(tmp_path / "images", per_class=3)
    topout("pack", "images", "pack", "--shard-size", "4K")
    shutil.copytree(tmp_path / "images", tmp_path / "copy")
    for source in ("images", "copy"):
        code, out, _ = topout("data", "check", "pack", "--source", source)
        assert code == 0
        assert out.splitlines()[1] == f"pack is equal to {source}: 6 entries compared."


def test_what_is_missing_extra_or_different_is_named(topout, tmp_path):
    file_folder(tmp_path / "files", 5, 100)
    topout("pack", "files", "pack")
    (tmp_path / "files" / "0001.bin").unlink()
    (tmp_path / "files" / "0002.bin").rename(tmp_path / "files" / "new.bin")
    changed = tmp_path / "files" / "0003.bin"
    # same size and time: only its bytes tell
    before = changed.stat()
    flip(changed, 50)
    os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns))
    code, out, err = topout("data", "check", "pack", "--source", "files")
    assert code == 1
    assert out.splitlines()[1:] == [
        "pack differs from files:",
        "  only in files: 1",
        "    'new.bin'",
        "  only in pack: 2",
        "    '0001.bin'",
        "    '0002.bin'",
        "  different: 1",
        "    '0003.bin': data differs",
    ]
    assert err.endswith("Next    topout pack files pack --force\n")
    listed = json.loads(topout("data", "check", "pack", "--source", "files", "--json")[1])["comparison"]
    assert [(each["name"], each["what"]) for each in listed["differences"]] == [
        ("0003.bin", "different"),
        ("new.bin", "only in source"),
        ("0001.bin", "only in pack"),
        ("0002.bin", "only in pack"),
    ]


def test_many_differences_are_counted_and_a_few_shown(topout, tmp_path):
    file_folder(tmp_path / "files", 9, 10)
    topout("pack", "files", "pack")
    for path in (tmp_path / "files").iterdir():
        flip(path, 0)
    _, out, _ = topout("data", "check", "pack", "--source", "files")
    assert out.splitlines()[2] == "  different: 9"
    assert out.splitlines()[-1] == "    … and 4 more"


def test_a_new_class_folder_changes_labels_which_is_said(topout, tmp_path):
    image_folder(tmp_path / "images", per_class=1)
    topout("pack", "images", "pack")
    image_folder(tmp_path / "images", per_class=1, classes=("ant",))
    code, out, _ = topout("data", "check", "pack", "--source", "images")
    assert code == 1
    assert out.splitlines()[2:] == [
        "  only in images: 1",
        "    'ant/000.jpg'",
        "  different: 2",
        "    'cat/000.jpg': label differs",
        "    'dog/000.jpg': label differs",
    ]


@pytest.mark.parametrize("option", [["--resize", "16"], ["--tile", "16"], ["--codec", "data=zstd"]])
def test_what_packing_changed_is_made_again_and_compared(topout, tmp_path, option):
    make = file_folder if option[0] == "--codec" else image_folder
    make(tmp_path / "files", *((40, 500) if make is file_folder else ()))
    assert topout("pack", "files", "pack", *option)[0] == 0
    assert topout("data", "check", "pack", "--source", "files")[0] == 0
    paths = sorted(path for path in (tmp_path / "files").rglob("*") if path.is_file())
    paths[0].write_bytes(paths[-1].read_bytes())
    code, out, _ = topout("data", "check", "pack", "--source", "files")
    assert (code, "  different: " in out, "data differs" in out or "image differs" in out) == (1, True, True)


def test_what_was_left_out_is_no_difference_until_it_can_be_packed(topout, tmp_path):
    image_folder(tmp_path / "images", per_class=2)
    (tmp_path / "images" / "cat" / "empty.jpg").write_bytes(b"")
    assert topout("pack", "images", "pack", "--on-error", "skip")[0] == 0
    assert topout("data", "check", "pack", "--source", "images")[0] == 0
    shutil.copy(tmp_path / "images" / "cat" / "000.jpg", tmp_path / "images" / "cat" / "empty.jpg")
    code, out, _ = topout("data", "check", "pack", "--source", "images")
    assert (code, out.splitlines()[2:]) == (1, ["  only in images: 1", "    'cat/empty.jpg'"])


def test_an_entry_that_can_no_longer_be_packed_is_different(topout, tmp_path):
    image_folder(tmp_path / "images", per_class=2)
    topout("pack", "images", "pack")
    (tmp_path / "images" / "cat" / "000.jpg").write_bytes(b"")
    code, out, _ = topout("data", "check", "pack", "--source", "images")
    assert (code, out.splitlines()[3][:19]) == (1, "    'cat/000.jpg': ")


def test_a_source_that_is_not_there_or_not_of_the_pack_is_an_error(topout, tmp_path):
    image_folder(tmp_path / "images", per_class=2)
    file_folder(tmp_path / "files", 3, 10)
    topout("pack", "images", "pack", "--resize", "16")
    small_pack(tmp_path / "written")
    code, _, err = topout("data", "check", "pack", "--source", "nowhere")
    assert (code, three_parts(err)[0]) == (2, "There is nothing at nowhere.")
    code, _, err = topout("data", "check", "pack", "--source", "files")
    assert (code, three_parts(err)[0]) == (2, "files cannot be read as what the pack was made from.")
    assert "There are no images to change" in err
    code, _, err = topout("data", "check", "written", "--source", "files")
    assert (code, three_parts(err)[0]) == (2, "written cannot be compared with files.")


def test_a_damaged_pack_is_not_compared_and_says_so(topout, tmp_path):
    file_folder(tmp_path / "files", 3, 1000)
    topout("pack", "files", "pack")
    flip(tmp_path / "pack" / "shard-00000.bin", 4200)
    code, out, err = topout("data", "check", "pack", "--source", "files")
    assert (code, out.count("\n"), "It was not compared with files" in err) == (1, 1, True)


def test_a_source_with_fewer_entries_repairs_nothing_and_is_said_so(run_topout, tmp_path):
    file_folder(tmp_path / "files", 30, 2000)
    file_folder(tmp_path / "others", 3, 2000)
    run_topout(["pack", "files", "pack", "--shard-size", "20K"])
    flip(tmp_path / "pack" / "shard-00001.bin", 5000)
    done = run_topout(["data", "check", "pack", "--repair", "--source", "others"])
    assert (done.code, three_parts(done.stderr)[0]) == (3, "pack/shard-00001.bin cannot be repaired.")
    assert run_topout(["data", "check", "pack", "--repair"]).code == 0


def test_a_missing_file_is_called_missing(topout, tmp_path):
    file_folder(tmp_path / "files", 30, 2000)
    topout("pack", "files", "pack", "--shard-size", "20K")
    (tmp_path / "pack" / "shard-00001.bin").unlink()
    code, out, _ = topout("data", "check", "pack")
    assert (code, out) == (1, "shard-00001.bin: it is missing; the pack's list of files has it\n")


def test_a_shard_that_is_cut_short_is_noted_by_info(topout, tmp_path):
    file_folder(tmp_path / "files", 3, 100)
    topout("pack", "files", "pack")
    assert "Note" not in topout("data", "info", "pack")[1]
    shard = tmp_path / "pack" / "shard-00000.bin"
    size_bytes = shard.stat().st_size
    os.truncate(shard, 10)
    code, out, err = topout("data", "info", "pack")
    note = f"Note: shard-00000.bin is damaged: it has 10 bytes, not {size_bytes:,} as it was written."
    assert (code, out.splitlines()[-1]) == (0, note)
    assert err.endswith("Next    topout data check pack\n")


@pytest.mark.parametrize("words", [["data", "info", "pack"], ["pack", "pack", "dst"], ["data", "check", "pack"]])
def test_what_was_to_be_a_pack_is_not_taken_for_a_folder_of_files(topout, tmp_path, words):
    file_folder(tmp_path / "files", 3, 100)
    topout("pack", "files", "pack")
    (tmp_path / "pack" / "pack.json").unlink()
    code, _, err = topout(*words)
    assert (code, three_parts(err)[0]) == (3, "pack is not a whole pack.")
    (tmp_path / "pack" / ".packing").mkdir()
    code, _, err = topout(*words)
    assert (code, three_parts(err)[0]) == (2, "pack is not a pack yet.")


def test_an_empty_folder_is_not_advised_to_be_packed(topout, tmp_path):
    (tmp_path / "empty").mkdir()
    code, _, err = topout("data", "info", "empty")
    assert (code, err) == (0, "\nThere is nothing to pack there.\n")


def test_a_damaged_pack_that_is_converted_is_advised_what_there_is(run_topout, tmp_path):
    # in processes of their own: one process remembers the source of a pack by its path
    file_folder(tmp_path / "files", 3, 1000)
    run_topout(["pack", "files", "pack"])
    flip(tmp_path / "pack" / "shard-00000.bin", 4200)
    done = run_topout(["data", "convert", "pack", "again", "-q"])
    problem, _, do = three_parts(done.stderr)
    assert (done.code, problem) == (2, "Entry 0 ('0000.bin') cannot be packed.")
    assert do == "  do   topout data check pack --repair"
    begun = run_topout(["data", "head", "again"])
    assert three_parts(begun.stderr)[0] == "again is not a pack yet."
    assert "give the command that began it again" in begun.stderr
    # both pieces of advice, followed
    assert run_topout(["data", "check", "pack", "--repair"]).code == 0
    assert run_topout(["data", "convert", "pack", "again", "-q"]).code == 0


def test_hdf5_that_was_unpacked_without_an_ending_is_packed_again(topout, tmp_path):
    small_pack(tmp_path / "pack", num_samples=4)
    assert topout("data", "unpack", "pack", "out", "--to", "hdf5")[0] == 0
    code, out, err = topout("pack", "out", "again")
    assert (code, out.startswith("again: 4 samples")) == (0, True), err
    assert topout("data", "head", "again", "-n", "4")[1] == topout("data", "head", "pack", "-n", "4")[1]


@pytest.mark.parametrize("words", [["data", "info", "locked"], ["pack", "locked", "dst"]])
def test_a_folder_that_may_not_be_read_is_told(run_topout, tmp_path, words):
    file_folder(tmp_path / "locked", 3, 10)
    (tmp_path / "locked").chmod(0)
    # root may read everything, unless it gives that up
    before = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    done = run_topout(words, before=before)
    (tmp_path / "locked").chmod(0o700)
    assert (done.code, three_parts(done.stderr)[0]) == (3, "locked cannot be read.")
