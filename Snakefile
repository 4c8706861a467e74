"""From measurements to published regressors; every rule runs a command that a person could type."""

from pathlib import Path

from snakemake.utils import min_version

min_version("8.0")

# Folder of measurement tables, one folder per system: snakemake --config measurements=FOLDER
MEASUREMENTS = Path(config.get("measurements", "../shared/measurements"))
# A system whose missing tables another one's regressors stand in for; the same as « donor » in training/systems.
DONORS = {"Vista": "Perlmutter"}
SYSTEMS = ["Perlmutter", "Vista"]


wildcard_constraints:
    system="[A-Za-z0-9-]+",


def tables(wildcards):
    """Return a system's measurement tables."""
    return sorted(map(str, (MEASUREMENTS / wildcards.system).glob("*/*.csv")))


def donor(wildcards):
    """Return the published system that must be there first, if any."""
    names = [DONORS[wildcards.system]] if wildcards.system in DONORS else []
    return [f"regressors/{name}/manifest.json" for name in names]


rule fit_models:
    input:
        expand("regressors/{system}/manifest.json", system=SYSTEMS),


rule fit:
    input:
        tables=tables,
        donor=donor,
        system="training/systems/{system}.yaml",
    output:
        "regressors/{system}/manifest.json",
    log:
        "logs/fit/{system}.log",
    conda:
        "training/environment.yaml"
    threads: 2
    params:
        measurements=lambda wildcards: MEASUREMENTS / wildcards.system,
    shell:
        "PYTHONPATH=.:training python -m fitting fit --system {input.system} --measurements {params.measurements}"
        " --out regressors/{wildcards.system} > {log} 2>&1"
