"""Lustre is told to spread the files, or the command is proposed; GPFS needs none; local disks are left alone."""

from pathlib import Path

from topout.packs.packing import striping
from topout.packs.packing.striping import GPFS, LUSTRE, arrange, file_system_type, stripe_command


def test_the_type_of_a_file_system_is_asked_of_the_kernel():
    assert file_system_type(Path("/proc")) == 0x9FA0
    assert file_system_type(Path("/no/such/folder")) is None


def test_a_local_disk_needs_nothing(tmp_path):
    assert arrange(tmp_path, 256 << 20) is None


def test_gpfs_is_said_to_need_none(tmp_path):
    assert "no striping is needed" in arrange(tmp_path, 256 << 20, lambda _: GPFS)


def test_a_shard_of_256_mib_lies_on_eight_servers():
    assert stripe_command(Path("/scratch/pack"), 256 << 20) == [
        "lfs", "setstripe", "-c", "8", "-S", "4194304", "/scratch/pack",
    ]  # fmt: skip
    assert stripe_command(Path("x"), 64 << 20)[3] == "2"
    assert stripe_command(Path("x"), 1 << 20)[3] == "1"


def test_lustre_without_its_tool_gets_a_proposal(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    told = arrange(tmp_path, 256 << 20, lambda _: LUSTRE)
    assert "Proposed" in told
    assert told.endswith(f"lfs setstripe -c 8 -S 4194304 {tmp_path}")


def lfs(folder: Path, text: str) -> None:
    (folder / "lfs").write_text(f"#!/bin/sh\n{text}\n")
    (folder / "lfs").chmod(0o755)


def test_lustre_is_told_before_the_first_file(tmp_path, monkeypatch):
    lfs(tmp_path, f'echo "$@" > {tmp_path}/called')
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert arrange(tmp_path / "pack", 256 << 20, lambda _: LUSTRE).startswith("Lustre: lfs setstripe")
    assert (tmp_path / "called").read_text() == f"setstripe -c 8 -S 4194304 {tmp_path}/pack\n"


def test_a_refusal_of_lustre_is_passed_on_and_packing_goes_on(tmp_path, monkeypatch):
    lfs(tmp_path, "echo not allowed >&2; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert "refused the striping (not allowed)" in arrange(tmp_path, 256 << 20, lambda _: LUSTRE)


def test_packing_says_what_it_arranged(tmp_path, monkeypatch):
    from tests.packs.packs import file_folder
    from topout.packs.packing import packer
    from topout.packs.packing.options import PackOptions
    from topout.packs.sources import open_source

    monkeypatch.setattr(packer, "arrange", lambda folder, size: striping.arrange(folder, size, lambda _: GPFS))
    said = []
    source = file_folder(tmp_path / "files", 3, 10)
    name, listing = open_source(source)
    packer.pack(listing, (name, source), tmp_path / "pack", PackOptions(), say=said.append)
    assert said == ["GPFS spreads files over its servers by itself; no striping is needed."]
