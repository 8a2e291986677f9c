"""What `--packs` takes, what it refuses before a job starts, and what it says afterwards."""

import os
import shutil

import pytest

from tests.feed.serve.packs import pack_folder, run_served, write_tree
from topout.feed.serve.orders import check_packs, orders_in, split_order
from topout.schema.errors import TopoutError

READS = "import os, sys\nfor path in sys.argv[1:]: print(os.path.basename(path), open(path).read(), flush=True)\n"


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "reads.py"
    path.write_text(READS)
    return path


@pytest.fixture
def two(tmp_path):
    """Two folders and a folder of their packs."""
    for name in ("train", "val"):
        pack_folder(write_tree(tmp_path / "set" / name, {"a/1.txt": name.encode()}), tmp_path / "packs" / name)
    return tmp_path


def test_a_folder_of_packs_stands_in_for_all_their_folders(two, script, run_topout):
    shutil.rmtree(two / "set")
    done = run_topout(
        ["run", "-n", "1", "--no-report", "--packs", "packs", script, "set/train/a/1.txt", "set/val/a/1.txt"]
    )
    assert (done.code, done.stdout) == (0, "1.txt train\n1.txt val\n"), done.stderr


def test_folders_above_the_roots_are_there_as_long_as_packs_are(two):
    orders = [f"{two}/set/{name}={two}/packs/{name}" for name in ("train", "val")]
    shutil.rmtree(two / "set")
    code = f"import os; os.chdir({str(two)!r}); print([(a, sorted(b), c) for a, b, c in os.walk('set')])"
    done = run_served(code, *orders)
    walked = [("set", ["train", "val"], [])]
    for name in ("train", "val"):
        walked += [(f"set/{name}", ["a"], []), (f"set/{name}/a", [], ["1.txt"])]
    assert sorted(eval(done.stdout)) == sorted(walked), done.stderr


def test_packs_may_stand_in_the_configuration(two, script, run_topout):
    (two / "topout.toml").write_text('[run]\npacks = ["packs/val"]\n')
    done = run_topout(["run", "-n", "1", "--no-report", script, "set/val/a/1.txt"])
    assert (done.code, done.stdout) == (0, "1.txt val\n"), done.stderr


def test_every_rank_is_served(two, script, run_topout):
    shutil.rmtree(two / "set")
    done = run_topout(["run", "-n", "2", "--no-report", "--packs", "packs/train", script, "set/train/a/1.txt"])
    assert done.code == 0, done.stderr
    logs = sorted(two.glob("topout-runs/*/logs/*"))
    assert sum("1.txt train" in path.read_text() for path in logs) >= 2


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["set/train"], "is not a pack."),
        (["nothing"], "There is nothing at"),
        (["elsewhere=set"], "is not a pack."),
        (["packs/val", "set/val=packs/train"], "Two packs stand in for"),
    ],
)
def test_what_is_no_pack_is_refused_before_the_job_starts(words, problem, two, script, run_topout):
    flags = [flag for word in words for flag in ("--packs", word)]
    done = run_topout(["run", *flags, script, "set/val/a/1.txt"])
    assert done.code == 2
    assert problem in done.stderr and "\n  why  " in done.stderr and "\n  do   " in done.stderr
    assert not (two / "topout-runs").exists() and not done.stdout


def test_a_pack_that_lacks_a_shard_is_refused_before_the_job_starts(two, script, run_topout):
    (two / "packs" / "val" / "shard-00000.bin").unlink()
    done = run_topout(["run", "--packs", "packs/val", script, "set/val/a/1.txt"])
    assert done.code == 3 and "shard-00000.bin is missing" in done.stderr
    assert not done.stdout


def test_a_pack_that_is_gone_in_a_rank_ends_it_with_the_three_parts(two):
    done = run_served("print('ran')", f"{two}/set/train={two}/none")
    assert done.returncode and "There is nothing at" in done.stderr and not done.stdout


CHANGES = {
    "another size": lambda root: (root / "a" / "1.txt").write_text("longer than before"),
    "the same size": lambda root: (root / "a" / "1.txt").write_text("LLAMA"),
    "another file": lambda root: (root / "a" / "2.txt").write_text("new"),
    "a file gone": lambda root: os.rename(root / "a" / "1.txt", root / "a" / "0.txt"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_folder_that_has_changed_since_is_refused(change, tmp_path, script, run_topout):
    root = write_tree(tmp_path / "data", {"a/1.txt": b"first", "b/1.txt": b"other"})
    pack_folder(root, tmp_path / "pack")
    change(root)
    done = run_topout(["run", "-n", "1", "--no-report", "--packs", "pack", script, "data/b/1.txt"])
    assert done.code == 2, done.stderr
    assert f"{root} has changed since" in done.stderr and "topout pack --force" in done.stderr
    assert "Traceback" not in done.stderr and not done.stdout


def test_a_copy_of_the_folder_elsewhere_is_not_a_change(tmp_path, script, run_topout):
    root = write_tree(tmp_path / "data", {"a/1.txt": b"first"})
    pack_folder(root, tmp_path / "pack")
    shutil.copytree(root, tmp_path / "copy", copy_function=shutil.copyfile)
    done = run_topout(["run", "-n", "1", "--no-report", "--packs", "copy=pack", script, "copy/a/1.txt"])
    assert (done.code, done.stdout) == (0, "1.txt first\n"), done.stderr


def test_packs_that_served_nothing_are_named_at_the_end(two, script, run_topout):
    other = two / "other.txt"
    other.write_text("else")
    done = run_topout(["run", "-n", "1", "--no-report", "--packs", "packs/val", script, other])
    assert done.code == 0
    assert f"the script asked for no path under {two / 'set' / 'val'}" in done.stderr
    used = run_topout(["run", "-n", "1", "--no-report", "--packs", "packs/val", script, "set/val/a/1.txt"])
    assert "served nothing" not in used.stderr


def test_a_pack_of_resized_images_says_that_it_is_not_the_folder(tmp_path):
    from tests.feed.serve.test_training import image

    root = write_tree(tmp_path / "data", {"a/1.jpg": image(1, "JPEG"), "b/2.jpg": image(2, "JPEG")})
    pack_folder(root, tmp_path / "pack", resize=8)
    orders, notes = check_packs([str(tmp_path / "pack")])
    assert orders == [f"{root}={tmp_path / 'pack'}"]
    assert len(notes) == 1 and "packed with resize 8" in notes[0]


def test_a_pack_of_arrays_is_no_folder_of_files(tmp_path):
    import numpy as np

    from topout.packs.fields import Field
    from topout.packs.packing.writer import PackWriter

    with PackWriter(tmp_path / "pack", fields=[Field(name="x", kind="array", shape=(2,), dtype="<f4")]) as writer:
        writer.add("one", {"x": np.zeros(2, "<f4")})
    with pytest.raises(TopoutError, match="cannot stand in for a folder of files"):
        check_packs([f"/data={tmp_path / 'pack'}"])


def test_a_path_with_an_equals_sign_is_read_as_the_path_it_is(tmp_path):
    (tmp_path / "a=b").mkdir()
    whole = str(tmp_path / "a=b")
    assert split_order(whole) == (None, whole)
    assert split_order(f"/x=y={whole}") == ("/x=y", whole)
    assert split_order("/x=/none") == ("/x", "/none")
    assert orders_in({"TOPOUT_PACKS": f'["/x={tmp_path}"]'}) == [("/x", str(tmp_path))]
    assert orders_in({}) == []


def test_what_is_lost_with_the_folder_is_said(tmp_path):
    from tests.feed.serve.test_training import image

    root = write_tree(tmp_path / "data", {f"a/{number}.jpg": image(number, "JPEG") for number in range(12)})
    (root / "README").write_text("left out, as it is no image")
    (root / "empty" / "deeper").mkdir(parents=True)
    pack_folder(root, tmp_path / "pack")
    assert check_packs([str(tmp_path / "pack")])[1] == []
    shutil.rmtree(root)
    notes = check_packs([str(tmp_path / "pack")])[1]
    assert [note.partition(", and ")[2] for note in notes] == [
        f"1 of its files are not in {tmp_path / 'pack'}", "2 of its folders held nothing that was packed",
    ]  # fmt: skip


def test_packs_may_be_given_again_and_are_read_without_the_parser():
    from topout.cli.run_options import read_quickly

    read = read_quickly(["--packs", "a", "--packs=b=c", "train.py", "--packs", "d"])
    assert read is not None
    assert (read["packs"], read["script_and_args"]) == (["a", "b=c"], ["train.py", "--packs", "d"])


def test_a_rank_hears_of_its_own_packs_alone():
    from tests.launch.test_rank_env import environment
    from topout.schema.spec import RunSpec

    assert environment(RunSpec(packs=("/a=/b",)))["TOPOUT_PACKS"] == '["/a=/b"]'
    assert "TOPOUT_PACKS" not in environment(TOPOUT_PACKS='["/of=/another"]')
