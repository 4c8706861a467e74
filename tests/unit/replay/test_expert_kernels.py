"""Kernels that communicate outside process groups, such as DeepEP's, and collectives of unknown names."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.replay.answer import ReplayAnswer
from predictor.replay.breakdown import DATA_PARALLEL, EXPERT_PARALLEL, OTHER, OTHER_TRAFFIC, TENSOR_PARALLEL
from predictor.replay.collectives import collective_totals
from predictor.replay.files.collective_names import is_collective, kernel_collective, library_of
from predictor.replay.graph.global_graph import global_graph
from predictor.replay.question import ReplayQuestion, answer
from predictor.replay.text import render
from tests.unit.hand_made_traces import NCCL, HandMade
from tests.unit.kineto_traces import NVIDIA, PUBLIC, Event, event, public_trace, write

# One MoE layer on the stream of DeepSeek's public training trace of V3 (github.com/deepseek-ai/profile-data), in µs.
LAYER = (
    ("cuda::per_token_cast_to_fp8_with_channels", 52),
    ("dpsk::ep::internode::cached_notify<false>", 1008),
    ("dpsk::ep::internode::dispatch<false, 8, true, 8>", 3320),
    ("dpsk::ep::cuda::get_dispatch_layout<256, 32, 8>", 74),
    ("dpsk::ep::internode::notify_dispatch<false, 8>", 1381),
    ("dpsk::ep::internode::dispatch<false, 8, false, 8>", 4604),
    ("dpsk::ep::internode::cached_notify<false>", 753),
    ("dpsk::ep::internode::combine<false, 8, __nv_bfloat16, 8>", 6549),
    ("dpsk::ep::internode::cached_notify<false>", 1323),
    ("dpsk::ep::internode::combine<false, 8, __nv_bfloat16, 8>", 6002),
)
EXCHANGE_US = sum(us for name, us in LAYER if "dpsk::ep" in name)
COMPUTE, EXCHANGE = 7, 27


def trace(path: Path, *on_stream: tuple[str, float], computing_us: float = 0.0, rank: int = 0, world: int = 64) -> Path:
    """Write a step in which kernels run one after the other on a stream, beside one that computes."""
    events: list[Event] = []
    at = 100.0
    kernels = [("gemm_kernel", computing_us, COMPUTE)] if computing_us else []
    starts = {COMPUTE: 200.0, EXCHANGE: 200.0}
    for number, (name, us, stream) in enumerate([*kernels, *((name, us, EXCHANGE) for name, us in on_stream)], 1):
        events.append(event("cuda_runtime", "cudaLaunchKernelExC", at, 2.0, correlation=number))
        signature = name if name.startswith("nccl") else f"void {name}(int4*, float const*, int)"
        place = (0, stream)
        events.append(
            event("kernel", signature, starts[stream], us, place, device=0, stream=stream, correlation=number)
        )
        starts[stream] += us
        at += 3.0
    steps = [event("user_annotation", "ProfilerStep#5", 90.0, at - 90.0)]
    return write(path, [*steps, *events], distributedInfo={"rank": rank, "world_size": world}, **NVIDIA)


def replayed(path: Path) -> ReplayAnswer:
    return answer(ReplayQuestion([str(path)]))


def test_deepep_is_expert_parallel_traffic(tmp_path: Path) -> None:
    answered = replayed(trace(tmp_path / "train.json", *LAYER))
    (parts,) = answered.before.parts
    assert parts.parts[EXPERT_PARALLEL] == pytest.approx(EXCHANGE_US)
    assert parts.parts[OTHER] == pytest.approx(52.0)
    (total,) = collective_totals(answered.before.step, answered.before.replay.spans)
    assert (total.name, total.part, total.calls) == ("all_to_all", EXPERT_PARALLEL, 9)
    told = " ".join(render(answered).split())
    assert "9 calls of DeepEP, whose group the trace does not name" in told


def test_deepep_hidden_by_computing_is_hidden_traffic(tmp_path: Path) -> None:
    answered = replayed(trace(tmp_path / "train.json", *LAYER, computing_us=40_000.0))
    assert answered.before.parts[0].hidden_us == pytest.approx(EXCHANGE_US)
    assert answered.before.parts[0].exposed_us == 0.0


def test_a_change_of_traffic_touches_deepep(tmp_path: Path) -> None:
    path = trace(tmp_path / "train.json", *LAYER)
    changed = answer(ReplayQuestion([str(path)], changes=["communication*=0.5"]))
    assert changed.after is not None
    assert changed.before.step_us - changed.after.step_us == pytest.approx(EXCHANGE_US / 2)


def test_ranks_do_not_wait_for_each_other_in_groups_that_nobody_names(tmp_path: Path) -> None:
    for rank in (0, 1):
        trace(tmp_path / f"rank-{rank}.json", *LAYER[: 10 - rank], rank=rank, world=2)
    answered = replayed(tmp_path)
    assert len(answered.before.step.ranks) == 2
    assert answered.before.step.meetings == []


@pytest.mark.parametrize(
    ("kernel", "library", "collective"),
    [
        ("void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*, int*)", "DeepEP", "all_to_all"),
        ("void deep_ep::intranode::cached_notify_combine<8>(void**, int*, int)", "DeepEP", "all_to_all"),
        ("void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*, int*)", "DeepEP", "all_to_all"),
        ("void deep_ep::internode_ll::clean_low_latency_buffer<256>(int*, int)", "DeepEP", "all_to_all"),
        ("void deep_ep::internode_ll::combine<false, 7168, 9>(void*, void*)", "DeepEP", "all_to_all"),
        ("void dpsk::ep::internode::dispatch_ll<true, 3, 10, 7168>(void*)", "DeepEP", "all_to_all"),
        ("void mori::moe::EpDispatchIntraNodeKernel<hip_bfloat16>(mori::moe::Args)", "MoRI-EP", "all_to_all"),
        ("tensorrt_llm::kernels::mnnvl_throughput::moeA2ACombineKernel", "TensorRT-LLM MoE", "all_to_all"),
        ("void vllm::cross_device_reduce_1stage<__half, 8>(vllm::RankData*, int)", "custom all-reduce", "all_reduce"),
        ("void quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half>>", "custom all-reduce", "all_reduce"),
        (
            "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<1>(int)",
            "custom all-reduce",
            "all_reduce",
        ),
        ("void flashinfer::trtllm_mnnvl_allreduce::twoshotAllreduceKernel<2>()", "custom all-reduce", "all_reduce"),
        ("userbuffers_fp16_sum_inplace_gpu_rw_ag<2>(int, int)", "Userbuffers", "all_gather"),
        ("userbuffers_fp16_sum_inplace_gpu_rr_rs_oop_fp8<4>(int)", "Userbuffers", "reduce_scatter"),
        ("userbuffers_fp16_sum_inplace_gpu_rw<4>(int)", "Userbuffers", "all_reduce"),
        ("kuserbuffers_pushrecv(int, int, int, int, int*)", "Userbuffers", "send_recv"),
        (
            "void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 2>(c10::BFloat16**)",
            "symmetric memory",
            "all_reduce",
        ),
        ("void (anonymous namespace)::multimem_all_gather_kernel<16>(char*)", "symmetric memory", "all_gather"),
        ("mscclpp::collective::allgatherFullmesh2(void*)", "MSCCL++", "all_gather"),
        ("void barrier_on_stream_kernel_threadgroup<(threadgroup_t)1>(int, int)", "NVSHMEM", "barrier"),
        ("ncclSymkDevKernel_AllReduce_AGxLL_R_sum_f32(args)", "NCCL", "all_reduce"),
        ("mscclKernel_Sum_float_LL", "NCCL", "mscclKernel_Sum_float_LL"),
    ],
)
def test_libraries_are_told_by_their_kernels(kernel: str, library: str, collective: str) -> None:
    known = library_of(kernel)
    assert known is not None
    assert (known.name, kernel_collective(kernel)) == (library, collective)


@pytest.mark.parametrize(
    "kernel",
    [
        "void cdpsk::ep::CUB_200302_900_NS::DeviceScanKernel<dpsk::ep::internode::SourceMeta>(int)",
        "void flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<128>>(int)",
        "void at::native::vectorized_gather_kernel<16, long>(char*)",
        "triton_poi_fused_all_gather_into_tensor_wait_tensor_3",
        "void cutlass::Kernel<flux_all_gather_gemm>(int)",
        "void c10d::checkForNaN<float>(float*, unsigned long)",
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<int>(int)",
    ],
)
def test_kernels_that_compute_are_no_collectives(kernel: str) -> None:
    assert not is_collective(kernel)


def test_a_custom_all_reduce_is_tensor_parallel(tmp_path: Path) -> None:
    answered = replayed(trace(tmp_path / "serve.json", ("vllm::cross_device_reduce_1stage<__half, 8>", 400.0)))
    parts = answered.before.parts[0].parts
    assert (parts[TENSOR_PARALLEL], parts[DATA_PARALLEL]) == (400.0, 0.0)


@pytest.mark.parametrize("kernel", ["acme::fast_all_to_all<8>", "ncclDevKernel_Generic_4"])
def test_an_unknown_collective_is_named(kernel: str, tmp_path: Path) -> None:
    answered = replayed(trace(tmp_path / "odd.json", (kernel, 300.0), (kernel, 200.0)))
    assert answered.before.parts[0].parts[OTHER_TRAFFIC] == pytest.approx(500.0)
    name = kernel.partition("<")[0]
    told = " ".join(render(answered).split())
    assert f"rank 0: {name} is an unknown collective: 2 calls, 0.500 ms, counted as other traffic" in told


@pytest.mark.parametrize(
    ("recorded", "kernel", "expected"),
    [
        ("coalesced", "ncclDevKernel_AllGather_RING_LL", "all_gather"),
        ("all_reduce", "ncclDevKernel_Generic_4", "all_reduce"),
        ("permute", "ncclDevKernel_Generic_4", "permute"),
    ],
)
def test_a_record_of_an_unknown_name_is_told_by_its_kernel_or_named(recorded: str, kernel: str, expected: str) -> None:
    made = HandMade()
    made.step(0, 1000)
    made.operator("record_param_comms", 10, 40, collective_name=recorded)
    made.launch(kernel, (20, 30), (50, 450), NCCL)
    local = made.graph()
    assert [call.name for call in local.collectives] == [expected]
    unknown = [note for note in global_graph([local]).notes if "unknown" in note]
    assert bool(unknown) == (expected == "permute")


@pytest.mark.skipif(not PUBLIC.is_dir(), reason="no public traces")
def test_public_traces_have_the_collectives_that_they_had() -> None:
    for name in ("tracelens_h100_timesformer.json.gz", "tracelens_mi300_timesformer.json.gz", "hta_alexnet.json.gz"):
        answered = replayed(public_trace(name))
        assert {call.name for local in answered.before.step.ranks for call in local.collectives} == set()
