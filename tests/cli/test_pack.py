"""`topout pack` and `topout data` as a person types them: what they print, how they end, what they refuse."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time

import h5py
import numpy as np
import pytest

from tests.conftest import REPOSITORY
from tests.packs.packs import contents, file_folder, flip, image_folder, small_pack
from topout.cli.main import call
from topout.cli.sizes import bytes_text, parse_bytes
from topout.packs.pack import open_pack
from topout.schema.errors import TopoutError

INTERRUPTIBLE = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
from topout.cli.main import main
main()
"""
MOUNTED = 'mount -t tmpfs -o {options} none "$1" && shift && exec "$@"'


def mounted(folder, options):
    """Words before a command, which then finds an in-memory file system at `folder`, and nobody else does."""
    folder.mkdir(exist_ok=True)
    own = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-r", "-m"]
    return [*own, "sh", "-c", MOUNTED.format(options=options), "sh", str(folder)]


def test_a_source_and_a_class_that_are_not_utf_8_are_packed_and_come_back_as_they_were(run_topout, tmp_path):
    source, odd = os.fsdecode(b"images\xff"), os.fsdecode(b"d\xffg")
    image_folder(tmp_path / source, per_class=2, classes=("cat", odd))
    assert run_topout(["pack", source, "pack"]).code == 0
    info = json.loads(run_topout(["data", "info", "pack", "--json"]).stdout)
    assert (info["classes"], info["source"]) == (["cat", odd], str(tmp_path / source))
    assert "nothing to do" in run_topout(["pack", source, "pack"]).stdout
    assert run_topout(["data", "check", "pack"]).code == 0
    assert run_topout(["data", "unpack", "pack", "files"]).code == 0
    assert contents(tmp_path / "files") == contents(tmp_path / source)


def test_a_folder_is_packed_looked_at_checked_and_unpacked(run_topout, tmp_path):
    image_folder(tmp_path / "images", per_class=4)
    done = run_topout(["pack", "images", "pack", "--shard-size", "4K"])
    assert done.code == 0, done.stderr
    assert re.match(r"pack: 8 samples in \d+ shards, \d+\.\d s, .*/s\n", done.stdout)
    assert done.stderr.endswith("Next    topout data info pack\n")

    again = run_topout(["pack", "images", "pack", "--shard-size", "4K"])
    assert (again.code, "nothing to do" in again.stdout) == (0, True)

    info = json.loads(run_topout(["data", "info", "pack", "--json"]).stdout)
    source = json.loads(run_topout(["data", "info", "images", "--json"]).stdout)
    assert (info["format"], info["num_samples"], info["num_files"], info["num_folders"]) == ("pack", 8, 8, 3)
    assert (source["format"], source["num_samples"], source["num_files"], source["num_folders"]) == ("folder", 8, 8, 3)
    assert source["total_bytes"] == sum(path.stat().st_size for path in (tmp_path / "images").rglob("*.jpg"))
    assert info["total_bytes"] == source["total_bytes"] + 8 * 4
    assert info["disk_bytes"] == sum(path.stat().st_size for path in (tmp_path / "pack").iterdir())
    assert sum(size_bin["num_samples"] for size_bin in source["size_bins"]) == 8
    assert info["classes"] == ["cat", "dog"]

    whole = run_topout(["data", "check", "pack"])
    assert (whole.code, "pack is whole: 8 samples" in whole.stdout) == (0, True)
    head = run_topout(["data", "head", "pack", "-n", "2"])
    assert head.stdout.splitlines()[0] == "0  'cat/000.jpg'"
    assert "ff d8 ff" in head.stdout
    assert len(head.stdout.splitlines()) == 6
    back = run_topout(["data", "unpack", "pack", "again"])
    assert (back.code, back.stdout) == (0, "again: 8 samples as folder\n")
    assert contents(tmp_path / "again") == contents(tmp_path / "images")


def test_what_info_prints_is_for_people(run_topout, tmp_path):
    image_folder(tmp_path / "images", per_class=4)
    text = run_topout(["data", "info", "images"])
    for part in (
        "samples       8",
        "files         8 in 3 folders",
        "image        jpeg",
        "2 classes: cat, dog",
        "median",
    ):
        assert part in text.stdout
    assert text.stderr.endswith("Next    topout pack images DST\n")


def test_damage_is_named_exits_with_1_and_is_repaired(run_topout, tmp_path):
    file_folder(tmp_path / "files", 30, 2000)
    assert run_topout(["pack", "files", "pack", "--shard-size", "20K"]).code == 0
    before = contents(tmp_path / "pack")
    flip(tmp_path / "pack" / "shard-00001.bin", 5000)
    flip(tmp_path / "pack" / "index.bin", 4500)
    found = run_topout(["data", "check", "pack"])
    assert found.code == 1
    assert "index.bin: its bytes do not match" in found.stdout
    assert re.search(r"shard-00001\.bin  sample \d+ \('\d+\.bin'\): its bytes do not match", found.stdout)
    assert found.stderr.endswith("Next    topout data check pack --repair\n")
    listed = json.loads(run_topout(["data", "check", "pack", "--json"]).stdout)
    assert [damage["file"] for damage in listed["damages"]] == ["index.bin", "shard-00001.bin"]
    (tmp_path / "files").rename(tmp_path / "moved")
    lost = run_topout(["data", "check", "pack", "--repair"])
    assert (lost.code, "--repair --source SRC" in lost.stderr) == (3, True)
    assert lost.stderr.count("There is nothing at") == 1
    mended = run_topout(["data", "check", "pack", "--repair", "--source", "moved"])
    assert (mended.code, "pack is whole" in mended.stdout) == (0, True)
    assert contents(tmp_path / "pack") == before


def test_chosen_columns_are_packed_and_repaired(run_topout, tmp_path):
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["x"], file["y"], file["x_test"] = np.arange(40).reshape(10, 4), np.arange(10), np.zeros((3, 4))
    refused = run_topout(["pack", "data.h5", "all.pack"])
    assert refused.code == 2
    assert "--columns" in refused.stderr
    done = run_topout(["pack", "data.h5", "train.pack", "--columns", "x", "--columns", "y"])
    assert done.code == 0, done.stderr
    with open_pack(tmp_path / "train.pack") as pack:
        assert sorted(pack.sample(3)) == ["x", "y"]
        assert pack.sample(3)["x"].tolist() == [12, 13, 14, 15]
    shard = tmp_path / "train.pack" / "shard-00000.bin"
    flip(shard, 4096)
    assert run_topout(["data", "check", "train.pack"]).code == 1
    mended = run_topout(["data", "check", "train.pack", "--repair"])
    assert mended.code == 0, mended.stderr


def test_a_damaged_manifest_is_reported_and_not_mended(run_topout, tmp_path):
    file_folder(tmp_path / "files", 3, 20)
    run_topout(["pack", "files", "pack"])
    flip(tmp_path / "pack" / "pack.json", 200)
    found = run_topout(["data", "check", "pack", "--repair"])
    assert (found.code, found.stdout[:10]) == (1, "pack.json:")
    assert "topout pack SRC pack --force" in found.stderr


def test_a_pack_is_packed_again_with_another_codec(run_topout, tmp_path):
    (tmp_path / "texts").mkdir()
    for number in range(200):
        (tmp_path / "texts" / f"{number:03d}.txt").write_text(f"line {number} of a text that repeats itself\n" * 5)
    run_topout(["pack", "texts", "pack"])
    done = run_topout(["data", "convert", "pack", "small", "--codec", "data=zstd"])
    assert done.code == 0, done.stderr
    plain, small = (json.loads(run_topout(["data", "info", name, "--json"]).stdout) for name in ("pack", "small"))
    assert small["total_bytes"] < 0.5 * plain["total_bytes"]
    assert small["fields"][0]["codec"] == "zstd"
    assert run_topout(["data", "check", "small"]).code == 0
    first = run_topout(["data", "head", "small", "-n", "200"])
    assert first.stdout == run_topout(["data", "head", "pack", "-n", "200"]).stdout


def test_reading_is_timed(run_topout, tmp_path):
    image_folder(tmp_path / "images")
    run_topout(["pack", "images", "pack"])
    rates = json.loads(run_topout(["data", "bench", "pack", "--seconds", "0.05", "--json"]).stdout)
    assert [rate["what"].split(",")[0] for rate in rates] == ["shards", "in order", "at random"]
    assert {rate["num_samples"] for rate in rates} == {10}
    small_pack(tmp_path / "arrays")
    rates = json.loads(run_topout(["data", "bench", "arrays", "--seconds", "0.05", "--json"]).stdout)
    assert [rate["what"].split(",")[0] for rate in rates] == ["shards", "in order", "at random", "gather"]
    assert "samples/s" in run_topout(["data", "bench", "pack", "--seconds", "0.05"]).stdout


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["pack", "nothing", "dst"], "There is nothing at nothing."),
        (["pack", "files", "dst", "--from", "foldr"], "There is no foldr in topout.packs.sources."),
        (["pack", "files", "dst", "--shard-size", "big"], "'big' is not a size."),
        (["pack", "files", "dst", "--codec", "zstd"], "--codec cannot be 'zstd'."),
        (["pack", "files", "dst", "--codec", "data=zst"], "There is no zst in topout.packs.codecs."),
        (["pack", "images", "dst", "--codec", "image=foo"], "There is no foo in topout.packs.codecs."),
        (["pack", "files", "dst", "--codec", "x=zstd"], "There is no field 'x'."),
        (["pack", "files", "dst", "--columns", "data"], "--columns cannot be given with a folder of files."),
        (["pack", "files", "dst", "--upsample-bands", "9"], "--upsample-bands cannot be '9'."),
        (["pack", "files", "dst", "--resize", "9"], "There are no images to change."),
        (["data", "check", "files"], "files is not a pack."),
        (["data", "head", "files"], "files is not a pack."),
        (["data", "convert", "files", "dst"], "files is not a pack."),
        (["data", "unpack", "files", "dst"], "files is not a pack."),
        (["data", "check", "nowhere"], "There is nothing at nowhere."),
        (["data", "head", "nowhere"], "There is nothing at nowhere."),
        (["data", "bench", "nowhere"], "There is nothing at nowhere."),
        (["data", "convert", "nowhere", "dst"], "There is nothing at nowhere."),
        (["data", "unpack", "nowhere", "dst"], "There is nothing at nowhere."),
        (["data", "head", "files", "-n", "-1"], "--num cannot be -1."),
        (["data", "chek", "files"], "There is no verb 'chek'."),
    ],
)
def test_mistakes_are_explained_in_three_parts(tmp_path, monkeypatch, capsys, words, problem):
    file_folder(tmp_path / "files", 3, 20)
    image_folder(tmp_path / "images", per_class=1)
    monkeypatch.chdir(tmp_path)
    assert call(words) == 2
    first, why, do = capsys.readouterr().err.splitlines()[-3:]
    assert (first, why[:6], do[:5]) == (problem, "  why ", "  do ")
    assert not (tmp_path / "dst" / "pack.json").exists()


def test_nothing_is_unpacked_over_what_is_there(run_topout, tmp_path):
    file_folder(tmp_path / "files", 3, 20)
    run_topout(["pack", "files", "pack"])
    done = run_topout(["data", "unpack", "pack", "files"])
    assert (done.code, done.stderr.splitlines()[0]) == (2, "files is there already.")


def test_a_full_disk_is_told_and_gone_on_with(run_topout, tmp_path):
    # a limit on file size, since every machine has that; data is compressed, so room cannot be told beforehand
    file_folder(tmp_path / "files", 40, 20_000)
    words = ["pack", "files", "pack", "--shard-size", "100K", "--codec", "data=zstd", "-q"]
    limit = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (60000,) * 2)"
    program = f"{limit}; from topout.cli.main import main; main(sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", program, *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr.splitlines()[0]) == (3, "pack cannot be written.")
    assert "--shard-size" in done.stderr
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    assert run_topout(words).code == 0
    run_topout(["pack", "files", "fresh", *words[3:]])
    assert contents(tmp_path / "pack") == contents(tmp_path / "fresh")


@pytest.mark.parametrize("codec", [["--codec", "data=zstd"], []], ids=["met", "foreseen"])
def test_a_small_disk_is_told(run_topout, tmp_path, codec):
    file_folder(tmp_path / "files", 40, 20_000)
    done = run_topout(
        ["pack", "files", "disk/pack", "--shard-size", "100K", *codec], before=mounted(tmp_path / "disk", "size=400k")
    )
    problem = "disk/pack cannot be written." if codec else "disk/pack has no room for the pack."
    assert (done.code, done.stderr.splitlines()[-3]) == (3, problem)
    assert ("the disk is full" if codec else "GB are free") in done.stderr.splitlines()[-2]


def test_a_read_only_target_is_told(run_topout, tmp_path):
    file_folder(tmp_path / "files", 3, 20)
    done = run_topout(["pack", "files", "disk/pack"], before=mounted(tmp_path / "disk", "ro"))
    assert (done.code, done.stderr.splitlines()[0]) == (3, "disk/pack cannot be written.")
    assert "mounted read-only" in done.stderr


def test_a_file_in_the_way_is_told(run_topout, tmp_path):
    file_folder(tmp_path / "files", 3, 20)
    (tmp_path / "pack").write_text("a file")
    done = run_topout(["pack", "files", "pack"])
    assert (done.code, done.stderr.splitlines()[0]) == (3, "pack cannot be written.")


def test_skipped_entries_are_listed(run_topout, tmp_path):
    image_folder(tmp_path / "images")
    (tmp_path / "images" / "cat" / "bad\nname.jpg").write_bytes(b"")
    stopped = run_topout(["pack", "images", "pack"])
    assert (stopped.code, "cannot be packed" in stopped.stderr) == (2, True)
    done = run_topout(["pack", "images", "pack", "--on-error", "skip"])
    assert (done.code, "1 entries were left out: pack/skipped.txt" in done.stderr) == (0, True)
    [line] = (tmp_path / "pack" / "skipped.txt").read_text().splitlines()
    assert json.loads(line)["name"] == "cat/bad\nname.jpg"


def test_packing_needs_no_torch(tmp_path):
    program = (
        "import sys; from topout.cli.main import call; code = call(['pack', 'files', 'pack', '-q']);"
        "call(['data', 'check', 'pack']); heavy = {'torch', 'lmdb', 'h5py', 'pyarrow', 'PIL', 'zstandard', 'fsspec'};"
        "print(code, sorted(heavy & set(sys.modules)))"
    )
    file_folder(tmp_path / "files", 3, 20)
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines()[-1] == "0 []", done.stderr


@pytest.mark.parametrize(
    ("text", "num_bytes"), [("1", 1), ("4K", 4096), ("256M", 1 << 28), ("1.5 GiB", 3 << 29), ("2tb", 2 << 40)]
)
def test_sizes_are_read(text, num_bytes):
    assert parse_bytes(text) == num_bytes


def test_sizes_are_refused_and_written():
    for text in ("", "0", "-1", "M", "1X"):
        with pytest.raises(TopoutError):
            parse_bytes(text)
    assert [bytes_text(size) for size in (0, 999, 1000, 95_300, 363e6)] == ["0 B", "999 B", "1 KB", "95.3 KB", "363 MB"]


def test_an_interrupt_says_that_the_same_command_goes_on(tmp_path):
    files = tmp_path / "files"
    files.mkdir()
    for number in range(20_000):
        (files / f"{number}.bin").write_bytes(bytes(500))
    command = [sys.executable, "-c", INTERRUPTIBLE, "pack", "--shard-size", "100K", files, tmp_path / "pack"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    first_shard = tmp_path / "pack" / ".packing" / "shard-00000.rows"  # its first shard is done
    while not first_shard.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Interrupted. What is packed stays packed: the same command goes on from there." in errors
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "were finished before and not read again" in done.stderr
