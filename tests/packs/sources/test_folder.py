"""A folder of files: what is an image, what is left out with a word, what cannot be taken, and what links lead to."""

import json
import os

import pytest

from tests.packs.packs import image_folder, pack_folder
from tests.packs.sources.reading import make_pack, read_all, reasons
from topout.packs.fields import Field
from topout.packs.pack import open_pack
from topout.packs.packing.options import PackOptions
from topout.packs.packing.packer import pack
from topout.packs.sources import open_source
from topout.schema.errors import TopoutError


def test_few_files_that_are_no_images_are_left_out_and_counted(tmp_path):
    source = image_folder(tmp_path / "images", per_class=10)
    (source / "README.txt").write_text("read me")
    _, listing = open_source(source)
    assert len(listing.names) == 20
    assert listing.notes == ("1 files are no images and were left out.",)
    assert (listing.num_files, listing.num_folders) == (21, 3)


def test_more_than_a_tenth_that_are_no_images_is_a_folder_of_files_and_said_so(tmp_path):
    source = image_folder(tmp_path / "images", per_class=9)
    for number in range(2):
        (source / f"{number}.txt").write_text("beside")
    _, listing = open_source(source)
    assert [field.name for field in listing.fields] == ["image", "label"]
    (source / "2.txt").write_text("beside")
    _, listing = open_source(source)
    assert [field.name for field in listing.fields] == ["data"]
    [note] = listing.notes
    assert note.startswith("3 of 21 files are no images, more than a tenth: all files became the field data")
    (source / "plain").mkdir()
    (source / "plain" / "a.txt").write_text("no image at all")
    _, listing = open_source(source / "plain")
    assert listing.notes == ()


def test_train_and_val_are_not_classes(tmp_path):
    _, listing = open_source(image_folder(tmp_path / "images", classes=("train", "val")))
    assert listing.classes is None
    assert [field.name for field in listing.fields] == ["image"]
    assert "look like parts of a dataset" in listing.notes[0]


def test_links_are_followed_but_not_in_circles(tmp_path):
    source = image_folder(tmp_path / "images", classes=("cat",))
    (source / "dog").symlink_to(source / "cat")
    (source / "cat" / "up").symlink_to(source)
    _, listing = open_source(source)
    assert len(listing.names) == 10
    assert listing.classes == ("cat", "dog")
    # once as cat/up, once as dog/up
    assert listing.notes == ("2 pipes, sockets, devices or links back up were left out.",)


def test_pipes_are_left_out_and_counted(tmp_path):
    source = image_folder(tmp_path / "images")
    os.mkfifo(source / "pipe.jpg")
    _, listing = open_source(source)
    assert len(listing.names) == 10
    assert listing.notes == ("1 pipes, sockets, devices or links back up were left out.",)


def test_a_link_that_leads_nowhere_is_a_bad_entry(tmp_path):
    source = image_folder(tmp_path / "images")
    (source / "cat" / "gone.jpg").symlink_to("nowhere.jpg")
    (source / "cat" / "self.jpg").symlink_to("self.jpg")
    listing, entries = read_all(source)
    found = dict(zip(listing.names, reasons(entries), strict=True))
    bad = {name: reason for name, reason in found.items() if reason is not None}
    assert bad == {
        "cat/gone.jpg": "it is a link to 'nowhere.jpg': No such file or directory",
        "cat/self.jpg": "it is a link to 'self.jpg': Too many levels of symbolic links",
    }
    with pytest.raises(TopoutError, match=r"Entry 5 \('cat/gone.jpg'\) cannot be packed"):
        pack_folder(source, tmp_path / "pack")
    report = pack_folder(source, tmp_path / "pack", on_error="skip")
    assert report.manifest.num_samples == 10
    lines = (tmp_path / "pack" / "skipped.txt").read_text().splitlines()
    assert [json.loads(line)["name"] for line in lines] == ["cat/gone.jpg", "cat/self.jpg"]


def test_columns_of_a_folder_are_refused(tmp_path):
    with pytest.raises(TopoutError, match="--columns cannot be given with a folder of files"):
        read_all(image_folder(tmp_path / "images"), columns=("image",))


def test_columns_of_a_pack_are_the_fields_that_are_taken(tmp_path):
    fields = [Field(name="image", kind="bytes"), Field(name="label", kind="int"), Field(name="text", kind="str")]
    samples = {"a": {"image": b"x", "label": 0, "text": "one"}, "b": {"image": b"y", "label": 1, "text": "two"}}
    make_pack(tmp_path / "from", fields, samples, classes=["cat", "dog"]).close()
    listing, found = read_all(tmp_path / "from", columns=("text", "image"))
    assert found == [{"image": b"x", "text": "one"}, {"image": b"y", "text": "two"}]
    assert listing.classes is None
    pack(listing, ("pack", tmp_path / "from"), tmp_path / "to", PackOptions(columns=("text", "image")))
    with open_pack(tmp_path / "to") as packed:
        assert packed.sample(1) == {"image": b"y", "text": "two"}
    assert read_all(tmp_path / "from", columns=("label",))[0].classes == ("cat", "dog")
    with pytest.raises(TopoutError, match="no column 'nope'") as caught:
        read_all(tmp_path / "from", columns=("nope",))
    assert caught.value.why == "the source has image, label, text"
