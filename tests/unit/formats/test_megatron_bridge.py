"""Recipes of Megatron-Bridge: functions evaluated from their syntax trees, and whole configurations in YAML."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from predictor.core.base.errors import ConfigError
from predictor.core.schema.read import Read
from predictor.formats import detect, read_any
from predictor.formats.known_keys import known_keys
from predictor.formats.megatron_bridge import reader as megatron_bridge

READERS = Path(megatron_bridge.__file__).parents[1]
HEAD = """
import torch
from megatron.bridge import AutoBridge
from megatron.bridge.recipes.common import _peft_common, _pretrain_common, _sft_common
from megatron.bridge.training.comm_overlap import CommOverlapConfig
from megatron.bridge.training.config import ConfigContainer

LENGTH: int = 4096


def _base(name: str, *, tp: int = 1) -> ConfigContainer:
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained(name).to_megatron_provider(load_weights=False)
    cfg.model.tensor_model_parallel_size = tp
    cfg.model.sequence_parallel = tp > 1
    cfg.model.seq_length = LENGTH
    cfg.train.global_batch_size = 128
    cfg.train.micro_batch_size = 1
    return cfg
"""
SMALL = f"""{HEAD}

def small_8b_16gpu_config() -> ConfigContainer:
    cfg = _base("meta-llama/Meta-Llama-3-8B", tp=2)
"""


def written(tmp_path: Path, body: str, head: str = SMALL, name: str = "recipe.py") -> Path:
    path = tmp_path / name
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    path.write_text(f"{head}{lines}    return cfg\n", encoding="utf-8")
    return path


def found(tmp_path: Path, body: str = "", head: str = SMALL) -> Read:
    return read_any(written(tmp_path, body, head))


def test_function_of_a_recipe(tmp_path: Path) -> None:
    read = found(tmp_path, "cfg.model.pipeline_model_parallel_size = 2\ncfg.model.apply_rope_fusion = False")
    assert read.format == megatron_bridge.FORMAT
    assert read.content["model"] == {
        "preset": "llama3-8b",
        "sequence_length": 4096,
        "attention": "flash",
        "normalization": "fused_rms_norm",
        "fused_side_kernels": True,
        "loss": "fused",
    }
    parallelism, training = read.content["parallelism"], read.content["training"]
    assert (parallelism["tensor_parallel_size"], parallelism["sequence_parallel"]) == (2, True)
    assert (parallelism["pipeline_parallel_size"], parallelism["data_parallel_size"]) == (2, 4)  # 16 GPUs by its name
    assert (parallelism["zero_stage"], parallelism["overlap_gradient_reduction"]) == (1, True)  # as _pretrain_common
    assert parallelism["fp32_gradients"] is True
    assert (training["micro_batch_size"], training["global_batch_size"]) == (1, 128)
    assert (training["precision"], training["framework"]) == ("bf16", "megatron-bridge")
    assert any("16 GPUs, as its name says" in note for note in read.notes)
    assert read.unsaid == {}


@pytest.mark.parametrize(
    ("body", "section", "key", "value"),
    [
        ('cfg.mixed_precision = "bf16_with_mxfp8_mixed"', "training", "gemm_recipe", "mxfp8"),
        ('cfg.mixed_precision = "bf16-mixed"', "training", "precision", "bf16"),
        ('cfg.mixed_precision = "fp16_mixed"', "training", "precision", "fp16"),
        (
            'cfg.mixed_precision = "bf16_with_fp8_current_scaling_mixed"',
            "training",
            "layers_in_16_bits_at_end",
            1,
        ),
        (
            ("from megatron.bridge.training.mixed_precision import bf16_with_fp8_current_scaling_mixed\n"
            "cfg.mixed_precision = bf16_with_fp8_current_scaling_mixed()\n"
            "cfg.mixed_precision.first_last_layers_bf16 = False"),
            "training",
            "gemm_recipe",
            "fp8_tensorwise",
        ),
        ("cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=True)", "parallelism", "overlap_linear_traffic", True),
        ("cfg.model.virtual_pipeline_model_parallel_size = 4\ncfg.model.pipeline_model_parallel_size = 4",
         "parallelism", "virtual_pipeline_parallel_size", 4),
        (("cfg.model.recompute_granularity = 'full'\ncfg.model.recompute_method = 'block'\n"
         "cfg.model.recompute_num_layers = 5"), "training", "recompute_num_layers", 5),
        ("cfg.model.recompute_granularity = 'selective'\ncfg.model.recompute_modules = ['layernorm', 'mlp']",
         "training", "recompute_modules", ["layernorm", "mlp"]),
        ("cfg.model.cuda_graph_impl = 'local'", "training", "cuda_graphs", True),
        ("cfg.model.cross_entropy_loss_fusion = False", "model", "preset", "llama3-8b"),
        ("cfg.model.num_layers = 16", "model", "num_layers", 16),
        ("cfg.model.cpu_offloading = True\ncfg.model.cpu_offloading_num_layers = 4",
         "training", "offload_activation_layers", 4),
        ("cfg.optimizer.optimizer_cpu_offload = True", "training", "offload_optimizer", 1.0),
        ("cfg.optimizer.optimizer = 'dist_muon'", "training", "optimizer", "muon"),
        ("cfg.ddp.grad_reduce_in_fp32 = False\ncfg.mixed_precision = None or 'bf16_mixed'",
         "parallelism", "fp32_gradients", True),
        (("cfg.model.pipeline_model_parallel_size = 2\n"
         "cfg.model.pipeline_model_parallel_layout = [['embedding'] + ['decoder'] * 16, ['decoder'] * 16 + ['loss']]"),
         "parallelism", "layers_per_stage", "Etttttttttttttttt|ttttttttttttttttL"),
        (("cfg.tokenizer.tokenizer_type = 'NullTokenizer'\ncfg.tokenizer.vocab_size = 32000\n"
         "cfg.tokenizer.use_tokenizer_vocab_size = True"), "model", "vocab_size", 32001),
    ],
)  # fmt: skip
def test_settings_of_a_recipe(body: str, section: str, key: str, value: object, tmp_path: Path) -> None:
    assert found(tmp_path, body).content[section][key] == value


def test_adapters_of_fine_tuning(tmp_path: Path) -> None:
    head = f"""{HEAD}
def tuned_config() -> ConfigContainer:
    cfg = _peft_common()
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Llama-2-7b-hf").to_megatron_provider()
    cfg.peft.dim = 8
    cfg.peft.target_modules = ["linear_qkv"]
"""
    read = found(tmp_path, "", head)
    assert read.content["training"]["lora"] == {"rank": 8, "targets": ["qkv"]}
    assert read.content["model"]["preset"] == "llama2-7b"
    assert (read.content["parallelism"]["zero_stage"], read.content["model"]["sequence_length"]) == (1, 2048)
    assert list(read.unsaid) == ["parallelism.data_parallel_size"]


@pytest.mark.parametrize(
    ("model", "body", "lora", "note"),
    [
        (
            "nvidia/Nemotron-H-8B-Base",
            'cfg.peft.target_modules = ["linear_qkv", "in_proj", "out_proj"]',
            {"rank": 32, "targets": ["qkv", "in_projection", "out_projection"]},
            None,
        ),
        (
            "deepseek-ai/DeepSeek-V3",
            "cfg.peft.normalize_moe_lora = True\ncfg.peft.share_expert_adapters = False",
            {
                "rank": 32,
                "targets": ["attention_output", "ffn_up", "ffn_down"],
                "share_expert_adapters": False,
                "normalize_moe_lora": True,
            },
            "the model has no linear_qkv, so no adapters there",
        ),
        (
            "deepseek-ai/DeepSeek-V3",
            (
                'cfg.peft.target_modules = ["linear_q_down_proj", "linear_kv_up_proj"]\n'
                "cfg.peft.a2a_experimental = True\ncfg.peft.dropout = 0.1"
            ),
            {"rank": 32, "targets": ["q_down", "kv_up"], "all_to_all": True, "dropout": 0.1},
            None,
        ),
    ],
)
def test_adapters_of_the_layers_that_a_model_has(
    model: str, body: str, lora: dict[str, object], note: str | None, tmp_path: Path
) -> None:
    head = f"""{HEAD}
def tuned_config() -> ConfigContainer:
    cfg = _peft_common()
    cfg.model = AutoBridge.from_hf_pretrained("{model}").to_megatron_provider()
"""
    read = found(tmp_path, body, head)
    assert read.content["training"]["lora"] == lora
    assert [line for line in read.notes if "target_modules" in line] == (
        [] if note is None else [f"recipe.py:tuned_config: peft.target_modules: {note}"]
    )


def test_offloading_of_single_modules_is_read(tmp_path: Path) -> None:
    body = "cfg.model.fine_grained_activation_offloading = {}\ncfg.model.offload_modules = ['core_attn', 'attn_proj']"
    assert found(tmp_path, body.format(True)).content["training"]["offload_modules"] == ["core_attn", "attn_proj"]
    assert "offload_modules" not in found(tmp_path, body.format(False)).content["training"]
    with pytest.raises(ConfigError, match=r"model\.offload_modules is gdp_qkv; expected of attn_norm"):
        found(tmp_path, body.format(True).replace("core_attn", "gdp_qkv").replace(", 'attn_proj'", ""))


def test_attention_in_fp8_is_read(tmp_path: Path) -> None:
    body = 'cfg.mixed_precision = "bf16_with_mxfp8_mixed"\n'
    assert "fp8_attention" not in found(tmp_path, body).content["training"]
    head = SMALL.replace(
        "import torch\n", "import torch\nfrom megatron.bridge.training.mixed_precision import bf16_mixed\n"
    )
    changed = "cfg.mixed_precision = bf16_mixed()\ncfg.mixed_precision.fp8 = 'e4m3'\n"
    changed += "cfg.mixed_precision.fp8_recipe = 'mxfp8'\ncfg.mixed_precision.fp8_dot_product_attention = True"
    assert found(tmp_path, changed, head).content["training"]["fp8_attention"] is True


def test_model_without_a_preset_comes_from_its_config(tmp_path: Path) -> None:
    read = found(tmp_path, "", SMALL.replace("meta-llama/Meta-Llama-3-8B", "someone/new-model"))
    assert "someone/new-model" in read.unsaid["model.num_layers"]
    assert "preset" not in read.content["model"]


def test_sizes_of_a_provider(tmp_path: Path) -> None:
    body = """from megatron.bridge.models import GPTModelProvider
import torch.nn.functional as F
cfg.model = GPTModelProvider(num_layers=4, hidden_size=256, num_attention_heads=8, num_query_groups=2,
    activation_func=F.silu, gated_linear_unit=True, normalization="RMSNorm", add_bias_linear=False,
    position_embedding_type="rope", share_embeddings_and_output_weights=False, vocab_size=1000, seq_length=512,
    hidden_dropout=0.0, attention_dropout=0.0, num_moe_experts=8, moe_router_topk=2, moe_layer_freq=[0, 1, 1, 1])"""
    model = found(tmp_path, body).content["model"]
    assert (model["num_layers"], model["hidden_size"], model["num_key_value_heads"]) == (4, 256, 2)
    assert (model["activation"], model["normalization"], model["biases"]) == ("swiglu", "fused_rms_norm", False)
    assert (model["vocab_size"], model["tied_embeddings"]) == (1000, False)
    assert model["moe"]["num_dense_layers"] == 1


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("import os\ncfg.train.micro_batch_size = int(os.environ['MBS'])", r"train\.micro_batch_size cannot be read"),
        ("cfg.model.unheard_of_size = 3", r"model\.unheard_of_size is 3; of Megatron-Bridge it is not known here"),
        ("cfg.optimizer.optimizer = 'lion'", "only adam and muon are modelled"),
        ("cfg.mixed_precision = 'int4'", "mixed_precision is int4"),
        ("cfg.model.freeze_vision_model = True", "towers of other modalities"),
        ("cfg.peft = 'dora'", "only LoRA is modelled"),
        ("cfg.model = None", "model is None"),
        ("from elsewhere import tune\ntune(cfg)", r"elsewhere\.tune may change the configuration"),
        ("from elsewhere import base\ncfg = base()", r"starts from elsewhere\.base"),
        ("from elsewhere import overlap\ncfg.comm_overlap = overlap()", "comm_overlap cannot be read"),
        ("from elsewhere import cast\ncfg.mixed_precision = cast('bf16')", "mixed_precision comes from elsewhere"),
        ("from elsewhere import adam\ncfg.optimizer, cfg.scheduler = adam()", "optimizer cannot be read"),
        ("raise ValueError('no')", "returns no configuration"),
    ],
)
def test_what_cannot_be_predicted_is_refused(body: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        found(tmp_path, body)


def test_all_problems_of_a_recipe_come_at_once(tmp_path: Path) -> None:
    body = "cfg.model.unheard_of_size = 3\ncfg.optimizer.optimizer = 'lion'\ncfg.model.fp8_output_proj = True"
    with pytest.raises(ConfigError) as caught:
        found(tmp_path, body)
    assert str(caught.value).startswith("3 problems:")
    assert "recipe.py:small_8b_16gpu_config: model.unheard_of_size" in str(caught.value)


def test_file_of_several_recipes_needs_a_name(tmp_path: Path) -> None:
    other = SMALL[len(HEAD) :].replace("small_8b_16gpu", "other_8b_32gpu")
    path = written(tmp_path, "return cfg\n" + other.strip().replace("\n", "\n"), f"{SMALL}    return cfg\n{other}")
    with pytest.raises(ConfigError, match=r"has 2 configurations; name one as recipe\.py:small_8b_16gpu_config"):
        read_any(path)
    named = Path(f"{path}:other_8b_32gpu_config")
    assert detect(named) == megatron_bridge.FORMAT
    assert read_any(named).content["parallelism"]["data_parallel_size"] == 16
    with pytest.raises(ConfigError, match="Did you mean other_8b_32gpu_config"):
        read_any(Path(f"{path}:other_8b_config"))


def test_whole_configuration_in_yaml(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        """
_target_: megatron.bridge.training.config.ConfigContainer
model:
  _target_: megatron.bridge.models.gpt_provider.GPTModelProvider
  num_layers: 4
  hidden_size: 256
  num_attention_heads: 8
  seq_length: 512
  vocab_size: 1000
  activation_func: {_target_: torch.nn.functional.silu, _call_: false}
  gated_linear_unit: true
  tensor_model_parallel_size: 2
  params_dtype: {_target_: torch.bfloat16}
train: {micro_batch_size: 2, global_batch_size: 64, train_iters: 10}
ddp: {use_distributed_optimizer: true, grad_reduce_in_fp32: true}
mixed_precision: bf16_mixed
""",
        encoding="utf-8",
    )
    read = read_any(path, num_gpus=8)
    assert read.format == megatron_bridge.FORMAT
    assert read.content["model"]["activation"] == "swiglu"
    assert read.content["parallelism"]["data_parallel_size"] == 4
    assert read.content["training"]["global_batch_size"] == 64


def test_list_of_arguments_that_are_read_is_that_of_the_code() -> None:
    calls = re.compile(r"options\.(?:get|has|whole|optional_whole|real|switch|text)\(\s*\"([\w-]+)\"")
    files = [path for path in READERS.glob("megatron*/*.py") if not path.name.startswith("writ")]
    code = "".join(path.read_text(encoding="utf-8") for path in files)
    named = {name.replace("-", "_") for name in calls.findall(code)}
    known = known_keys("megatron")
    assert named <= known.read
    quoted = {name.replace("-", "_") for name in re.findall(r"[\"{]([\w-]+)[\"}]", code)}
    parts = ("account_for_", "num_layers_at_", "fp8_", "fp4_")
    assert {name for name in known.read - quoted if not name.startswith(parts)} == set()


def test_optimizer_on_the_host_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "recipe.py"
    path.write_text(
        "from megatron.bridge import AutoBridge\n"
        "from megatron.bridge.recipes.common import _pretrain_common\n\n\n"
        "def llama_config():\n"
        "    cfg = _pretrain_common()\n"
        '    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-8B").to_megatron_provider()\n'
        "    cfg.optimizer.optimizer_cpu_offload = True\n"
        "    cfg.optimizer.optimizer_offload_fraction = 0.5\n"
        "    cfg.optimizer.overlap_cpu_optimizer_d2h_h2d = True\n"
        "    return cfg\n",
        encoding="utf-8",
    )
    training = read_any(path).content["training"]
    assert (training["offload_optimizer"], training["overlap_optimizer_offload"]) == (0.5, True)


def test_what_is_only_turned_off_is_off_whatever_it_was(tmp_path: Path) -> None:
    key = "cfg.model.use_transformer_engine_op_fuser"
    off = f'if hasattr(cfg.model, "use_transformer_engine_op_fuser") and {key}:\n    {key} = False'
    assert "fused_experts" not in found(tmp_path, off).content["training"]
    for changed in (off.replace(" and ", " or "), off.replace("= False", "= True"), f"{off}\nelse:\n    {key} = True"):
        with pytest.raises(ConfigError, match="which only a run of the code tells"):
            found(tmp_path, changed)


def test_modules_whose_inputs_travel_to_the_host(tmp_path: Path) -> None:
    on = "cfg.model.fine_grained_activation_offloading = True\n"
    read = found(tmp_path, f'{on}cfg.model.offload_modules = ["core_attn", "attn_proj"]')
    assert read.content["training"]["offload_modules"] == ["core_attn", "attn_proj"]
    assert "offload_modules" not in found(tmp_path, 'cfg.model.offload_modules = ["core_attn"]').content["training"]
    layers = "cfg.model.cpu_offloading_num_layers = 4"
    assert (
        "offload_activation_layers" not in found(tmp_path, layers).content["training"]
    )  # Megatron-Bridge asks for both


def test_precision_of_the_optimizer_where_none_is_named(tmp_path: Path) -> None:
    path = tmp_path / "overrides.yaml"
    layout = (
        "model: {tensor_model_parallel_size: 2, seq_length: 4096}\ntrain: {micro_batch_size: 1, global_batch_size: 8}\n"
    )
    path.write_text(f"{layout}optimizer: {{bf16: true}}\n", encoding="utf-8")
    assert read_any(path).content["training"]["precision"] == "bf16"
    path.write_text(layout, encoding="utf-8")
    with pytest.raises(ConfigError, match="mixed_precision is None"):
        read_any(path)


def test_a_model_of_its_own_sizes_takes_rotation_vocabulary_and_groups_of_micro_batches(tmp_path: Path) -> None:
    body = (
        "cfg.model = GPTModelProvider(num_layers=8, hidden_size=512, num_attention_heads=8, seq_length=2048,\n"
        '    position_embedding_type="rope", rotary_percent=0.5)\n'
        'cfg.tokenizer.tokenizer_type = "NullTokenizer"\n'
        "cfg.tokenizer.vocab_size = 999\n"
        "cfg.model.pipeline_model_parallel_size = 2\n"
        "cfg.model.virtual_pipeline_model_parallel_size = 2\n"
        "cfg.model.microbatch_group_size_per_vp_stage = 4\n"
        "cfg.dist.use_tp_pp_dp_mapping = True"
    )
    head = f"from megatron.bridge.models.gpt_provider import GPTModelProvider\n{SMALL}"
    content = found(tmp_path, body, head).content
    assert (content["model"]["rotary_fraction"], content["model"]["vocab_size"]) == (0.5, 1000)
    assert content["parallelism"]["micro_batch_group_size"] == 4
    assert content["parallelism"]["rank_order"] == ["tp", "cp", "pp", "dp"]
