"""How GPUs are joined, and hwloc's view: what holds a job back is a warning that names its host."""

from dataclasses import replace

from tests.preflight.samples import FRAMEWORK, facts, named_check
from topout.host.gpu_links import GpuLinks, GpuPair, Way
from topout.host.hwloc import HwlocOpinion
from topout.preflight.check import Verdict
from topout.preflight.judges.wiring import judge_wiring


def two_gpus(way: Way = Way.NVLINK, num_links: int | None = 18, **of_pair: object) -> GpuLinks:
    pair = GpuPair(first=0, second=1, way=way, num_links=num_links, **of_pair)
    return GpuLinks(gpus=(0, 1), pairs=(pair,), links_of={0: num_links or 0, 1: num_links or 0})


def test_hosts_without_gpus_and_without_hwloc_have_no_line() -> None:
    assert judge_wiring([facts("n1"), facts("n2")]) == []


def test_gpus_that_are_joined_alike_are_one_line_for_all_hosts() -> None:
    (check,) = judge_wiring([facts(name, gpu_links=two_gpus(has_switch=True)) for name in ("n1", "n2")])
    assert (check.verdict, check.value) == (Verdict.FINE, "2 GPUs, by NVLink x18 through a switch")


def test_a_gpu_with_fewer_links_is_named_with_its_host() -> None:
    odd = GpuLinks(gpus=(0, 1), pairs=two_gpus(num_links=17).pairs, links_of={0: 18, 1: 17})
    check = named_check(judge_wiring([facts("n1", gpu_links=two_gpus()), facts("n2", gpu_links=odd)]), "GPU links")
    assert (check.verdict, check.hosts) == (Verdict.WARNING, ("n2",))
    assert "of 18 NVLinks that others have up GPU 1 has 17" in check.value
    assert "nvidia-smi nvlink" in str(check.fix)


def test_gpus_without_peer_access_are_named() -> None:
    apart = two_gpus(Way.HOST_BRIDGE, None, has_peer_access=False)
    check = named_check(judge_wiring([facts(gpu_links=apart)]), "GPU links")
    assert check.verdict is Verdict.WARNING
    assert "GPUs 0+1 cannot read each other's memory" in check.value


def test_boards_that_have_nvlink_and_do_not_use_it_are_named() -> None:
    def with_board(name: str) -> Verdict:
        links, framework = two_gpus(Way.SOCKETS, None), replace(FRAMEWORK, device_name=name)
        return named_check(judge_wiring([facts(gpu_links=links, framework=framework)]), "GPU links").verdict

    assert with_board("NVIDIA H100 80GB HBM3") is Verdict.WARNING
    assert with_board("NVIDIA L40S") is Verdict.FINE


def test_a_single_gpu_is_fine_whatever_its_links() -> None:
    alone = GpuLinks(gpus=(0,), links_of={0: 0})
    check = named_check(judge_wiring([facts(gpu_links=alone)]), "GPU links")
    assert (check.verdict, check.value) == (Verdict.FINE, "1 GPU")


def test_hwloc_agrees_or_is_named() -> None:
    same = HwlocOpinion(num_sockets=2, num_domains=8, num_cores=128)
    check = named_check(judge_wiring([facts(hwloc=same)]), "hwloc")
    assert (check.verdict, check.value) == (Verdict.FINE, "the same: 2 sockets, 8 NUMA domains, 128 cores")
    other = HwlocOpinion(num_sockets=1, num_domains=1, num_cores=128, differences=("2 sockets by the kernel, 1 by …",))
    check = named_check(judge_wiring([facts("n1", hwloc=same), facts("n2", hwloc=other)]), "hwloc")
    assert (check.verdict, check.hosts) == (Verdict.WARNING, ("n2",))
    assert "HWLOC_XMLFILE" in str(check.fix)
