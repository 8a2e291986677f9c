"""The device tree and what kernels are made of, from torch.profiler's JSON."""

import gzip
import json
from pathlib import Path

import pytest

from tests.tables import START_NS, Plan, Rows, StepPlan, build_run
from topout.analyze.device import measure_device, memory_bound_share, union_ns
from topout.analyze.measure import measure_run
from topout.recommend.engine import find
from topout.schema.errors import TopoutError
from topout.schema.event import Kind
from topout.schema.run_folder import RunFolder
from topout.trace.readers.kineto import Profile, read_profile

GEMM = "ampere_bf16_s16816gemm_bf16_128x64_ldg8"
NORM = "void at::native::layer_norm_kernel<float>"
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def _event(cat: str, name: str, start: float, end: float, tid: int | str = 7) -> dict[str, object]:
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "ts": start,
        "dur": end - start,
        "pid": 0,
        "tid": tid,
        "args": {"a": 1},
    }


def _write(path: Path, events: list[dict[str, object]]) -> Path:
    noise = [{"ph": "M", "name": "process_name", "pid": 0, "args": {}}, {"ph": "s", "id": 1, "ts": 3, "cat": "ac2g"}]
    path.parent.mkdir(parents=True, exist_ok=True)
    data = json.dumps({"schemaVersion": 1, "traceEvents": [*events, *noise], "deviceProperties": [{}]}).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def _profile(tmp_path: Path, *events: dict[str, object]) -> Profile:
    return read_profile(_write(tmp_path / f"{len(list(tmp_path.iterdir()))}.json", list(events)))


@pytest.fixture
def profiles(tmp_path: Path) -> list[Profile]:
    """Of 100 us: rank 0 computes 60 and only communicates 20 more; rank 1 computes 40, communicates 30, copies 10."""
    first = _profile(
        tmp_path,
        _event("cuda_runtime", "cudaLaunchKernel", 0, 5),
        _event("kernel", GEMM, 10, 50),
        _event("kernel", NORM, 40, 70),
        _event("kernel", NCCL, 60, 90, 13),
        _event("cpu_op", "aten::mm", 0, 100, 1),
    )
    second = _profile(
        tmp_path,
        _event("kernel", GEMM, 10, 50),
        _event("kernel", NCCL, 50, 80, 13),
        _event("gpu_memcpy", "Memcpy HtoD", 75, 90, 20),
        _event("cpu_op", "aten::mm", 0, 100, 1),
    )
    return [first, second]


def test_collectives_are_communication_not_useful_work(profiles: list[Profile]) -> None:
    device = measure_device(profiles)
    assert device is not None
    assert device.compute_share == device.parallel_efficiency == pytest.approx(0.5)
    assert device.load_balance == pytest.approx(50 / 60)
    assert device.communication_efficiency == pytest.approx(60 / 80)
    assert device.orchestration_efficiency == pytest.approx(0.8)
    product = device.load_balance * device.communication_efficiency * device.orchestration_efficiency
    assert product == pytest.approx(device.parallel_efficiency, abs=1e-9)
    assert device.exposed_communication_share == pytest.approx((20 + 30) / 200)
    assert device.exposed_copy_share == pytest.approx(10 / 200)
    assert device.idle_share == pytest.approx((20 + 20) / 200)


def test_tensor_core_and_memory_bound_shares_are_of_computing_kernels(profiles: list[Profile]) -> None:
    device = measure_device(profiles)
    assert device is not None
    assert device.tensor_core_share == pytest.approx(80 / 110)
    assert memory_bound_share(profiles) == pytest.approx(30 / 110)


ARITHMETIC = (
    "nvjet_sm90_tst_128x128_64x6_1x2_h_bz_splitK_NTT",
    "triton_tem_fused_addmm_relu_3",
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128>>",
    "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<fbgemm_gpu::Shape>>",
    "sm90_xmma_dgrad_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64",
    "cudnn_infer_volta_scudnn_128x64_relu_medium_nn_v1",
    "void cudnn::cnn::conv2d_grouped_direct_kernel<float>",
    "Cijk_Alik_Bljk_SB_MT64x16x32_MI16x16x1_SN",
)
STREAMING = (
    "triton_poi_fused__native_batch_norm_legit_functional_add_convolution_backward_native_batch_norm_back",
    "triton_red_fused__scaled_dot_product_flash_attention_7",
    "triton_per_fused_convolution_2",
    "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 128, true, 1, true>",
    "void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 128, true, 1>",
    "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>",
    "void cudnn::ops::convertTensor_kernel<float, float>",
    "cask_cudnn_infer::computeOffsetsKernel(cask_cudnn_infer::ComputeOffsetsParams)",
    "void at::native::vectorized_elementwise_kernel<4, fbgemm_gpu::Add>",
    "void fbgemm_gpu::permute_2D_data_kernel<false, int, int>",
    "void at::native::convert_to_half<float>",
)


@pytest.mark.parametrize(
    ("name", "is_arithmetic"), [(name, True) for name in ARITHMETIC] + [(name, False) for name in STREAMING]
)
def test_what_limits_a_kernel_is_told_by_its_name(tmp_path: Path, name: str, is_arithmetic: bool) -> None:
    profile = _profile(tmp_path, _event("kernel", name, 0, 75), _event("kernel", NORM, 75, 100))
    assert memory_bound_share([profile]) == pytest.approx(0.25 if is_arithmetic else 1.0)


def test_products_of_hopper_and_blackwell_use_tensor_cores(tmp_path: Path) -> None:
    profile = _profile(
        tmp_path,
        _event("kernel", "nvjet_sm100_tst_128x256_64x4_2x1_2cta_h_bz_TNT", 0, 60),
        _event("kernel", "void cutlass::device_kernel<flash::FlashAttnFwdSm90<flash::CollectiveMainloop>>", 60, 80),
        _event("kernel", NORM, 80, 100),
    )
    device = measure_device([profile])
    assert device is not None
    assert device.tensor_core_share == pytest.approx(0.8)


def test_holding_a_device_back_is_no_work(tmp_path: Path) -> None:
    spin = _event("kernel", "at::cuda::(anonymous namespace)::spin_kernel(long)", 0, 80)
    found = measure_device([_profile(tmp_path, spin, _event("kernel", GEMM, 80, 100))])
    assert found is not None
    assert found.compute_share == pytest.approx(0.2)


def test_on_a_processor_operators_count_by_their_own_time(tmp_path: Path) -> None:
    profile = _profile(
        tmp_path,
        _event("cpu_op", "aten::linear", 0, 100),
        _event("cpu_op", "aten::addmm", 20, 90),
        _event("cpu_op", "aten::gelu", 100, 260),
        _event("cpu_op", "aten::empty", 110, 111),
        _event("cpu_op", "aten::add_", 0, 41, tid="other"),
    )
    # own times: linear 30, addmm 70, gelu 159, add_ 41; empty is too short to tell
    assert memory_bound_share([profile]) == pytest.approx(200 / 300)
    assert measure_device([profile]) is None


def test_operators_that_are_mostly_dispatch_are_not_limited_by_memory(tmp_path: Path) -> None:
    # an operator of 12 us among 88 us of Python and of operators too short to tell
    short = [_event("cpu_op", "aten::mul", at, at + 2) for at in range(20, 100, 4)]
    profile = _profile(tmp_path, _event("cpu_op", "aten::add", 0, 12), *short)
    assert memory_bound_share([profile]) == pytest.approx(12 / 98)
    # half of the profiled time was no computing, but waiting for batches, say
    assert memory_bound_share([profile], 0.5) == pytest.approx(12 / 49)


def test_nothing_profiled_nothing_told() -> None:
    assert memory_bound_share([]) is None
    assert measure_device([]) is None


def test_unions_do_not_count_overlaps_twice(profiles: list[Profile]) -> None:
    kernels = profiles[0].kernels
    assert union_ns(kernels.start_ns, kernels.end_ns) == 80_000
    assert union_ns(kernels.start_ns[:0], kernels.end_ns[:0]) == 0


@pytest.mark.parametrize("content", [b"", b"{", b"[1, 2]", b"\x1f\x8bnot gzip", b'{"traceEvents": [{"ts": "soon"}]}'])
def test_a_damaged_profile_is_an_error_with_a_reason(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "p.json").write_bytes(content)
    with pytest.raises(TopoutError, match="cannot be read as a profile"):
        read_profile(tmp_path / "p.json")


STEP = StepPlan(forward=300, backward=600, optimizer=100)


def _gelus(folder: RunFolder, suffix: str = "") -> None:
    place = folder.profile(0)
    _write(
        place.with_name(place.name + suffix),
        [_event("cpu_op", "aten::gelu", 0, 90), _event("cpu_op", "aten::mm", 90, 100)],
    )


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_memory_bandwidth_is_a_verdict_only_with_a_profile(tmp_path: Path, suffix: str) -> None:
    folder = build_run(tmp_path / "run", [[STEP] * 5], Plan()).folder
    measures, verdict = measure_run(folder)
    assert verdict is not None and verdict.name == "compute"
    assert measures.compute.memory_bound_share is None
    _gelus(folder, suffix)
    measures, verdict = measure_run(folder)
    assert verdict is not None and verdict.name == "memory-bandwidth"
    assert measures.compute.memory_bound_share == pytest.approx(0.9)


def test_a_damaged_profile_costs_only_itself(tmp_path: Path) -> None:
    folder = build_run(tmp_path / "run", [[STEP] * 5], Plan()).folder
    folder.profile(0).parent.mkdir()
    folder.profile(0).write_text("{")
    measures, verdict = measure_run(folder)
    assert verdict is not None and verdict.name == "compute"
    assert any("profile" in sentence for sentence in measures.not_measured)


def _gpus(path: Path, num_ranks: int, called_bytes: int = 0) -> RunFolder:
    """Ranks on devices whose backward takes 600 of 1000 ns, communication included; the script calls an all-reduce."""
    facts = {"backend": "nccl", "device_total_bytes": 2**36, "gradient_bytes": 100_000_000}
    built = build_run(path, [[STEP] * 6] * num_ranks, Plan(facts=facts, num_buckets=0))
    rows = Rows()
    rows.names = ["", "all_reduce"]
    for step in range(6):
        if called_bytes:
            start = START_NS + 1000 * step + 999
            rows.add(Kind.COLLECTIVE, start, 1, name="all_reduce", value=called_bytes, ref=step + 1)
        for name, length in (("forward", 300), ("backward", 600), ("optimizer", 100)):
            rows.add(Kind.DEVICE, START_NS + 1000 * step, length, name=name, ref=step)
    for rank in range(num_ranks):
        events = built.folder.events(rank)
        events.write_bytes(events.read_bytes() + b"".join(rows.blocks({})))
    return built.folder


def _kernels(folder: RunFolder, rank: int) -> None:
    """60 % computing, 35 % only communicating."""
    _write(
        folder.profile(rank),
        [
            _event("kernel", GEMM, 0, 60),
            _event("kernel", NCCL, 50, 95, 13),
            _event("cpu_op", "aten::mm", 0, 100, 1),
        ],
    )


def test_efficiencies_of_several_devices_need_their_kernels(tmp_path: Path) -> None:
    folder = _gpus(tmp_path / "run", 2)
    measures, verdict = measure_run(folder)
    assert measures.shares["backward"] == pytest.approx(0.6)
    assert (measures.pop, measures.device) == (None, None)
    assert measures.communication.is_hidden
    assert verdict is not None and verdict.name == "compute"
    assert any("--profile tells it apart" in sentence for sentence in verdict.evidence)
    (said,) = [sentence for sentence in measures.not_measured if sentence.startswith("Efficiencies")]
    assert "--profile" in said
    for rank in range(2):
        _kernels(folder, rank)
    measures, _ = measure_run(folder)
    assert measures.pop is None
    assert measures.device is not None
    assert measures.device.communication_efficiency == pytest.approx(60 / 95)
    (said,) = [sentence for sentence in measures.not_measured if sentence.startswith("Efficiencies")]
    assert "--profile" not in said
    assert not measures.communication.is_hidden


def test_one_device_hides_no_communication(tmp_path: Path) -> None:
    measures, _ = measure_run(_gpus(tmp_path / "run", 1))
    assert measures.pop is not None
    assert measures.not_measured == ()
    assert not measures.communication.is_hidden


def test_what_kernels_tell_of_communication_is_a_verdict_and_a_finding(tmp_path: Path) -> None:
    folder = _gpus(tmp_path / "run", 2)
    for rank in range(2):
        _kernels(folder, rank)
    measures, verdict = measure_run(folder)
    assert verdict is not None and verdict.name == "communication-bandwidth"
    gains = {finding.code: finding.gain_at_most for finding in find(measures)}
    assert gains["CO01"] == verdict.share == pytest.approx(0.35)


@pytest.mark.parametrize(
    ("called_bytes", "told"), [(4, (None, None, None)), (50_000_000, (1.0, 50_000_000, 50_000_000))]
)
def test_a_loss_that_is_added_up_is_not_taken_for_the_gradients(
    tmp_path: Path, called_bytes: int, told: tuple[float | None, ...]
) -> None:
    """On NCCL the buckets of DDP are not seen; a loop that reduces gradients itself is, also in half precision."""
    folder = _gpus(tmp_path / "run", 2, called_bytes)
    for rank in range(2):
        _kernels(folder, rank)
    measures, verdict = measure_run(folder)
    assert verdict is not None and verdict.name == "communication-bandwidth"
    seen = measures.communication
    assert (seen.num_collectives_per_step, seen.bytes_per_step, seen.mean_message_bytes) == told
    (finding,) = [finding for finding in find(measures) if finding.code == "CO01"]
    assert (" a step" in finding.because) == (told[1] is not None)


def test_a_torn_profile_leaves_those_of_other_ranks(tmp_path: Path) -> None:
    folder = _gpus(tmp_path / "run", 2)
    _kernels(folder, 0)
    folder.profile(1).write_text('{"traceEvents": [{"ph": "X"')
    measures, _ = measure_run(folder)
    assert measures.device is not None
    assert measures.device.exposed_communication_share == pytest.approx(0.35)
    (said,) = [sentence for sentence in measures.not_measured if "profile of rank" in sentence]
    assert said.startswith("The profile of rank 1, which is left out")
