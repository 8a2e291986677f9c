"""Packs by address: from servers that are slow, cut connections, alter bytes, or know no ranges."""

import os
import threading

import pytest

from tests.feed.staging.packs import PackServer, contents, course_of, eventually, make_pack
from topout.feed.staging.origin import OriginError, is_remote
from topout.feed.staging.staged_pack import open_staged
from topout.feed.staging.stager import StagingOptions
from topout.packs.damage import DamagedPack, DamagedSample
from topout.schema.errors import TopoutError

WHOLE = StagingOptions(budget_bytes=1 << 20)


@pytest.fixture
def source(tmp_path):
    return make_pack(tmp_path / "slow", num_samples=40)


@pytest.fixture
def near(tmp_path):
    return tmp_path / "near"


def check_all(pack):
    for number in range(len(pack)):
        assert pack.sample(number) == {"data": contents(number), "label": number % 7}


def check_copies(pack, source):
    for path in source.glob("shard-*.bin"):
        assert (pack.staging_folder.path / path.name).read_bytes() == path.read_bytes()


def test_addresses_are_told_from_paths():
    assert is_remote("s3://bucket/pack")
    assert is_remote("https://host/pack")
    assert not is_remote("/data/pack")
    assert not is_remote("C:pack")


def test_a_pack_is_read_over_http_by_ranges(source, near):
    with PackServer(source) as server, open_staged(server.address, root=near) as pack:
        before = server.num_bytes
        assert pack.sample(17)["data"] == contents(17)
        assert server.num_bytes - before == len(contents(17)) + 4
        check_all(pack)
        pack.follow(course_of(40), WHOLE)
        eventually(lambda: pack.is_near)
        check_copies(pack, source)
        num_answers = server.num_answers
        check_all(pack)
        assert server.num_answers == num_answers


def test_the_index_is_fetched_once_for_all_processes_of_a_node(source, near):
    with PackServer(source) as server:
        open_staged(server.address, root=near).close()
        before = server.num_bytes
        with open_staged(server.address, root=near) as pack:
            assert pack.name(3) == "sample-3"
        assert server.num_bytes - before == (source / "pack.json").stat().st_size


def test_a_pack_written_anew_is_not_taken_for_the_old_one(source, near, tmp_path):
    with PackServer(source) as server:
        with open_staged(server.address, root=near) as pack:
            assert len(pack) == 40
        server.folder = make_pack(tmp_path / "new", num_samples=30)
        with open_staged(server.address, root=near) as pack:
            assert len(pack) == 30
            check_all(pack)


def test_cut_connections_are_tried_again(source, near):
    with PackServer(source, cuts="first") as server, open_staged(server.address, root=near) as pack:
        pack.follow(course_of(40), WHOLE)
        eventually(lambda: pack.is_near)
        check_copies(pack, source)
        assert pack.staging()["num_given_up"] == 0


def test_bytes_altered_on_the_way_are_fetched_again(source, near):
    with PackServer(source) as server, open_staged(server.address, root=near) as pack:
        server.flips = "first"
        check_all(pack)
        pack.follow(course_of(40), WHOLE)
        eventually(lambda: pack.is_near)
        check_copies(pack, source)
        assert pack.staging()["num_retries"] > 0


def test_samples_altered_on_the_way_are_fetched_again(source, near):
    with PackServer(source) as server, open_staged(server.address, root=near) as pack:
        server.flips = "first"
        pack.follow(course_of(40), StagingOptions(budget_bytes=60_000, unit="samples"))
        eventually(lambda: pack.staging()["num_staged"] > 8 and pack.staging()["num_retries"] > 0)
        check_all(pack)


def test_a_server_that_always_alters_bytes_is_named_and_nothing_of_it_is_staged(source, near):
    with PackServer(source) as server, open_staged(server.address, root=near) as pack:
        server.flips = "all"
        pack.follow(course_of(40), WHOLE)
        eventually(lambda: pack.staging()["num_given_up"] > 0)
        with pytest.raises(DamagedSample, match="Sample 5"):
            pack.sample(5)
        assert pack.staging()["num_staged"] == 0
        pack.leave()
        assert not list(pack.staging_folder.path.glob("shard-*"))


def test_an_index_altered_on_the_way_is_refused(source, near):
    with PackServer(source, flips="all") as server:
        with pytest.raises(DamagedPack, match=r"pack.json is damaged"):
            open_staged(server.address, root=near)
    data = bytearray((source / "index.bin").read_bytes())
    data[5000] ^= 1
    (source / "index.bin").write_bytes(data)
    with PackServer(source) as server:
        with pytest.raises(DamagedPack, match=r"index.bin is damaged"):
            open_staged(server.address, root=near)
    assert not list(near.rglob("index.bin*"))


def test_a_server_without_ranges_is_named(source, near):
    with PackServer(source, honours_ranges=False) as server, open_staged(server.address, root=near) as pack:
        with pytest.raises(OriginError, match="no range requests") as told:
            pack.sample(5)
    assert "copy the pack to a disk" in told.value.do


def test_a_reader_does_not_wait_for_the_staging(source, near):
    """The server holds every shard back that the stager asks for; single samples are answered."""
    gate = threading.Event()
    with PackServer(source) as server, open_staged(server.address, root=near) as pack:
        answer = server.answer

        def hold_back(request):
            if request.headers.get("Range", "").startswith("bytes=0-"):
                gate.wait(30)
            answer(request)

        server.answer = hold_back
        pack.follow(course_of(40), WHOLE)
        check_all(pack)
        assert (pack.counts().hits, pack.counts().misses) == (0, 40)
        gate.set()
        eventually(lambda: pack.is_near)


def test_a_server_that_goes_away_is_named_and_what_is_near_is_still_read(source, near):
    with PackServer(source) as server:
        pack = open_staged(server.address, root=near)
        pack.follow(course_of(40), WHOLE)
        eventually(lambda: pack.is_near)
    check_all(pack)
    pack.leave()
    (pack.staging_folder.path / "shard-00000.bin").unlink()
    with open_staged(source, root=near) as other:
        # the holder of another time left this shard's number in the state; its file is gone
        check_all(other)
    pack.close()


def test_a_missing_server_is_named(near):
    with pytest.raises(TopoutError, match="is not a pack that can be read"):
        open_staged("http://127.0.0.1:9/pack", root=near)


def test_a_forked_worker_reads_over_http(source, near):
    with PackServer(source) as server, open_staged(server.address, root=near) as pack:
        check_all(pack)
        child = os.fork()
        if child == 0:
            os._exit(0 if pack.sample(5)["data"] == contents(5) else 1)
        assert os.waitpid(child, 0)[1] == 0


def test_a_pack_in_memory_and_by_file_address(source, near):
    import fsspec

    memory = fsspec.filesystem("memory")
    for path in source.iterdir():
        memory.pipe_file(f"/packs/one/{path.name}", path.read_bytes())
    for address in ("memory://packs/one", f"file://{source}"):
        with open_staged(address, root=near) as pack:
            check_all(pack)
            pack.follow(course_of(40), WHOLE)
            eventually(lambda: pack.is_near)
            check_all(pack)


def test_an_address_of_no_known_kind_is_refused(near):
    with pytest.raises(TopoutError, match="no address that can be read"):
        open_staged("gopher://host/pack", root=near)
