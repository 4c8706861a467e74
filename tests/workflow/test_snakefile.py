"""The Snakefile without running it: what it would do, its lint, its configuration, and the Slurm profiles."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from microbench.errors import MeasureError
from microbench.workflow import Settings, read_settings
from tests.workflow.conftest import PATH, ROOT, Workflow

PROFILES = sorted((ROOT / "slurm").glob("**/config.yaml"))


def test_profile_all_would_measure_everything_in_few_jobs(workflow: Workflow) -> None:
    assert workflow.run("profile_all", "--dry-run", "--printshellcmds") == 0, workflow.output
    commands = re.findall(r"python -m \S+ .*", workflow.output)
    assert len(commands) == 3
    for words in (
        "microbench system --name here",
        "microbench operator all --sweep smoke --device auto --shard 0/1 --out results/here",
        "microbench collective all --sweep smoke --backend mpi --nodes 1 --ranks-per-node 2 --out results/here",
    ):
        assert any(words in command for command in commands), workflow.output


@pytest.mark.parametrize(
    ("target", "command"),
    [
        ("results/here/done/operator/gelu", "microbench operator gelu --sweep smoke"),
        ("results/here/done/collective/all_gather", "microbench collective all_gather --sweep smoke"),
    ],
)
def test_one_operator_or_collective_is_a_target(workflow: Workflow, target: str, command: str) -> None:
    assert workflow.run(target, "--dry-run", "--printshellcmds") == 0, workflow.output
    assert workflow.output.count("python -m") == 1
    assert command in workflow.output


def test_report_follows_from_measuring_and_fitting(workflow: Workflow) -> None:
    assert workflow.run("report", "--dry-run") == 0, workflow.output
    for rule in ("describe", "operators", "collectives", "fit_here", "page"):
        assert f"rule {rule}:" in workflow.output


def test_verification_follows_from_fitting(workflow: Workflow) -> None:
    assert workflow.run("verify", "--dry-run", "--printshellcmds") == 0, workflow.output
    for rule in ("fit_here", "verified"):
        assert f"rule {rule}:" in workflow.output
    assert "profiling/verify --system results/here/published --device auto --out results/here/verify" in workflow.output


def test_a_configured_gpu_takes_nccl_and_its_shards(workflow: Workflow) -> None:
    words = (
        "profile_all",
        "--dry-run",
        "--printshellcmds",
        "--config",
        "device=cuda",
        "operator_jobs=2",
        "system=mine",
    )
    assert workflow.run(*words) == 0, workflow.output
    assert "--backend nccl" in workflow.output
    assert "--shard 0/2 --out results/mine" in workflow.output
    assert "--shard 1/2 --out results/mine" in workflow.output


def test_an_unknown_key_is_refused_before_any_work(workflow: Workflow) -> None:
    assert workflow.run("profile_all", "--dry-run", "--config", "sweeep=smoke") == 1
    assert "--config sweeep='smoke': Extra inputs are not permitted. Keys: system, measurements" in workflow.output


def test_lint_finds_nothing(workflow: Workflow) -> None:
    assert workflow.run("--lint") == 0, workflow.output


def test_format_is_snakefmts() -> None:
    command = shutil.which("snakefmt", path=PATH)
    if command is None:
        pytest.skip("no snakefmt here")
    done = subprocess.run([command, "--check", str(ROOT / "Snakefile")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_ranks_equal_the_request_to_the_scheduler() -> None:
    settings = Settings(ranks_per_node=4)
    assert settings.ranks({}) == "--nodes 1 --ranks-per-node 4"
    assert settings.ranks({"nodes": 2, "tasks_per_node": 8}) == "--nodes 2 --ranks-per-node 8"
    assert settings.ranks({"nodes": 8, "tasks": 8}) == "--nodes 8 --ranks-per-node 1"


@pytest.mark.parametrize(
    "config",
    [
        *({"system": "a b"}, {"device": "tpu"}, {"ranks_per_node": 0}, {"operators": "a;b"}),
        *({"launcher": "'srun"}, {"launcher": "auto -x"}, {"sbatch_without": "--export; rm"}),
    ],
)
def test_settings_refuse_what_no_rule_can_use(config: dict[str, object]) -> None:
    with pytest.raises(MeasureError, match=next(iter(config))):
        read_settings(config)


def test_a_launcher_that_is_not_known_is_refused_with_the_list() -> None:
    with pytest.raises(MeasureError, match="launcher='orterun -x': expected auto, srun, ibrun, mpirun or mpiexec"):
        read_settings({"launcher": "orterun -x"})
    settings = read_settings({"launcher": "srun --mpi=pmix"})
    assert settings.ranks({"nodes": 2, "tasks": 2}).endswith("--ranks-per-node 1 --launcher 'srun --mpi=pmix'")


def test_a_data_sheet_is_named_found_or_refused_with_the_list(tmp_path: Path) -> None:
    (tmp_path / "Vista.yaml").touch()
    (tmp_path / "of mine.yaml").touch()
    assert Settings().sheet(tmp_path) == f"--datasheet {tmp_path}"
    assert Settings(datasheet="none").sheet(tmp_path) == ""
    assert Settings(datasheet="Vista").sheet(tmp_path) == f"--datasheet {tmp_path}/Vista.yaml"
    assert Settings(datasheet=f"{tmp_path}/of mine.yaml").sheet(tmp_path) == f"--datasheet '{tmp_path}/of mine.yaml'"
    with pytest.raises(MeasureError, match="datasheet=Visat: no such file; expected auto, none, Vista, of mine or a"):
        Settings(datasheet="Visat").sheet(tmp_path)


def test_a_described_system_takes_its_sheets_links_with_their_source(workflow: Workflow) -> None:
    pytest.importorskip("torch")
    words = ("results/here/system.yaml", "--cores", "1", "--config", "device=cpu")
    assert workflow.run(*words, "datasheet=Vista") == 0, workflow.output
    hardware = yaml.safe_load((workflow.results / "system.yaml").read_text(encoding="utf-8"))["hardware"]
    assert hardware["links"]["inter_node_gb_per_s"]["value"] == 50
    assert hardware["links"]["inter_node_gb_per_s"]["source"].startswith("TACC, Vista user guide")
    assert workflow.run(*words, "datasheet=Visat", "--forceall") == 1
    assert "datasheet=Visat: no such file; expected auto, none, A100, " in workflow.output


def test_nothing_of_a_site_is_in_a_rule() -> None:
    text = (ROOT / "Snakefile").read_text(encoding="utf-8")
    assert not re.findall(r"slurm_|partition|account|qos|\bgres\b|runtime|mem_mb", text)


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.parent.name)
def test_every_profile_retries_resumes_and_reports(path: Path) -> None:
    profile = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert profile["executor"] == "slurm"
    assert profile["slurm-requeue"]
    assert profile["rerun-incomplete"]
    assert profile["retries"] >= 1
    assert profile["show-failed-logs"]
    # A retry resumes; were it given more time, a job that fails with an error would grow past the partition's limit.
    resources = [profile["default-resources"], *profile["set-resources"].values()]
    assert all(isinstance(asked.get("runtime", 1), int) for asked in resources)
    read_settings(dict(pair.split("=", 1) for pair in profile.get("config", [])))


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.parent.name)
def test_every_profile_names_rules_that_exist(path: Path) -> None:
    rules = set(re.findall(r"^rule (\w+):|rule \w+ as (\w+) ", (ROOT / "Snakefile").read_text(), re.MULTILINE))
    known = {name for pair in rules for name in pair if name}
    assert yaml.safe_load(path.read_text(encoding="utf-8"))["set-resources"].keys() <= known
