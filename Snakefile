"""From a machine to its published regressors; every rule runs a command that can be typed by hand.

snakemake profile_all --cores all            measure this machine, here
snakemake --profile slurm profile_all        measure a cluster (slurm/config.yaml says which)
snakemake fit_models --cores 2               fit and publish
snakemake report --cores 1                   one HTML page of what was measured
snakemake verify --cores all                 run configurations here, and compare them with their predictions
snakemake results/here/done/operator/gelu --cores 1        a single operator; done/collective/NAME: a collective
"""

import os
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.utils import min_version

min_version("8.0")
# The checkout's own packages, here and in every rule's command, whether or not they are installed.
SOURCES = [
    workflow.basedir,
    f"{workflow.basedir}/profiling",
    f"{workflow.basedir}/training",
    f"{workflow.basedir}/slurm",
]
sys.path[:0] = SOURCES
# "python" in a rule is the interpreter that runs Snakemake, whether or not its environment is activated.
PATH = [os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)]
os.environ.update(PYTHONPATH=os.pathsep.join(SOURCES), PATH=os.pathsep.join(PATH))

from fitting.systems import measured_sources
from microbench.workflow import read_settings

SETTINGS = read_settings(
    config
)  # every key, with its meaning: python -m microbench.workflow
HERE = f"results/{SETTINGS.system}"
SHARDS = [
    f"{index}of{SETTINGS.operator_jobs}" for index in range(SETTINGS.operator_jobs)
]
MARKS = [
    *expand(f"{HERE}/done/operators.{{shard}}", shard=SHARDS),
    f"{HERE}/done/collectives",
]
# None where a cluster's profile sets the cores of a job.
ALL_CORES = workflow.resource_settings.cores or 1
CONFIGURATIONS = sorted(
    map(str, Path(workflow.basedir, "profiling/verify").glob("*.yaml"))
)
SYSTEMS = Path(workflow.basedir, "training/systems")
MEASURED = measured_sources(SYSTEMS)
# slurm/bin/sbatch drops what the site does without from the plugin's command.
if SETTINGS.sbatch_without:
    os.environ.update(
        SBATCH_WITHOUT=SETTINGS.sbatch_without,
        PATH=os.pathsep.join([f"{workflow.basedir}/slurm/bin", *PATH]),
    )


wildcard_constraints:
    system="[A-Za-z0-9-]+",
    operator="[a-z_0-9-]+",
    collective="[a-z_0-9]+",
    shard="[0-9]+of[0-9]+",


localrules:
    profile_all,
    fit_models,
    fit,
    fit_here,
    report,
    page,
    verify,


rule profile_all:
    input:
        f"{HERE}/system.yaml",
        MARKS,


# Measuring rules declare only a mark in done/, because Snakemake deletes the declared outputs of a failed job: the
# tables stay, and the same command measures missing rows. Each takes all cores, so that no two disturb each other.
rule describe:
    output:
        "results/{system}/system.yaml",
    log:
        "logs/{system}/system.log",
    conda:
        "profiling/environment.yaml"
    threads: ALL_CORES
    params:
        device=SETTINGS.device,
        sheet=SETTINGS.sheet(SYSTEMS),
    shell:
        "python -m microbench system --name {wildcards.system} --device {params.device} {params.sheet}"
        " --out results/{wildcards.system} > {log} 2>&1"


rule operators:
    output:
        touch("results/{system}/done/operators.{shard}"),
    log:
        "logs/{system}/operators.{shard}.log",
    conda:
        "profiling/environment.yaml"
    threads: ALL_CORES
    params:
        device=SETTINGS.device,
        sweep=SETTINGS.sweep,
        names=SETTINGS.operators,
        shard=lambda wildcards: wildcards.shard.replace("of", "/"),
    shell:
        "python -m microbench operator {params.names} --sweep {params.sweep}"
        " --device {params.device} --shard {params.shard} --out results/{wildcards.system} > {log} 2>&1"


use rule operators as operator with:
    output:
        touch("results/{system}/done/operator/{operator}"),
    log:
        "logs/{system}/operator.{operator}.log",
    params:
        device=SETTINGS.device,
        sweep=SETTINGS.sweep,
        names=lambda wildcards: wildcards.operator,
        shard="0/1",


rule collectives:
    output:
        touch("results/{system}/done/collectives"),
    log:
        "logs/{system}/collectives.log",
    conda:
        "profiling/environment.yaml"
    threads: ALL_CORES
    params:
        sweep=SETTINGS.message_sweep,
        names=SETTINGS.collectives,
        backend=SETTINGS.collective_backend,
        ranks=lambda wildcards, resources: SETTINGS.ranks(resources),
    shell:
        "python -m microbench collective {params.names} --sweep {params.sweep}"
        " --backend {params.backend} {params.ranks} --out results/{wildcards.system} > {log} 2>&1"


use rule collectives as collective with:
    output:
        touch("results/{system}/done/collective/{collective}"),
    log:
        "logs/{system}/collective.{collective}.log",
    params:
        sweep=SETTINGS.message_sweep,
        names=lambda wildcards: wildcards.collective,
        backend=SETTINGS.collective_backend,
        ranks=lambda wildcards, resources: SETTINGS.ranks(resources),


def tables(wildcards):
    """Return a system's measurement tables."""
    return sorted(map(str, (SETTINGS.measurements / wildcards.system).glob("*/*.csv")))


def donor(wildcards):
    """Return the mark of the donor, which is fitted first, of a system with missing tables."""
    source = MEASURED.get(wildcards.system)
    return [f"results/fitted/{source.donor}"] if source and source.donor else []


def measured_systems(wildcards):
    """Return the marks of the systems whose tables are here, and of this machine once it is profiled."""
    systems = [
        f"results/fitted/{name}"
        for name in MEASURED
        if (SETTINGS.measurements / name).is_dir()
    ]
    systems += [f"{HERE}/done/fitted"] * os.path.exists(f"{HERE}/system.yaml")
    if not systems:
        raise WorkflowError(
            f"nothing to fit: {SETTINGS.measurements} has no folder {' or '.join(MEASURED)}, and {HERE} is not profiled"
        )
    return systems


# Publishing rules declare a mark as well: a published system stays when a new fit fails.
rule fit_models:
    input:
        measured_systems,


rule fit:
    input:
        tables=tables,
        donor=donor,
        system="training/systems/{system}.yaml",
    output:
        touch("results/fitted/{system}"),
    log:
        "logs/{system}/fit.log",
    conda:
        "training/environment.yaml"
    threads: 2
    params:
        measurements=lambda wildcards: SETTINGS.measurements / wildcards.system,
    shell:
        "python -m fitting fit --system {input.system} --measurements {params.measurements}"
        " --out regressors/{wildcards.system} > {log} 2>&1"


rule fit_here:
    input:
        system="results/{system}/system.yaml",
        tables=[mark.replace(HERE, "results/{system}") for mark in MARKS],
    output:
        touch("results/{system}/done/fitted"),
    log:
        "logs/{system}/fit.log",
    conda:
        "training/environment.yaml"
    threads: 2
    shell:
        "python -m fitting fit --system {input.system} --measurements results/{wildcards.system}"
        " --out results/{wildcards.system}/published > {log} 2>&1"


rule report:
    input:
        f"{HERE}/report.html",


rule page:
    input:
        "results/{system}/done/fitted",
    output:
        "results/{system}/report.html",
    log:
        "logs/{system}/report.log",
    conda:
        "profiling/environment.yaml"
    shell:
        "python -m microbench report results/{wildcards.system} --published results/{wildcards.system}/published"
        " --out {output} > {log} 2>&1"


rule verify:
    input:
        f"{HERE}/verify/report.html",


# Records of runs stay in results/SYSTEM/verify when one fails, and the same command runs what is missing.
rule verified:
    input:
        published="results/{system}/done/fitted",
        configurations=CONFIGURATIONS,
    output:
        "results/{system}/verify/report.html",
    log:
        "logs/{system}/verify.log",
    conda:
        "training/verify.environment.yaml"
    threads: ALL_CORES
    params:
        configurations=Path(workflow.basedir, "profiling/verify"),
        device=SETTINGS.device,
    shell:
        "python -m predictor verify {params.configurations} --system results/{wildcards.system}/published"
        " --device {params.device} --out results/{wildcards.system}/verify --report {output} > {log} 2>&1"
