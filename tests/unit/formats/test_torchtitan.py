"""A torchtitan job becomes a preset, a layout and a batch, with torchtitan's own defaults."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.core.base.errors import ConfigError
from predictor.core.schema.presets import preset_names
from predictor.core.schema.read import Read
from predictor.formats.torchtitan.reader import PRESETS, read

DATA = Path(__file__).resolve().parents[2] / "data" / "readers" / "torchtitan"
MODEL = '[model]\nname = "llama3"\nflavor = "8B"\n'
PIPELINE = "[parallelism]\npipeline_parallel_degree = 2"


def found(tmp_path: Path, text: str, num_gpus: int | None = None) -> Read:
    path = tmp_path / "job.toml"
    path.write_text(text, encoding="utf-8")
    return read(path, num_gpus)


def layout(tmp_path: Path, lines: str, num_gpus: int | None = None) -> dict[str, object]:
    return dict(found(tmp_path, f"{MODEL}[parallelism]\n{lines}", num_gpus).content["parallelism"])


def test_job_of_64_gpus() -> None:
    job = read(DATA / "llama3_70b.toml", num_gpus=64)
    assert job.content == {
        "model": {"preset": "llama3.1-70b", "sequence_length": 8192, "loss": "vocabulary_parallel"},
        "parallelism": {
            "tensor_parallel_size": 8,
            "sequence_parallel": True,
            "pipeline_parallel_size": 1,
            "context_parallel_size": 1,
            "data_parallel_size": 8,
            "overlap_gradient_reduction": True,
            "overlap_tensor_parallel": False,
            "overlap_linear_traffic": False,
            "fp32_parameters": True,
            "zero_stage": 3,
            "gradient_reduction": "reduce_scatter",
            "overlap_parameter_gather": True,
            "fp32_gradients": True,
        },
        "training": {
            "micro_batch_size": 8,
            "num_micro_batches": 1,
            "precision": "bf16",
            "recompute": "full",
            "compiled": True,
            "framework": "torchtitan",
        },
    }
    assert job.notes == ()
    assert job.unsaid == {}
    assert list(read(DATA / "llama3_70b.toml").unsaid) == ["parallelism.data_parallel_size"]


def test_job_in_a_pipeline() -> None:
    content = read(DATA / "qwen3_pipeline.toml").content
    parallelism = content["parallelism"]
    assert (parallelism["data_parallel_size"], parallelism["pipeline_parallel_size"]) == (4, 4)
    assert parallelism["schedule"] == "1f1b"
    assert parallelism["layers_per_stage"] == [16, 17, 16, 15]  # embedding and output count as a layer each
    assert parallelism["zero_stage"] == 3
    assert parallelism["reshard_after_forward"] is False  # weights stay gathered within a pipeline
    assert parallelism["overlap_tensor_parallel"] is True
    assert content["training"]["micro_batch_size"] == 2
    assert content["training"]["num_micro_batches"] == 8


def test_every_flavor_is_a_preset() -> None:
    assert {name for flavors in PRESETS.values() for name in flavors.values()} <= set(preset_names())


def test_flavor_that_names_its_attention_is_the_same_model(tmp_path: Path) -> None:
    text = MODEL.replace("8B", "8B_flex_attn")
    assert found(tmp_path, text).content["model"]["preset"] == "llama3.1-8b"


@pytest.mark.parametrize(
    ("lines", "stage", "reduction", "stays"),
    [
        ("", 3, "reduce_scatter", False),
        ('fsdp_reshard_after_forward = "never"', 3, "reduce_scatter", True),
        ("pipeline_parallel_degree = 2", 3, "reduce_scatter", True),
        ('pipeline_parallel_degree = 2\nfsdp_reshard_after_forward = "always"', 3, "reduce_scatter", False),
        ("data_parallel_shard_degree = 1\ndata_parallel_replicate_degree = 8", 0, "all_reduce", False),
    ],
)
def test_sharding(lines: str, stage: int, reduction: str, stays: bool, tmp_path: Path) -> None:
    parallelism = layout(tmp_path, lines)
    assert (parallelism["zero_stage"], parallelism["gradient_reduction"]) == (stage, reduction)
    assert parallelism.get("reshard_after_forward", True) is not stays


def test_sharding_in_groups(tmp_path: Path) -> None:
    lines = "data_parallel_replicate_degree = 2\ndata_parallel_shard_degree = 4"
    parallelism = layout(tmp_path, lines)
    assert (parallelism["data_parallel_size"], parallelism["zero_group_size"]) == (8, 4)
    rest = layout(tmp_path, "data_parallel_replicate_degree = 4\ncontext_parallel_degree = 2", num_gpus=64)
    assert (rest["data_parallel_size"], rest["zero_group_size"]) == (32, 16)


def test_weights_are_sharded_over_context_parallel_ranks_too(tmp_path: Path) -> None:
    alone = layout(tmp_path, "data_parallel_shard_degree = 1\ncontext_parallel_degree = 2", num_gpus=2)
    assert (alone["data_parallel_size"], alone["zero_stage"], "zero_group_size" in alone) == (1, 3, False)
    lines = "data_parallel_shard_degree = 1\ndata_parallel_replicate_degree = 4\ncontext_parallel_degree = 2"
    assert layout(tmp_path, lines, num_gpus=8)["zero_group_size"] == 2


def test_asynchronous_tensor_parallelism_moves_chunks(tmp_path: Path) -> None:
    parallelism = layout(tmp_path, "tensor_parallel_degree = 4\nenable_async_tensor_parallel = true")
    assert parallelism["overlap_linear_traffic"] is True


@pytest.mark.parametrize(
    ("name", "schedule", "num_chunks"),
    [
        ("1F1B", "1f1b", None),
        ("GPipe", "all_forward_all_backward", None),
        ("Interleaved1F1B", "interleaved_1f1b", 2),
        ("LoopedBFS", "looped_bfs", 2),
    ],
)
def test_schedules(name: str, schedule: str, num_chunks: int | None, tmp_path: Path) -> None:
    parallelism = layout(tmp_path, f'pipeline_parallel_degree = 2\npipeline_parallel_schedule = "{name}"')
    assert parallelism["schedule"] == schedule
    assert parallelism.get("virtual_pipeline_parallel_size") == num_chunks


def test_layers_per_stage_say_how_often_a_schedule_loops(tmp_path: Path) -> None:
    text = f"{MODEL}[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_schedule = 'Interleaved1F1B'\n"
    job = found(tmp_path, f"{text}pipeline_parallel_layers_per_stage = 6")
    assert job.content["parallelism"]["virtual_pipeline_parallel_size"] == 3  # 34 / 6 are 6 stages on 2 ranks
    assert job.content["parallelism"]["layers_per_stage"] == [[5, 6, 5], [6, 6, 4]]  # of 34: ends count as layers


def test_older_name_of_the_batch_and_defaults(tmp_path: Path) -> None:
    assert found(tmp_path, MODEL).content["training"]["micro_batch_size"] == 8
    assert found(tmp_path, MODEL).content["model"]["sequence_length"] == 2048
    assert found(tmp_path, f"{MODEL}[training]\nbatch_size = 2").content["training"]["micro_batch_size"] == 2


def test_global_batch_is_taken_where_there_is_no_pipeline(tmp_path: Path) -> None:
    text = f"{MODEL}[training]\nlocal_batch_size = 2\nglobal_batch_size = 64"
    assert found(tmp_path, text).content["training"]["global_batch_size"] == 64


@pytest.mark.parametrize(
    ("lines", "recompute"),
    [
        ("", {"recompute": "full", "recompute_every": 2}),
        ("mode = 'none'", {"recompute": "none"}),
        ("mode = 'full'\nearly_stop = true", {"recompute": "full", "recompute_stops_early": True}),
        ("mode = 'selective'\nselective_ac_option = '4'", {"recompute": "full", "recompute_every": 4}),
        ("mode = 'selective'\nselective_ac_option = 'op'", {"recompute": "per_op"}),
    ],
)
def test_recomputation(lines: str, recompute: dict[str, object], tmp_path: Path) -> None:
    job = found(tmp_path, f"{MODEL}[activation_checkpoint]\n{lines}")
    training = job.content["training"]
    assert {key: value for key, value in training.items() if key.startswith("recompute")} == recompute
    assert job.notes == ()


@pytest.mark.parametrize(
    ("lines", "compiled", "loss", "note"),
    [
        ("", False, "torch", None),
        ("[compile]\nenable = true", True, "torch", None),
        ("[compile]\nenable = false\ncomponents = ['model']", False, "torch_eager", None),
        ("[compile]\nenable = true\ncomponents = ['model']", True, "torch_eager", None),
        (
            "[compile]\nenable = true\ncomponents = ['loss']",
            False,
            "torch",
            "without model: predicted without compiled kernels",
        ),
        ("[training]\ncompile = true", True, "torch", None),
    ],
)
def test_compilation(lines: str, compiled: bool, loss: str, note: str | None, tmp_path: Path) -> None:
    job = found(tmp_path, f"{MODEL}{lines}")
    assert job.content["training"].get("compiled", False) is compiled
    assert job.content["model"]["loss"] == loss
    assert job.notes == (() if note is None else (f"compile.components {note}",))


FLOAT8 = f'{MODEL}converters = ["float8"]\n[float8]\nfilter_fqns = ["output"]\n'
GATHERS = 'filter_fqns = "output"\nenable_fsdp_float8_all_gather = true'
MX = f'{MODEL}converters = ["mx"]\n'


@pytest.mark.parametrize(
    ("text", "recipe", "gathers"),
    [
        (FLOAT8, "fp8_tensorwise", None),
        (f"{FLOAT8}enable_fsdp_float8_all_gather = true", "fp8_tensorwise", "fp8"),
        (f"{FLOAT8}recipe_name = 'rowwise'", "fp8_rowwise", None),
        (f"{MODEL}[float8]\nfilter_fqns = ['output']\n[training]\nenable_float8_linear = true", "fp8_tensorwise", None),
        (f"{MODEL}[float8]\nfilter_fqns = ['output']\nenable_fsdp_float8_all_gather = true", None, None),
        (MX, "mxfp8", None),
        (f"{MX}[mx]\nrecipe_name = 'mxfp8_cublas'", "mxfp8", None),
        (
            f'{MODEL}converters = ["quantize.linear.float8"]\n[quantize.linear.float8]\n{GATHERS}',
            "fp8_tensorwise",
            "fp8",
        ),
    ],
)
def test_low_precision(text: str, recipe: str | None, gathers: str | None, tmp_path: Path) -> None:
    job = found(tmp_path, text)
    assert job.content["training"].get("gemm_recipe") == recipe
    assert job.content["parallelism"].get("gather_precision") == gathers
    assert job.notes == ()


def test_layers_that_low_precision_leaves_out_are_noted(tmp_path: Path) -> None:
    text = FLOAT8.replace('["output"]', '["attention.wk"]')
    assert found(tmp_path, text).notes == (
        "float8.filter_fqns: predicted with attention.wk converted too",
        "float8.filter_fqns without output: the output projection is predicted in 16 bits",
    )


def test_loss_follows_from_the_split_of_the_vocabulary(tmp_path: Path) -> None:
    assert found(tmp_path, MODEL).content["model"]["loss"] == "torch"
    split = found(tmp_path, f"{MODEL}[parallelism]\ntensor_parallel_degree = 2").content["model"]
    assert split["loss"] == "vocabulary_parallel"


def test_unknown_sections_are_noted(tmp_path: Path) -> None:
    notes = found(tmp_path, f"{MODEL}[frobnicator]\nspeed = 3").notes
    assert notes == (
        "job.toml: not known here, and taken to cost nothing: frobnicator.speed (--strict refuses such keys)",
    )


REFUSED = [
    (
        (
            '[model]\nname = "gpt_oss"\nflavor = "20b"\n[parallelism]\nexpert_parallel_degree = 8\n'
            'expert_tensor_parallel_degree = 1\nexpert_parallel_comm_backend = "minimal_async_ep"\n'
        ),
        "modelled: standard, deepep, hybridep",
    ),
    (f'{MODEL}converters = ["lora"]\n', "adapters of every linear layer, the output projection among them"),
    (f'{MODEL}converters = ["lora"]\n[lora]\ntarget_modules = ["wg"]\n', "adapters of wg are not modelled"),
    (f'{MODEL}converters = ["float8", "mx"]\n', "one conversion of linear layers is modelled"),
    (f'{MODEL}converters = "float8"\n', "model.converters is 'float8'; expected a list of names"),
    (
        '[model]\nname = "qwen3"\nflavor = "30B-A3B"\nconverters = ["float8"]\n',
        "linear layers and experts in different precisions are not modelled",
    ),
    (
        f'{FLOAT8}recipe_name = "rowwise_with_gw_hp"',
        "recipe_name is 'rowwise_with_gw_hp'; expected tensorwise, rowwise",
    ),
    (f"{FLOAT8}emulate = true", "emulated products are not modelled"),
    (
        f"{FLOAT8}recipe_name = 'rowwise'\nenable_fsdp_float8_all_gather = true",
        "with recipe_name rowwise torchtitan refuses it; remove it",
    ),
    (f"{MX}[mx]\nrecipe_name = 'mxfp8_emulated'", "expected mxfp8, mxfp8_cublas, mxfp8_cublas_rceil"),
    (f"{MODEL}[activation_checkpoint]\nselective_ac_option = 'often'", "expected op, or a number such as 2"),
    (f'{MODEL}[optimizer]\nname = "Muon"', "only Adam and AdamW are modelled"),
    (f"{MODEL}[optimizer]\nearly_step_in_backward = true", "an optimizer inside the backward pass is not modelled"),
    (f"{MODEL}[training]\nlocal_batchsize = 4", "it is not known here. Did you mean local_batch_size?"),
    (f"{MODEL}[training]\nmax_context_length = 3000", "only whole samples of max_context_length, 3000, are modelled"),
    (f"{MODEL}[training]\nseq_len = 'long'", "training.seq_len is 'long'; expected a whole number"),
    (f"{MODEL}[training]\ndtype = 'float16'", "training.dtype is 'float16'; expected float32, bfloat16"),
    (
        f"{MODEL}[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_schedule = 'InterleavedZeroBubble'",
        "only 1F1B, Interleaved1F1B, GPipe, LoopedBFS, ZBVZeroBubble and DualPipeV are modelled",
    ),
    (
        f"{MODEL}[parallelism]\npipeline_parallel_degree = 2\nmodule_fqns_per_model_part = [['layers.0'], []]",
        "its parts hold 1 of 32 layers; name each once",
    ),
    (
        f"{MODEL}[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_layers_per_stage = 6",
        "it makes 6 stages for 2 ranks and 1F1B, which do not fit",
    ),
    (f"{MODEL}[parallelism]\npipeline_parallel_degree = 34", "32 layers do not fill its 34 stages"),
    (
        f"{MODEL}[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_microbatch_size = 3",
        "it must be a multiple of pipeline_parallel_microbatch_size, 3",
    ),
    (
        f"{MODEL}[training]\nglobal_batch_size = 64\n{PIPELINE}\ndata_parallel_shard_degree = 2",
        "the pipeline is drained between rounds of 8 × 2, which is not modelled; write 16",
    ),
    (f"{MODEL}[activation_checkpoint]\nmode = 'memory_budget'", "memory budget is not modelled"),
    (f"{MODEL}[fault_tolerance]\nenable = true", "fault tolerance changes the reduction of gradients"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_what_cannot_be_predicted_is_refused_in_one_line(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        found(tmp_path, text)
    assert str(caught.value).startswith("job.toml: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_degrees_that_do_not_make_the_gpus_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the degrees make 16 GPUs or a multiple; the run has 32"):
        layout(tmp_path, "data_parallel_shard_degree = 2\ntensor_parallel_degree = 8", num_gpus=32)


def test_file_that_is_no_toml_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not TOML") as caught:
        found(tmp_path, "[model\n")
    assert "\n" not in str(caught.value)


def test_experts_split_otherwise_than_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    degrees = "tensor_parallel_degree = 4\nexpert_parallel_degree = 8\nexpert_tensor_parallel_degree = 1"
    path.write_text(f'[model]\nname = "qwen3"\nflavor = "30B-A3B"\n[parallelism]\n{degrees}\n', encoding="utf-8")
    assert read(path).content["parallelism"]["expert_tensor_parallel_size"] == 1


def test_all_problems_of_a_job_come_at_once(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(
        '[model]\nname = "nobody"\n[training]\nseq_len = "x"\nunheard_of_size = 1\n[optimizer]\nname = "Muon"\n',
        encoding="utf-8",
    )
    with pytest.raises(ConfigError) as caught:
        read(path)
    lines = str(caught.value).splitlines()
    assert lines[0] == "3 problems:"
    for words in ("seq_len is 'x'", "unheard_of", "only Adam"):
        assert sum(words in line for line in lines) == 1


def test_gradients_reduced_in_16_bits(tmp_path: Path) -> None:
    reduced = found(tmp_path, f"{MODEL}[training]\nmixed_precision_reduce = 'bfloat16'").content["parallelism"]
    assert reduced["fp32_gradients"] is False
    assert found(tmp_path, MODEL).content["parallelism"]["fp32_gradients"] is True
