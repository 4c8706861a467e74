"""The documented procedure: its folders, its flags, the blocks that it tells once."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.core.base.errors import ConfigError
from predictor.replay.precision.operator_graph import OperatorGraph, OperatorNode, Precision, Tensor
from predictor.replay.procedure.arguments import TraceParser, add_trace, precision_of, trace_name
from predictor.replay.procedure.blocks import Block, blocks, first_of_kind
from predictor.replay.procedure.command import new_parser
from predictor.replay.procedure.folders import Folders


def place(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")


def folders(root: Path) -> Folders:
    return Folders(root, root / "no samples")


def test_traces_are_looked_up_as_the_specification_places_them(tmp_path: Path) -> None:
    place(
        tmp_path,
        "traces/bert/fp32_comm_t4.json",
        "traces/bert/bf16/rank-10.json.gz",
        "traces/bert/bf16/rank-2.json.gz",
        "traces/bert/bf16/execution-2.json.gz",
        "traces/bert/bf16/record.json",
        "traces/exp/resnet50/fp16_comm_t4.json.gz",
        "traces/vgg16/int8.rank1.json",
        "traces/vgg16/int8.rank0.json",
        "traces/vgg16/notes.txt",
    )
    here = folders(tmp_path)
    assert here.models() == ["bert", "resnet50", "vgg16"]
    assert here.trace_names("bert") == ["bf16", "fp32_comm_t4"]
    assert [path.name for path in here.traces("bert", "bf16")] == ["rank-2.json.gz", "rank-10.json.gz"]
    assert [path.name for path in here.traces("resnet50", "fp16_comm_t4")] == ["fp16_comm_t4.json.gz"]
    assert [path.name for path in here.traces("vgg16", "int8")] == ["int8.rank0.json", "int8.rank1.json"]


def test_a_missing_trace_is_told_with_those_that_there_are(tmp_path: Path) -> None:
    place(tmp_path, "traces/bert/fp32_comm_t4.json", "traces/bert/fp16_comm_t4.json")
    with pytest.raises(ConfigError, match=r"Did you mean fp32_comm_t4\? There are: fp16_comm_t4, fp32_comm_t4"):
        folders(tmp_path).traces("bert", "fp32_com_t4")
    with pytest.raises(ConfigError, match="the models that have traces are bert"):
        folders(tmp_path).traces("vgg16", "fp32")
    with pytest.raises(ConfigError, match="not a path"):
        folders(tmp_path).traces("bert", "../bert/fp32_comm_t4")


def test_samples_stand_in_for_models_that_the_root_does_not_have(tmp_path: Path) -> None:
    place(tmp_path, "own/traces/bert/int8.json", "samples/traces/bert/bf16.json", "samples/traces/vgg16/bf16.json")
    here = Folders(tmp_path / "own", tmp_path / "samples")
    assert here.models() == ["bert"]
    assert here.trace_names("bert") == ["int8"]
    assert here.trace_names("vgg16") == ["bf16"]
    assert not here.is_sample(here.traces("bert", "int8")[0])
    assert here.is_sample(here.traces("vgg16", "bf16")[0])
    assert Folders(tmp_path, tmp_path / "samples").models() == ["bert", "vgg16"]


def parser() -> TraceParser:
    result = new_parser("analyse", "", TraceParser)
    add_trace(result)
    assert isinstance(result, TraceParser)
    return result


def test_flags_have_the_defaults_of_the_specification() -> None:
    arguments = parser().parse_args([])
    assert (arguments.device_name, arguments.bit, arguments.model_name) == ("t4", "32", "bert")
    assert (arguments.target_trace_idx, arguments.file_name) == (0, None)


@pytest.mark.parametrize("named", [["--file_name", "fp32_comm_t4"], ["--fp32_comm_t4"], ["--file-name=fp32_comm_t4"]])
def test_a_trace_is_named_by_flag_or_literally(tmp_path: Path, named: list[str]) -> None:
    place(tmp_path, "traces/resnet50/fp32_comm_t4.json")
    line = ["--device_name", "t4", "--bit", "32", "--model_name", "resnet50", "--target_trace_idx", "1", *named]
    arguments = parser().parse_args([*line, "--root", str(tmp_path)])
    assert arguments.file_name == "fp32_comm_t4"
    assert arguments.target_trace_idx == 1


def test_an_option_that_is_none_is_refused_with_the_nearest(tmp_path: Path) -> None:
    place(tmp_path, "traces/bert/fp32_comm_t4.json")
    root = ["--root", str(tmp_path)]
    with pytest.raises(
        ConfigError, match=r"--fp32_comm_t5 is no option and no trace of bert. Did you mean --fp32_comm"
    ):
        parser().parse_args(["--fp32_comm_t5", *root])
    with pytest.raises(ConfigError, match="Did you mean --model_name"):
        parser().parse_args(["--modelname", *root])
    with pytest.raises(ConfigError, match="name it once"):
        parser().parse_args(["--fp32_comm_t4", "--file_name", "fp32_comm_t4", *root])


def test_bits_are_told_apart_by_trace_and_file_name() -> None:
    assert precision_of("32") is Precision.FP32
    assert precision_of("16", ["fp16_comm_t4"]) is Precision.FP16
    assert precision_of("16", ["bf16_comm_cpu"]) is Precision.BF16
    assert precision_of("16", ["fp32_comm_cpu"]) is Precision.FP16
    assert precision_of("tf32") is Precision.TF32
    with pytest.raises(ConfigError, match="--bit is 12; it must be 8, 16, 32"):
        precision_of("12")


def test_a_trace_that_is_not_named_is_the_only_one_that_fits(tmp_path: Path) -> None:
    place(tmp_path, "traces/bert/fp32_comm_t4.json")
    assert trace_name(folders(tmp_path), "bert", None, "16") == "fp32_comm_t4"
    place(tmp_path, "traces/bert/bf16_comm_t4.json")
    assert trace_name(folders(tmp_path), "bert", None, "16") == "bf16_comm_t4"
    with pytest.raises(ConfigError, match="bert has 2 traces: bf16_comm_t4, fp32_comm_t4; name one"):
        trace_name(folders(tmp_path), "bert", None, "8")


def chain(*names: str, skips: tuple[tuple[int, int], ...] = ()) -> OperatorGraph:
    """Operators in a row, each reading the one before; and further tensors."""
    nodes = [
        OperatorNode(name, f"{name}.{at}", at, ((2, 2),), 0, 4, 4, (Precision.FP32, Precision.BF16))
        for at, name in enumerate(names)
    ]
    row = [Tensor(at, at + 1, 4) for at in range(len(names) - 1)]
    return OperatorGraph(nodes, [*row, *(Tensor(before, after, 4) for before, after in skips)])


def test_repeated_blocks_are_one_and_none_is_lost() -> None:
    graph = chain("embedding", *("linear", "gelu", "add") * 3, "linear", "loss")
    assert blocks(graph) == [Block(0, 1, 1), Block(1, 3, 3), Block(10, 2, 1)]
    same = first_of_kind(blocks(graph))
    assert same == {4: 1, 5: 2, 6: 3, 7: 1, 8: 2, 9: 3}


def test_isomorphism_respects_names_and_tensors() -> None:
    assert blocks(chain("linear", "gelu", "conv", "gelu")) == [Block(0, 4, 1)]
    residual = chain("a", "b", "c", "a", "b", "c", skips=((0, 2),))  # the second block adds nothing to its c
    assert all(block.length != 3 for block in blocks(residual) if block.repeats > 1)
    alike = chain("a", "b", "c", "a", "b", "c", skips=((0, 2), (3, 5)))
    assert blocks(alike) == [Block(0, 3, 2)]


def test_a_tensor_that_all_blocks_read_parts_none_of_them() -> None:
    mask = tuple((0, at) for at in (3, 6, 9))
    assert Block(1, 3, 3) in blocks(chain("mask", *("linear", "gelu", "add") * 3, skips=mask))
