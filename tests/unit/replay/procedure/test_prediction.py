"""The procedure from traces to predictions: analysis, another precision, plans, a kernel of one's own, the scripts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

from predictor.replay.precision.measured_costs import (
    CastSample,
    MeasuredCast,
    MeasuredCosts,
    MeasuredOperator,
    write_measured_costs,
)
from predictor.replay.precision.operator_graph import Precision
from predictor.replay.procedure import analysis, comparison, plans
from predictor.replay.procedure.command import Answer, run
from predictor.replay.procedure.documents import CriticalData, CriticalPath, ForwardGraph, NodeData, read_document
from predictor.replay.procedure.memory_of_step import memory_bytes
from tests.unit.procedure_traces import HIDDEN, TOKENS, Perceptron

ROOT = Path(__file__).resolve().parents[4]
REPLAY = ROOT / "predictor/replay"
LINEAR_SHAPES = ((TOKENS, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN,))
CAST_US = 2.0
BOTH_PASSES: tuple[tuple[Literal["forward", "backward"], float], ...] = (("forward", 1.0), ("backward", 2.0))
OWN_KERNEL = """\
ops_to_track: ["qsync::linear_fp32"]
aten_op_to_bwd_mapper: {"qsync::linear_fp32": [linearfp32backward]}
bit_width_changeable_nodes: ["qsync::linear_fp32"]
grad_required_bwds: {linearfp32backward: 2}
special_aten_mapping: {"aten::linear": "qsync::linear_tf32", "qsync::linear_fp32": "qsync::linear_tf32"}
work: {"qsync::linear_fp32": linear}
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Traces of one rank, in fp32 and in a bf16 whose products are twice as fast; nothing else is."""
    models = tmp_path / "traces" / "bert"
    Perceptron().write(models / "fp32_comm_t4.json")
    Perceptron(dtype="bf16", linear_us=50.0).write(models / "bf16_comm_t4.json")
    return tmp_path


def ask(
    module: object, capsys: pytest.CaptureFixture[str], root: Path, *line: str, greedy: bool = False
) -> tuple[int, str, str]:
    """Run a module's command line and return its exit code, stdout and stderr."""
    parser = module.greedy_parser() if greedy else module.parser()  # type: ignore[attr-defined]
    answer: Answer = module.greedy_answer if greedy else module.answer  # type: ignore[attr-defined]
    code = run(parser, answer, [*line, "--root", str(root)])
    output = capsys.readouterr()
    return code, output.out, output.err


def measure(root: Path, linear_us: dict[Precision, float], operator: str = "aten::linear") -> None:
    """Write what ``microbench traced`` and ``microbench casts`` would."""
    rows = [
        MeasuredOperator(
            operator=operator, shapes=LINEAR_SHAPES, precision=precision, step_pass=step_pass, samples_us=(us * times,)
        )
        for precision, us in linear_us.items()
        for step_pass, times in BOTH_PASSES
    ]  # fmt: skip
    others = [
        MeasuredOperator(operator=name, shapes=shapes, precision=precision, step_pass=step_pass, samples_us=(10.0,))
        for name, shapes in (("aten::gelu", LINEAR_SHAPES[:1]), ("aten::mse_loss", LINEAR_SHAPES[:1] * 2))
        for precision in linear_us
        for step_pass, _ in BOTH_PASSES
    ]  # fmt: skip
    casts = [
        MeasuredCast(cast_from=one, cast_to=other, alpha_us_per_element=0.0, beta_us=CAST_US,
                     samples=(CastSample(numel=1, us=CAST_US), CastSample(numel=10**6, us=CAST_US)))
        for one, other in ((Precision.FP32, Precision.BF16), (Precision.BF16, Precision.FP32))
    ]  # fmt: skip
    path = root / "tmp_data" / "casting_cost" / "cpu.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    costs = MeasuredCosts(
        device="CPU", device_kind="cpu", threads=1, torch="2.9.0", operators=(*rows, *others), casts=tuple(casts)
    )
    write_measured_costs(path, costs)


def step_ms(text: str, word: str) -> float:
    match = re.search(rf"^{word}\s+([0-9.]+) (ms|µs)", text, re.MULTILINE)
    assert match is not None, text
    return float(match[1]) / (1.0 if match[2] == "ms" else 1000.0)


def test_the_mapping_is_four_files_and_a_log(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["--device_name", "t4", "--bit", "32", "--generate_mapping", "--target_trace_idx", "1", "--fp32_comm_t4"]
    code, _, err = ask(analysis, capsys, root, *line)
    assert code == 0, err
    tmp_data = root / "tmp_data"
    path = read_document(tmp_data / "cng" / "bert" / "fp32_comm_t4.json", CriticalPath)
    data = read_document(tmp_data / "cng_data" / "bert" / "fp32_comm_t4.json", CriticalData)
    nodes = read_document(tmp_data / "node_data" / "bert" / "fp32_comm_t4.json", NodeData)
    graph = read_document(tmp_data / "dag_graph_folder" / "bert" / "fp32_comm_t4.json", ForwardGraph)
    assert path.origin.step == data.origin.step == "ProfilerStep#4"
    assert (nodes.origin.device_name, nodes.origin.traced_device, nodes.origin.precision) == ("t4", "cpu", "fp32")
    assert [row.operator for row in nodes.nodes] == ["aten::linear", "aten::gelu"] * 3 + ["aten::mse_loss"]
    linear = nodes.nodes[0]
    assert linear.shapes[:2] == LINEAR_SHAPES[:2]
    assert linear.forward_us == pytest.approx(102.0)
    assert linear.backward_us == pytest.approx(204.0)
    assert sum(row.optimizer_us for row in nodes.nodes) == pytest.approx(nodes.optimizer_us)
    assert nodes.optimizer_us > 30.0
    assert [node.depth for node in graph.nodes] == list(range(7))
    assert [node.same_as for node in graph.nodes[2:4]] == ["aten::linear.0", "aten::gelu.0"]
    log = (root / ".log" / "bert" / "fp32_comm_t4.log").read_text()
    assert log.startswith("topological order of 7 operators")
    assert f"longest path of ProfilerStep#4: {path.path_us:.1f} µs" in log


def test_the_mapping_files_a_step_as_what_it_computes_in(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = ask(analysis, capsys, root, "--bit", "32", "--generate_mapping", "--bf16_comm_t4")
    assert code == 0, err
    assert "note: --bit is 32, and the step computes in bf16: it is filed as that" in out
    nodes = read_document(root / "tmp_data" / "node_data" / "bert" / "bf16_comm_t4.json", NodeData)
    assert nodes.origin.precision is Precision.BF16


def test_without_mapping_the_step_is_predicted_as_it_was_measured(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = ask(analysis, capsys, root, "--bit", "32", "--file_name", "fp32_comm_t4")
    assert code == 0, err
    assert step_ms(out, "Replay") == pytest.approx(step_ms(out, "Step time"))
    assert "Changed" not in out
    assert re.search(r"^Memory of a rank, SGD: .* activations", out, re.MULTILINE)
    assert not (root / "tmp_data").exists()


def test_another_precision_takes_what_was_measured_and_its_casts(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measure(root, {Precision.FP32: 200.0, Precision.BF16: 50.0})
    code, out, err = ask(analysis, capsys, root, "--bit", "16", "--file_name", "fp32_comm_t4")
    assert code == 0, err
    assert out.startswith("bert, fp32_comm_t4: bf16 on t4, traced in fp32 on cpu")
    # Three layers forward and backward take a quarter: the ratio of both measured rows, not the measured time.
    saved_us = (step_ms(out, "Step time") - step_ms(out, "Changed")) * 1000.0
    products_us = 3 * (102.0 + 204.0)
    casts_us = 0.75 * products_us - saved_us
    # Three weights and biases there and their gradients back; of the loss, which stays in fp32, both inputs likewise.
    assert casts_us == pytest.approx((2 * 3 * 2 + 2 * 2) * CAST_US, abs=2.0)
    assert "costs measured on CPU" in out


def test_a_cost_that_nothing_tells_is_one_line(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = ask(analysis, capsys, root, "--bit", "bf16", "--file_name", "fp32_comm_t4")
    assert (code, out) == (2, "")
    assert "aten::linear.0 (aten::linear, [8, 64] × [64, 64] × [64]): its forward pass in bf16 is not known" in err
    assert err.count("\n") == 1


def test_node_data_of_another_trace_tells_costs(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measure(root, {})
    for bit, name in (("32", "fp32_comm_t4"), ("16", "bf16_comm_t4")):
        assert ask(analysis, capsys, root, "--bit", bit, "--generate_mapping", f"--{name}")[0] == 0
    code, out, err = ask(analysis, capsys, root, "--bit", "16", "--file_name", "fp32_comm_t4")
    assert code == 0, err
    assert "operators of traces in them" in out
    saved_us = (step_ms(out, "Step time") - step_ms(out, "Changed")) * 1000.0
    assert 300.0 < saved_us < 3 * 3 * 50.0  # half of the products, less their casts


def test_the_comparison_has_every_pair_of_traces(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measure(root, {})
    code, out, err = ask(comparison, capsys, root, "--model_name", "bert")
    assert code == 0, err
    rows = [line.split() for line in out.splitlines() if line.startswith("bert")]
    assert [row[1:3] for row in rows] == [
        ["bf16_comm_t4", "bf16_comm_t4"],
        ["bf16_comm_t4", "fp32_comm_t4"],
        ["fp32_comm_t4", "bf16_comm_t4"],
        ["fp32_comm_t4", "fp32_comm_t4"],
    ]
    errors = [float(next(word for word in row if word.endswith("%"))[:-1]) for row in rows]
    assert errors[0] == errors[3] == 0.0
    assert all(abs(error) < 8.0 for error in errors)
    assert "unchanged replay: median error 0.0%, largest 0.0%, 2 of 2 predicted" in out


def test_a_trace_that_cannot_be_tracked_is_left_out_of_the_comparison(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "traces" / "bert" / "damaged.json").write_text('{"traceEvents": []}')
    (root / "traces" / "bert" / "bf16_comm_t4.json").unlink()
    code, out, err = ask(comparison, capsys, root, "--model_name", "bert")
    assert code == 0, err
    assert "1 of 1 predicted" in out
    assert "left out: bert, damaged: " in out
    (root / "traces" / "bert" / "fp32_comm_t4.json").unlink()
    code, out, err = ask(comparison, capsys, root, "--model_name", "bert")
    assert (code, out) == (1, "")
    assert "left out: bert, damaged: " in err


def test_without_traces_the_command_that_records_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = ask(comparison, capsys, tmp_path, "--model_name", "gpt2")
    assert (code, out) == (1, "")
    assert "python -m microbench trace MODEL" in err


def test_the_fastest_plan_casts_no_more_than_it_gains(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measure(root, {Precision.FP32: 100.0, Precision.BF16: 50.0})
    code, out, err = ask(plans, capsys, root, "--file_name", "fp32_comm_t4", "--mem_limit", "1")
    assert code == 0, err
    table = {line[:22].strip(): line for line in out.splitlines() if " in fp32" in line or " in bf16" in line}
    assert list(table) == ["as traced", "fastest", "fastest in 1.00 GiB", "greedy"]
    assert "3 in bf16 (exact)" in table["fastest"]
    assert "block 1 ×3, depth 0: 2 operators, from aten::linear.0\n  bf16  aten::linear" in out
    measure(root, {Precision.FP32: 100.0, Precision.BF16: 99.0})
    code, out, err = ask(plans, capsys, root, "--file_name", "fp32_comm_t4")
    assert "3 in fp32 (exact)" in out


def test_a_memory_limit_below_any_plan_is_told(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measure(root, {Precision.FP32: 100.0, Precision.BF16: 50.0})
    code, out, err = ask(plans, capsys, root, "--file_name", "fp32_comm_t4", "--mem_limit", "1KiB")
    assert (code, out) == (2, "")
    assert "--mem_limit is 1.00 KiB; weights, gradients and optimizer states alone take" in err
    assert memory_bytes("--mem_limit", "16") == 16 * 2**30
    code, _, err = ask(plans, capsys, root, "--mem_limit", "much")
    assert code == 2
    assert "expected a positive amount such as 16, 16GiB or 800MiB" in err


def test_the_greedy_method_gives_precision_back(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measure(root, {Precision.FP32: 100.0, Precision.BF16: 120.0})
    code, out, err = ask(plans, capsys, root, "--file_name", "fp32_comm_t4", greedy=True)
    assert code == 0, err
    assert "3 in fp32 (3 of 3 steps taken)" in out
    assert "fastest" not in out


def test_a_kernel_of_ones_own_is_tracked_and_replayed_in_another_precision(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = {"annotation": "qsync::linear_fp32", "backward": "LinearFP32Backward"}
    Perceptron(**own).write(tmp_path / "traces" / "bert" / "fp32_comm_t4.json")  # type: ignore[arg-type]
    line = ["--bit", "32", "--generate_mapping", "--fp32_comm_t4"]
    assert ask(analysis, capsys, tmp_path, *line)[0] == 0
    path = tmp_path / "tmp_data" / "node_data" / "bert" / "fp32_comm_t4.json"
    assert "qsync::linear_fp32" not in {row.operator for row in read_document(path, NodeData).nodes}
    (tmp_path / "config.yaml").write_text(OWN_KERNEL)
    code, _, err = ask(analysis, capsys, tmp_path, *line)
    assert code == 0, err
    rows = read_document(path, NodeData).nodes
    assert [row.operator for row in rows] == ["qsync::linear_fp32", "aten::gelu"] * 3 + ["aten::mse_loss"]
    assert rows[0].backward_us == pytest.approx(204.0)
    measure(tmp_path, {Precision.FP32: 100.0, Precision.BF16: 50.0}, operator="qsync::linear_tf32")
    code, out, err = ask(analysis, capsys, tmp_path, "--bit", "16", "--fp32_comm_t4")
    assert code == 0, err
    saved_us = (step_ms(out, "Step time") - step_ms(out, "Changed")) * 1000.0
    assert 300.0 < saved_us < 0.5 * 3 * (104.0 + 204.0)


@pytest.mark.parametrize(
    ("script", "arguments", "expected"),
    [
        ("run_single_predict.sh", ["32", "bert", "fp32_comm_t4"], "Step time"),
        ("run_single_prepare.sh", ["16", "bert", "bf16_comm_t4"], "dag_graph_folder/bert/bf16_comm_t4.json"),
        ("trails/bert.sh", [], "dag_graph_folder/bert/fp32_comm_t4.json"),
    ],
)
def test_the_scripts_run_from_any_folder(root: Path, script: str, arguments: list[str], expected: str) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"PYTHON": sys.executable}
    done = subprocess.run(
        ["bash", str(REPLAY / script), *arguments],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout


@pytest.mark.parametrize("script", ["run_single_predict.sh", "run_single_prepare.sh"])
def test_a_script_without_arguments_tells_its_usage(script: str) -> None:
    done = subprocess.run(["bash", str(REPLAY / script)], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert f"usage: bash {script} BIT MODEL FILE_NAME" in done.stderr
