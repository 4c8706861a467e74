"""The sbatch commands that Snakemake's Slurm plugin builds from every profile, compared with the site's guide."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from microbench import cli
from microbench.system import read_datasheet
from microbench.workflow import read_settings
from tests.workflow.conftest import ROOT, Workflow

SBATCH = ROOT / "slurm" / "bin" / "sbatch"
TARGETS = ("profile_all", "results/x/done/operator/gelu", "results/x/done/collective/all_reduce")
ONE_NODE, SEVERAL_NODES = ("describe", "operators", "operator"), ("collectives", "collective")
# Of every job of the plugin: its name, its log, the rule it runs, its folder and its command.
OF_THE_RUN = ("--parsable", "--job-name", "--output", "--comment", "-D", "--wrap")


@dataclass(frozen=True)
class Guide:
    """What a guide says of sbatch's options: of each of these groups every job names one, of the refused none."""

    required: tuple[tuple[str, ...], ...]
    refused: tuple[str, ...]


MEMORY = ("--mem", "--mem-per-cpu", "--mem-per-gpu")
GUIDES = {
    # TACC, Vista User Guide, table 5. -A is for members of several projects; the queue alone gives the GPU.
    "vista": Guide(
        required=(("-N", "--nodes"), ("-n", "--ntasks", "--ntasks-per-node"), ("-t",), ("-p",)),
        refused=(*MEMORY, "--export", "--gres", "--gpus", "--gpus-per-task", "--gpus-per-node"),
    ),
    # NERSC, "Running Jobs on Perlmutter" and "Queues and Charges".
    "perlmutter": Guide(
        required=(("-A",), ("-C",), ("-q", "--qos"), ("-t",), ("-N", "--nodes"), ("--gpus", "--gpus-per-node")),
        refused=(*MEMORY, "--gres", "-p"),
    ),
    "slurm": Guide(required=(("-p",), ("-t",), ("--mem",)), refused=("-A", "--gres", "--gpus")),
}
COMMANDS = {
    "vista": {
        ONE_NODE: "-A MYPROJECT -p gh -t 30 --nodes=1 --requeue --ntasks=1 --cpus-per-task=72",
        SEVERAL_NODES: "-A MYPROJECT -p gh -t 30 --nodes=8 --requeue --ntasks=8 --cpus-per-task=72",
    },
    "perlmutter": {
        ONE_NODE: "--export=ALL -A mXXXX -t 30 -C gpu&hbm80g --qos=shared --nodes=1 --requeue --cpus-per-task=32"
        " --gpus=1",
        SEVERAL_NODES: "--export=ALL -A mXXXX -t 30 -C gpu&hbm80g --qos=regular --nodes=4 --requeue --ntasks-per-node=4"
        " --cpus-per-task=32 --gpus-per-node=4",
    },
    "slurm": {
        ("describe", "operator"): "--export=ALL -p debug -t 20 --mem 2000 --requeue --ntasks=1 --cpus-per-task=1",
        ("operators",): "--export=ALL -p debug -t 30 --mem 4000 --requeue --ntasks=1 --cpus-per-task=2",
        SEVERAL_NODES: "--export=ALL -p debug -t 20 --mem 4000 --nodes=2 --requeue --ntasks-per-node=2"
        " --cpus-per-task=1",
    },
}


def profile(site: str) -> Path:
    """Return the folder of a site's profile; that of any cluster is slurm itself."""
    return ROOT / "slurm" / ("" if site == "slurm" else site)


def put(path: Path, text: str) -> None:
    """Write a shell script that can be run."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def options(words: list[str]) -> list[tuple[str, str]]:
    """Return a command's options with their values, in order."""
    found: list[tuple[str, str]] = []
    for word in words:
        if word.startswith("-"):
            name, _, value = word.partition("=")
            found.append((name, value))
        else:
            found[-1] = (found[-1][0], word)
    return found


def submitted(workflow: Workflow, site: str) -> dict[str, list[list[str]]]:
    """Return the words of every sbatch that Snakemake runs with a site's profile, by rule; none is accepted."""
    commands, calls = workflow.folder / "bin", workflow.folder / "calls"
    calls.mkdir()
    put(commands / "sbatch", f'printf "%s\\0" "$@" > {calls}/$$; exit 1')
    put(commands / "sacctmgr", "printf 'MYPROJECT\\nmXXXX\\n'")
    put(commands / "sinfo", "echo 'debug*'")
    for name in ("scontrol", "squeue"):
        put(commands / name, "exit 0")
    workflow.environment["PATH"] = os.pathsep.join((str(commands), workflow.environment["PATH"]))
    at_once = ("--retries", "0", "--slurm-init-seconds-before-status-checks", "1", "--latency-wait", "1")
    workflow.run("--profile", str(profile(site)), *at_once, *TARGETS)
    found: dict[str, list[list[str]]] = {}
    for path in sorted(calls.iterdir()):
        words = path.read_text().rstrip("\0").split("\0")
        rule = words[words.index("--comment") + 1].removeprefix("rule_").partition("_wildcards")[0]
        found.setdefault(rule, []).append(words)
    return found


@pytest.mark.parametrize("site", COMMANDS)
def test_every_job_is_what_the_guide_asks_for(workflow: Workflow, site: str) -> None:
    jobs = submitted(workflow, site)
    assert jobs.keys() == {*ONE_NODE, *SEVERAL_NODES}, workflow.output
    expected = {rule: text for rules, text in COMMANDS[site].items() for rule in rules}
    for rule, calls in jobs.items():
        assert len(calls) == 1
        given = options(calls[0])
        names = {name for name, _ in given}
        assert names.issuperset(OF_THE_RUN)
        own = [option for option in given if option[0] not in OF_THE_RUN]
        assert own == options(expected[rule].split()), rule
        guide = GUIDES[site]
        assert not names.intersection(guide.refused), rule
        assert all(names.intersection(group) for group in guide.required), rule


@pytest.mark.parametrize(
    ("site", "launcher", "ranks", "gpu"),
    [
        ("vista", "ibrun", (8, 1), "NVIDIAGH200120GB"),
        (
            "perlmutter",
            "srun --cpus-per-task=32 --cpu-bind=cores --kill-on-bad-exit=1",
            (4, 4),
            "NVIDIAA100-SXM4-80GB",
        ),
    ],
)
def test_launcher_and_data_sheet_of_a_site_reach_the_commands(
    workflow: Workflow, site: str, launcher: str, ranks: tuple[int, int], gpu: str
) -> None:
    assert workflow.run("--profile", str(profile(site)), "--dry-run", *TARGETS) == 0, workflow.output
    lines = re.findall(r"python -m microbench (.*) > ", workflow.output)
    parsed = [cli.parser().parse_args(shlex.split(line)) for line in lines]
    collectives = [arguments for arguments in parsed if hasattr(arguments, "launcher")]
    assert len(collectives) == 2
    for arguments in collectives:
        assert (arguments.launcher, (arguments.nodes, arguments.ranks_per_node)) == (launcher, ranks)
    (described,) = (arguments for arguments in parsed if hasattr(arguments, "datasheet"))
    assert read_datasheet(described.datasheet)["gpu"]["name"] == gpu


@pytest.mark.parametrize("site", ["vista", "perlmutter"])
def test_the_resource_that_marks_an_mpi_job_is_the_launcher(site: str) -> None:
    content = yaml.safe_load((profile(site) / "config.yaml").read_text(encoding="utf-8"))
    settings = read_settings(dict(pair.split("=", 1) for pair in content["config"]))
    assert {content["set-resources"][rule]["mpi"] for rule in SEVERAL_NODES} == {settings.launcher.split()[0]}


def sbatch(without: str, *folders: Path) -> subprocess.CompletedProcess[str]:
    """Run our sbatch with some words, found on PATH before these folders."""
    path = os.pathsep.join(map(str, (SBATCH.parent, *folders)))
    words = (
        "--export=ALL",
        "-p",
        "my queue",
        "--export",
        "NONE",
        "--exporter=1",
        "-A",
        "b",
        "--wrap=echo '-p' \"$HOME\"",
    )
    environment = {"PATH": path, "SBATCH_WITHOUT": without}
    return subprocess.run(["sbatch", *words], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("without", "left"),
    [
        ("", ["--export=ALL", "-p", "my queue", "--export", "NONE", "--exporter=1", "-A", "b"]),
        ("--export", ["-p", "my queue", "--exporter=1", "-A", "b"]),
        ("--export -p", ["--exporter=1", "-A", "b"]),
    ],
)
def test_options_that_a_site_does_without_are_dropped(tmp_path: Path, without: str, left: list[str]) -> None:
    put(tmp_path / "sbatch", 'printf "%s\\n" "$@"')
    assert sbatch(without, tmp_path).stdout.splitlines() == [*left, "--wrap=echo '-p' \"$HOME\""]


def test_without_slurm_our_sbatch_says_so(tmp_path: Path) -> None:
    (tmp_path / "sbatch").symlink_to(SBATCH)
    done = sbatch("--export", tmp_path)
    assert (done.returncode, done.stdout) == (127, "")
    assert "sbatch is not on PATH besides" in done.stderr
