"""Tar archives: WebDataset's own writer, GNU tar, and archives that were cut, joined or overwritten."""

import io
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pytest

from tests.packs.sources.reading import is_same, jpeg, png, read_all, reasons
from topout.packs.sources import choose_source
from topout.schema.errors import TopoutError


def write_tar(path: Path, members: dict[str, bytes], format: int = tarfile.GNU_FORMAT) -> Path:
    with tarfile.open(path, "w", format=format) as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def test_a_link_to_a_folder_above_is_not_followed(tmp_path):
    (tmp_path / "part").mkdir()
    write_tar(tmp_path / "part" / "a.tar", {"one.jpg": jpeg(1)})
    (tmp_path / "part" / "latest").symlink_to("..")
    (tmp_path / "part" / "again").symlink_to(".")
    (tmp_path / "other").symlink_to("part")
    _, found = read_all(tmp_path, "tar")
    assert len(found) == 2


def test_what_webdataset_writes_is_read(tmp_path):
    import webdataset

    with webdataset.ShardWriter(str(tmp_path / "s-%02d.tar"), maxcount=2, verbose=0) as out:
        for number in range(5):
            out.write(
                {
                    "__key__": f"k/{number:03d}",
                    "jpg": jpeg(number),
                    "cls": number,
                    "json": {"n": number},
                    "txt": "tëxt",
                    "npy": np.arange(number, number + 3),
                    "seg.png": png(number),
                    "pyd": [number],
                }
            )
    assert choose_source(tmp_path) == "tar"
    listing, found = read_all(tmp_path)
    assert list(listing.names) == ["k/000", "k/001", "k/002", "k/003", "k/004"]
    assert {field.name: field.kind for field in listing.fields} == {
        "image": "jpeg", "label": "int", "json": "json", "txt": "str", "npy": "array", "seg": "png", "pyd": "bytes",
    }  # fmt: skip
    assert listing.fields[0].name == "image"
    last = found[4]
    last.pop("pyd")
    assert is_same(
        last,
        {
            "image": jpeg(4),
            "label": 4,
            "json": {"n": 4},
            "npy": np.array([4, 5, 6]),
            "seg": png(4),
            "txt": "tëxt",
        },
    )
    assert listing.num_files == 3


def test_sizes_are_known_without_reading_the_members(tmp_path):
    write_tar(tmp_path / "a.tar", {"1.jpg": jpeg(1), "1.cls": b"7", "2.jpg": jpeg(2), "2.cls": b"12"})
    listing, _ = read_all(tmp_path / "a.tar")
    assert listing.sizes.tolist() == [len(jpeg(1)) + 1, len(jpeg(2)) + 2]


@pytest.mark.parametrize("format", ["gnu", "posix", "ustar"])
def test_a_tar_of_plain_files_is_read_like_a_folder(tmp_path, format):
    source = tmp_path / "images"
    for name, data in {"cat/1.jpg": jpeg(1), "cat/deep/2.jpg": jpeg(2), "dog/1.jpg": jpeg(3)}.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(data)
    subprocess.run(
        ["tar", f"--format={format}", "--sort=name", "-cf", tmp_path / "a.tar", "-C", source, "."], check=True
    )
    from_tar, found = read_all(tmp_path / "a.tar")
    from_folder, expected = read_all(source)
    assert list(from_tar.names) == list(from_folder.names)
    assert (from_tar.fields, from_tar.classes) == (from_folder.fields, from_folder.classes) and found == expected


def test_train_and_val_are_not_taken_for_classes(tmp_path):
    path = write_tar(tmp_path / "a.tar", {"train/1.jpg": jpeg(1), "val/1.jpg": jpeg(2)})
    listing, _ = read_all(path)
    assert [field.name for field in listing.fields] == ["image"] and listing.classes is None


def test_long_and_strange_names_survive(tmp_path):
    names = ["long/" * 60 + "a.bin", "ünï\nline.bin", b"\xff\xfe.bin".decode("utf-8", "surrogateescape")]
    write_tar(tmp_path / "a.tar", dict.fromkeys(names, b"x"), tarfile.PAX_FORMAT)
    listing, found = read_all(tmp_path / "a.tar")
    assert list(listing.names) == names and found == [{"data": b"x"}] * 3


def test_archives_that_number_alike_keep_their_samples_apart(tmp_path):
    for name in ("a", "b"):
        write_tar(tmp_path / f"{name}.tar", {"0.jpg": jpeg(1), "0.cls": b"1", "1.jpg": jpeg(1), "1.cls": b"2"})
    listing, _ = read_all(tmp_path)
    assert list(listing.names) == ["a/0", "a/1", "b/0", "b/1"]


def test_a_sample_with_a_missing_or_a_strange_member_is_named(tmp_path):
    members = {f"{n}.{e}": d for n in range(4) for e, d in (("jpg", jpeg(n)), ("cls", b"1"))}
    del members["1.cls"]
    members["3.xyz"] = b"?"
    _, found = read_all(write_tar(tmp_path / "a.tar", members))
    assert reasons(found) == [
        None,
        "it lacks .cls, unlike the other samples",
        None,
        "it has .xyz, unlike the other samples",
    ]


def test_a_label_that_is_no_number_is_named(tmp_path):
    members = {f"{n:02d}.{e}": d for n in range(40) for e, d in (("jpg", jpeg(n)), ("cls", b"1"))}
    members["33.cls"] = b"one"
    _, found = read_all(write_tar(tmp_path / "a.tar", members))
    assert [reason for reason in reasons(found) if reason] == ["label is 'one', not int"]


def test_links_are_named_and_never_followed(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        info = tarfile.TarInfo("passwd.bin")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(info)
        info = tarfile.TarInfo("good.bin")
        info.size = 1
        archive.addfile(info, io.BytesIO(b"x"))
    _, found = read_all(tmp_path / "a.tar")
    assert reasons(found) == ["passwd.bin: it is a link, or no file at all", None]


def test_a_damaged_head_does_not_end_the_archive_quietly(tmp_path):
    path = write_tar(tmp_path / "a.tar", {f"{number}.bin": bytes([number]) * 512 for number in range(4)})
    data = bytearray(path.read_bytes())
    data[2 * 1024 + 10] ^= 1  # the head of 2.bin
    path.write_bytes(data)
    listing, found = read_all(path)
    assert reasons(found) == [None, None, "the rest of a.tar cannot be read: the head at byte 2048 is damaged"]
    assert listing.names[2] == "a.tar: the rest"


@pytest.mark.parametrize("kept_bytes", [1024, 1024 + 100, 1024 + 512, 1024 + 512 + 100])
def test_an_archive_cut_off_anywhere_is_noticed(tmp_path, kept_bytes):
    path = write_tar(tmp_path / "a.tar", {f"{number}.bin": bytes(512) for number in range(4)})
    path.write_bytes(path.read_bytes()[:kept_bytes])
    _, found = read_all(path)
    assert reasons(found)[0] is None
    assert all(reason is not None for reason in reasons(found)[1:]) and len(found) > 1


def test_archives_joined_with_cat_are_noticed(tmp_path):
    one = write_tar(tmp_path / "a.tar", {"1.bin": b"x"})
    two = write_tar(tmp_path / "b.tar", {"2.bin": b"y"})
    one.write_bytes(one.read_bytes() + two.read_bytes())
    _, found = read_all(one)
    assert reasons(found) == [None, "the rest of a.tar cannot be read: there is more after its end, at byte 10240"]


def test_a_compressed_archive_is_refused_with_advice(tmp_path):
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz"):
        pass
    with pytest.raises(TopoutError, match="compressed as a whole"):
        read_all(tmp_path / "a.tar.gz")


def test_an_archive_that_changes_while_it_is_packed_is_noticed(tmp_path):
    from topout.packs.sources import open_source

    path = write_tar(tmp_path / "a.tar", {"1.bin": b"x"})
    _, listing = open_source(path)
    write_tar(path, {"1.bin": b"yy"})
    assert reasons(list(listing.read_range(0, 1))) == ["a.tar has changed since packing began"]
