"""The runnable modules of the procedure that need no costs: forward graph, casting cost, ranks on different devices."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from predictor.core.base.command_line import Parser
from predictor.replay.graph.local_replay import replay_local
from predictor.replay.precision.operator_graph import Precision
from predictor.replay.procedure import casting, cross_node, forward, kernels
from predictor.replay.procedure.analysis import LAG, critical_data, critical_path
from predictor.replay.procedure.command import Answer, run
from predictor.replay.procedure.documents import ForwardGraph, Provenance, read_document
from predictor.replay.procedure.folders import Folders
from predictor.replay.procedure.opened import open_step
from tests.unit.procedure_traces import HIDDEN, TOKENS, Perceptron

ROOT = Path(__file__).resolve().parents[4]


def ask(module: object, capsys: pytest.CaptureFixture[str], *line: str) -> tuple[int, str, str]:
    """Run a module's command line and return its exit code, stdout and stderr."""
    parser: Parser = module.parser()  # type: ignore[attr-defined]
    answer: Answer = module.answer  # type: ignore[attr-defined]
    code = run(parser, answer, list(line))
    output = capsys.readouterr()
    return code, output.out, output.err


def origin(label: str, step_us: float) -> Provenance:
    return Provenance(
        model_name="perceptron", file_name="fp32", device_name="t4", traced_device="cpu", precision=Precision.FP32,
        step=label, target_trace_idx=0, rank=0, step_us=step_us,
    )  # fmt: skip


def test_the_critical_path_is_the_step_and_its_data_add_up(tmp_path: Path) -> None:
    Perceptron().write(tmp_path / "fp32.json")
    local = open_step(tmp_path / "fp32.json", 1).local
    replayed = replay_local(local)
    path = critical_path(origin(local.label, local.step_us), local, replayed)
    data = critical_data(path.origin, local, replayed)
    assert path.path_us == pytest.approx(local.step_us)
    assert path.tasks[0].waits_for is None
    assert all(task.waits_for is not None for task in path.tasks[1:])
    assert sum(data.kinds_us.values()) == pytest.approx(path.path_us)
    assert sum(task.duration_us for task in path.tasks) == pytest.approx(path.path_us - data.kinds_us[LAG])
    mm = next(operator for operator in data.operators if operator.operator == "aten::mm")
    assert mm.step_pass == "backward"
    assert sum(row.on_path_us for row in data.operators if row.operator == "aten::mm") == pytest.approx(600.0)


def test_a_step_that_is_not_there_is_told_with_those_that_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Perceptron().write(tmp_path / "traces" / "bert" / "fp32.json")
    code, out, err = ask(cross_node, capsys, "--root", str(tmp_path), "--target_trace_idx", "2", "--file_names", "fp32")
    assert (code, out) == (2, "")
    assert "--target_trace_idx is 2; fp32.json has 2 steps: 0 (ProfilerStep#3), 1 (ProfilerStep#4)" in err
    assert err.count("\n") == 1


def test_ranks_of_three_devices_wait_for_the_slowest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, us in (("slow", 300.0), ("fast", 100.0), ("middle", 200.0)):
        for rank in range(2):
            perceptron = Perceptron(linear_us=us, rank=rank, world_size=2)
            perceptron.write(tmp_path / "traces" / "bert" / name / f"rank-{rank}.json")
    line = ["--root", str(tmp_path), "--file_names", "fast", "slow", "middle"]
    code, out, err = ask(cross_node, capsys, *line)
    assert code == 0, err
    rows = [line.split() for line in out.splitlines()]
    assert [row[1] for row in rows if row and row[0] in {"0", "1", "2"}] == ["fast", "slow", "middle"]
    # Three layers of one forward and two backward products each: the fast rank is 3 · 3 · 200 µs earlier.
    assert "Rank 0 waits 1.8 ms for rank 1" in out
    assert "Rank 2 waits 900 µs for rank 1" in out
    assert "for rank 0" not in out


def test_ranks_of_one_trace_are_replayed_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(4):
        Perceptron(rank=rank, world_size=4).write(tmp_path / "traces" / "bert" / "fp32" / f"rank-{rank}.json")
    code, out, err = ask(cross_node, capsys, "--root", str(tmp_path), "--file_names", "fp32")
    assert code == 0, err
    assert "4 ranks" in out
    assert "No rank waits for another one." in out


def test_a_batch_is_split_so_that_nobody_waits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, us in (("slow", 200.0), ("fast", 100.0)):
        Perceptron(linear_us=us, world_size=2).write(tmp_path / "traces" / "bert" / f"{name}.json")
    line = ["--root", str(tmp_path), "--file_names", "fast", "slow", "--samples", "30", "30"]
    code, out, err = ask(cross_node, capsys, *line)
    assert code == 0, err
    split = out[out.index("Split of 60 samples") :].splitlines()
    fast, slow = (int(row.split()[2]) for row in split[2:4])
    assert fast + slow == 60
    assert fast > 35
    code, _, err = ask(cross_node, capsys, *line, "30")
    assert code == 2
    assert "--samples has 3 numbers; give one for each of 2 ranks" in err


def execution_node(
    number: int, name: str, reads: list[int], writes: int, parent: int = 1, **facts: object
) -> dict[str, object]:
    """A node of an execution trace whose tensors, all of one size, are known by their numbers."""

    def tensors(numbers: list[int]) -> dict[str, object]:
        return {
            "values": [[tensor, tensor, 0, TOKENS * HIDDEN, 4, "cpu"] for tensor in numbers],
            "shapes": [[TOKENS, HIDDEN] for _ in numbers],
            "types": ["Tensor(float)" for _ in numbers],
        }

    attributes = {
        "rf_id": number,
        "fw_parent": 0,
        "seq_id": -1,
        "scope": 0,
        "tid": 1,
        "fw_tid": 0,
        "op_schema": "",
        **facts,
    }
    kinds = {"op_schema": "string", "seq_id": "int64"}
    return {
        "id": number, "name": name, "ctrl_deps": parent, "inputs": tensors(reads), "outputs": tensors([writes]),
        "attrs": [{"name": key, "type": kinds.get(key, "uint64"), "value": value} for key, value in attributes.items()],
    }  # fmt: skip


def execution_trace() -> dict[str, object]:
    """Two layers of linear, view and GELU, the sum of both, and a backward pass."""
    root = execution_node(1, "[pytorch|profiler|execution_trace|process]", [], 99, parent=1)
    nodes = [
        root,
        execution_node(2, "aten::linear", [10, 50, 51], 11),
        execution_node(3, "aten::addmm", [10, 50, 51], 11, parent=2),
        execution_node(4, "aten::view", [11], 12),
        execution_node(5, "aten::gelu", [12], 13),
        execution_node(6, "aten::linear", [13, 52, 53], 14),
        execution_node(7, "aten::view", [14], 15),
        execution_node(8, "aten::gelu", [15], 16),
        execution_node(9, "aten::add", [16, 13], 17),
        execution_node(10, "autograd::engine::evaluate_function: AddBackward0", [17], 18, fw_tid=1),
        execution_node(11, "aten::mul", [17], 19, parent=10),
    ]
    return {"schema": "1.1.1-chakra.0.0.4", "pid": 1, "time": "", "start_ts": 0, "nodes": nodes, "finish_ts": 1}


def test_the_forward_graph_has_depths_inputs_and_isomorphic_blocks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "input_data" / "bert.json"
    path.parent.mkdir()
    path.write_text(json.dumps(execution_trace()))
    code, out, err = ask(forward, capsys, "--root", str(tmp_path), "--model_name", "bert")
    assert code == 0, err
    assert "5 operators, 5 tensors between them, depth 4" in out
    assert "2 isomorphic blocks of 2 operators (aten::linear, aten::gelu)" in out
    graph = read_document(tmp_path / "tmp_data" / "fwd_graph" / "bert" / "bert.json", ForwardGraph)
    rows = [(node.label, node.depth, node.inputs, node.same_as) for node in graph.nodes]
    assert rows == [
        ("aten::linear.0", 0, (), None),
        ("aten::gelu.0", 1, ("aten::linear.0",), None),
        ("aten::linear.1", 2, ("aten::gelu.0",), "aten::linear.0"),
        ("aten::gelu.1", 3, ("aten::linear.1",), "aten::gelu.0"),
        ("aten::add.0", 4, ("aten::gelu.0", "aten::gelu.1"), None),
    ]
    assert [node.weight_numel for node in graph.nodes[:2]] == [2 * TOKENS * HIDDEN, 0]


def test_without_input_data_the_command_that_records_it_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = ask(forward, capsys, "--root", str(tmp_path), "--model_name", "gpt2")
    assert (code, out) == (2, "")
    assert "input_data/gpt2.json" in err
    assert "python -m microbench trace" in err


def fake_interpreter(folder: Path, body: str) -> str:
    """An interpreter that has no torch and does what it is told."""
    path = folder / "python"
    path.write_text(f"#!{sys.executable}\nimport json, sys\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


COSTS = {
    "device": "Tesla T4", "device_kind": "cuda", "threads": 1, "torch": "2.9.0",
    "casts": [
        {"cast_from": "fp32", "cast_to": "fp16", "alpha_us_per_element": 0.00025, "beta_us": 4.0,
         "relative_error": 0.03, "samples": [{"numel": 1000, "us": 4.2}, {"numel": 1000000, "us": 256.0}]},
    ],
}  # fmt: skip


def test_casting_costs_are_measured_by_command_and_lie_where_predictions_look(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = f"open(sys.argv[sys.argv.index('--out') + 1], 'w').write({json.dumps(COSTS)!r})"
    python = fake_interpreter(tmp_path, body)
    code, out, err = ask(casting, capsys, "--root", str(tmp_path), "--python", python)
    assert code == 0, err
    assert "fp32   fp16             0.2500      4.00           3.0%      2" in out
    here = Folders(tmp_path)
    costs = casting.measured_costs(here, "t4", "Tesla T4", "cuda")
    assert costs is not None
    assert costs.casts[0].us(1_000_000) == pytest.approx(254.0)
    assert casting.measured_costs(here, "t4", "NVIDIA A100", "cuda") is None
    assert casting.measured_costs(here, "t4", "", "cpu") is None
    assert casting.measured_costs(here, "tesla_t4", "another name of it", "cuda") is not None


def test_a_device_without_torch_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    python = fake_interpreter(tmp_path, "sys.exit('ModuleNotFoundError: No module named torch')")
    code, out, err = ask(casting, capsys, "--root", str(tmp_path), "--python", python)
    assert (code, out) == (1, "")
    assert err.splitlines()[-1].startswith(
        "python -m predictor.replay.casting_cost: casts cannot be measured: ModuleNotFoundError: No module named torch"
    )
    assert not list((tmp_path / "tmp_data").rglob("*.json"))


OWN_KERNEL = """\
ops_to_track: ["qsync::linear_fp32"]
aten_op_to_bwd_mapper: {"qsync::linear_fp32": [linearfp32backward]}
bit_width_changeable_nodes: ["qsync::linear_fp32"]
grad_required_bwds: {linearfp32backward: 2}
special_aten_mapping: {"aten::linear": "qsync::linear_tf32", "qsync::linear_fp32": "qsync::linear_tf32"}
work: {"qsync::linear_fp32": linear}
"""


def test_the_four_steps_of_a_kernel_are_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = tmp_path / "config.yaml"
    own.write_text(OWN_KERNEL)
    code, out, err = ask(kernels, capsys, "--root", str(tmp_path), "qsync::linear_fp32")
    assert code == 0, err
    assert "gradients  linearfp32backward: 2" in out
    assert "qsync::linear_tf32" in out
    own.write_text("\n".join(line for line in OWN_KERNEL.splitlines() if not line.startswith("grad_required")))
    code, out, err = ask(kernels, capsys, "--root", str(tmp_path), "qsync::linear_fp32")
    assert (code, out) == (2, "")
    assert "none of its backward operators (linearfp32backward) is in grad_required_bwds" in err
    own.write_text('ops_to_track: ["my::conv"]\nbit_width_changeable_nodes: ["my::conv"]\n')
    code, out, err = ask(kernels, capsys, "--root", str(tmp_path))
    assert (code, out) == (2, "")
    assert "my::conv can change precision and has no backward; add it to aten_op_to_bwd_mapper" in err
    own.write_text('aten_op_to_bwd_mapper: {"my::conv": [MyConvBackward]}\n')
    code, out, err = ask(kernels, capsys, "--root", str(tmp_path))
    assert code == 2
    assert "write it as myconvbackward" in err


MODULES = ("analyse", "fwd_gen", "casting_cost", "cross_node_predict", "fastest_plan", "test", "algos", "config")


def helps(command: list[str], folder: Path, **variables: str) -> str:
    """Return what a command line in another folder prints as help."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | variables
    done = subprocess.run(
        [sys.executable, *command, "--help"], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", MODULES)
def test_every_module_runs_as_a_file_from_any_folder(name: str, tmp_path: Path) -> None:
    text = helps([str(ROOT / "predictor/replay" / f"{name}.py")], tmp_path)
    assert text.startswith(f"usage: python -m predictor.replay.{name}")


def test_a_module_runs_as_a_module(tmp_path: Path) -> None:
    assert helps(["-m", "predictor.replay.analyse"], tmp_path, PYTHONPATH=str(ROOT)).startswith("usage: python -m")
