"""Each extra does alone what README says of it, with the lowest releases that its bounds allow and with the newest.

``make check-extras`` runs this; the first time it installs some twenty environments, in minutes. The newest releases of
most extras are in the environments of the other tests too: alone they are left to ``make test-thorough``.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import THOROUGH
from tests.installation.environments import NO_EXTRA, PROJECT, ROOT, environment, project_wheel, requirements

EXTRAS_TESTS = "EXTRAS_TESTS"
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
# Extras of the environments that make check makes, each with the newest releases.
TESTED = {
    extra
    for name in ("TEST", "WORKFLOW")
    for extra in re.findall(rf"^\$\({name}_READY\): EXTRAS := \[(.*)\]$", MAKEFILE, re.MULTILINE)[0].split(",")
}
COMMAND_S = 1200  # ends what hangs; a machine that does much else takes minutes to load torch
TABLES = """
import yaml; from pathlib import Path; from tests.unit.fitting_tables import SYSTEM, write_cluster
write_cluster(Path("tables")); Path("system.yaml").write_text(yaml.safe_dump(SYSTEM))
"""
HUB = """
from datasets import load_dataset; from pathlib import Path
Path("texts").mkdir(); Path("texts/train.jsonl").write_text('{"text": "a line"}\\n')
assert load_dataset("texts", None, split="train")[0]["text"] == "a line"
"""
REFERENCES = """
from predictor.formats.interpolation import filled
assert filled({"a": 2, "b": "${multiply:2,${a}}"}, "a.yaml")["b"] == 4
"""
LLAMA = """
import torch; from transformers import LlamaConfig, LlamaForCausalLM
sizes = dict(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
assert LlamaForCausalLM(LlamaConfig(**sizes))(torch.arange(4)[None]).logits.shape == (1, 4, 32)
"""
# A page may link to other machines and load nothing from them.
SITE = r"""
import re; from pathlib import Path
pages = [path.read_text() for path in Path("site").rglob("*.html")]
away = re.compile(r"<(?:script|img|link|iframe|source)\b[^>]*(?:src|href)=.?https?:[^>]*>")
loaded = [tag for page in pages for tag in away.findall(page)]
assert len(pages) > 60 and not loaded, loaded
assert "Where the step goes" in Path("site/search/search_index.json").read_text()
"""
WHEEL = f"""
import os, hatchling.build; there = os.getcwd(); os.chdir({str(ROOT)!r}); hatchling.build.build_wheel(there)
"""
SMALL_TRAINER = """\
model: {d_model: 16, n_heads: 2, n_layers: 1, d_ff: 32, max_seq_len: 16}
training: {batch_size: 4, max_steps: 3, warmup_steps: 1, learning_rate: 1e-3, report_to: [tensorboard]}
data: {dataset_name: texts, dataset_config: null, max_length: 16, vocab_size: 300, dataloader_num_workers: 0}
"""
DCN = (ROOT / "docs" / "hugectr.md").read_text(encoding="utf-8").partition("```json\n")[2].partition("```")[0]
# Command lines of README and the documents, with shapes and data that take seconds.
COMMANDS = {
    NO_EXTRA: ["python -m predictor predict --model llama3-8b --system H100 --gpus 64 --global-batch-size 256"],
    "fit": [
        f"python -c {shlex.quote(TABLES)}",
        "python -m fitting fit --system system.yaml --measurements tables --out published",
        "python -m fitting evaluate published tables",
    ],
    "workflow": [
        f"snakemake -s {ROOT}/Snakefile profile_all --cores all --dry-run",
        f"snakemake -s {ROOT}/Snakefile --profile {ROOT}/slurm profile_all --dry-run",
    ],
    "launch": [f"python {ROOT}/slurm/examples/basic_training.py run"],
    "profile": [
        "python -m microbench operator gelu --sweep smoke --device cpu --out here",
        "python -m microbench collective broadcast --sweep smoke --backend mpi --out here",
    ],
    "train": [
        f"python {ROOT}/training/scripts/stdlib_texts.py texts --max_characters 100000",
        f"python {ROOT}/training/scripts/train.py --config small.yaml --output_dir output",
    ],
    "recommend": [
        "python -m hugectr generate dcn.json data 2000 --files 4 --samples 8192",
        "python -m hugectr train dcn.json",
        "mpiexec -n 2 python -c 'from mpi4py import MPI; assert MPI.COMM_WORLD.size == 2'",
    ],
    "hub": [f"python -c {shlex.quote(HUB)}"],
    "readers": [f"python -c {shlex.quote(REFERENCES)}"],
    "reference": [f"python -c {shlex.quote(LLAMA)}"],
    "trace": ["python -m microbench trace tiny --device cpu --ranks 1 --steps 1 --out traces"],
    "docs": [
        f"python -m mkdocs build --quiet --strict --config-file {ROOT}/mkdocs.yml --site-dir {{folder}}/site",
        f"python -c {shlex.quote(SITE)}",
    ],
    "gpu": ["python -c 'import pynvml'"],
    "test": [
        f"ruff check {ROOT}/predictor/core/base",
        f"snakefmt --check {ROOT}/Snakefile",
        f"mypy --config-file {ROOT}/pyproject.toml {ROOT}/predictor/core/base/errors.py",
        f"python -m pytest -q -p no:cacheprovider {ROOT}/tests/property/test_schedules.py",
        f"python -c {shlex.quote(WHEEL)}",
    ],
}


def do(extra: str, releases: str, wheel: Path, folder: Path) -> None:
    """Install an extra where it is not there yet and run its commands in a folder; fail with what a command said."""
    python = environment(extra, releases, wheel)
    folder.mkdir()
    (folder / "small.yaml").write_text(SMALL_TRAINER)
    (folder / "dcn.json").write_text(DCN)
    path = os.pathsep.join((str(python.parent), os.environ["PATH"]))
    for command in COMMANDS[extra]:
        done = subprocess.run(
            [word.replace("{folder}", str(folder)) for word in shlex.split(command)],
            cwd=folder,
            env=os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"


def cases() -> Iterator[tuple[str, str]]:
    """Yield every extra and its releases that are asked for: the newest where no other environment has them all."""
    tested = {str(need) for extra in TESTED for need in requirements(extra)}
    for extra in COMMANDS:
        yield extra, "lowest"
        if os.environ.get(THOROUGH) or not {str(need) for need in requirements(extra)} <= tested:
            yield extra, "newest"


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, str], Future[None]]]:
    """Begin every extra, two at once; skip unless ``make check-extras`` asked for it."""
    if not os.environ.get(EXTRAS_TESTS):
        pytest.skip(f"installs environments for minutes; make check-extras runs it (it sets {EXTRAS_TESTS}=1)")
    folder = tmp_path_factory.mktemp("extras")
    wheel = project_wheel(folder)
    with ThreadPoolExecutor(2) as pool:
        yield {(e, r): pool.submit(do, e, r, wheel, folder / f"{e}-{r}") for e, r in cases()}
        pool.shutdown(cancel_futures=True)


def test_every_extra_has_its_commands() -> None:
    assert COMMANDS.keys() == {NO_EXTRA, *PROJECT["optional-dependencies"]}


def test_the_environments_of_the_other_tests_are_known() -> None:
    assert {"fit", "train", "test", "workflow"} <= TESTED <= COMMANDS.keys()


@pytest.mark.parametrize(("extra", "releases"), [*cases()])
def test_an_extra_alone_does_what_readme_says(
    extra: str, releases: str, done: dict[tuple[str, str], Future[None]]
) -> None:
    done[extra, releases].result()
