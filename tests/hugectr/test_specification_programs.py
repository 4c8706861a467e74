"""The specification's three sample programs and its notebooks' programs run as written, with small sizes."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hugectr.data.generator import Amount, generate
from hugectr.data.readers import make_reader
from predictor.recommender.hugectr.reading import read_hugectr
from tests.hugectr.small_dcn import dcn
from tests.hugectr.specification import ROOT, SPECIFICATION, notebook, sample, smaller

pytestmark = pytest.mark.skipif(not SPECIFICATION.is_file(), reason="the specification is not at hand")

SLOTS, DENSE, BATCH = 26, 13, 64
LINE = re.compile(r"iter: (\d+).*?AUC', ([\d.]+)")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the reader's folder, where programs and data generators run."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(folder: Path, program: str) -> str:
    """Run a program as a reader would, in a folder, and return what it printed."""
    (folder / "program.py").write_text(program, encoding="utf-8")
    paths = os.pathsep.join(str(ROOT / part) for part in (".", "training", "slurm"))
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def run_here(program: str, *arguments: str) -> str:
    """Run a program of one rank in this process, which has imported torch already."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
        patch.setattr(sys, "argv", ["program.py", *arguments])
        exec(compile(program, "program.py", "exec", dont_inherit=True), {"__name__": "__main__"})
    return printed.getvalue()


def write_data(config: dict[str, Any], name: str, lists: int = 0) -> None:
    """Write a configuration and the data that it reads; with lists, ``file_list.<i>.txt`` and keysets."""
    Path(name).write_text(json.dumps(config))
    folder = Path(config["layers"][0]["source"]).parent
    amount = Amount(files=lists or 2, samples=6 * BATCH, eval_files=1, lists=lists)
    generate(read_hugectr(Path(name)), folder, vocabulary=400, amount=amount)


def small_dcn(update_type: str, **data: Any) -> dict[str, Any]:
    adam = {"type": "Adam", "update_type": update_type, "adam_hparam": {"learning_rate": 0.01}}
    return dcn(hidden=16, cross_layers=2, width=4, vocabulary=1000, data=data, optimizer=adam, dropout=0.0)


def losses(printed: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"loss: ([\d.]+)", printed)]


def test_non_epoch_mode_training(tmp_path: Path) -> None:
    write_data(small_dcn("Global", source="d/list.txt", eval_source="d/list_eval.txt"), "your_config.json")
    program = smaller(sample("Non-epoch Mode Training"), {
        r"16384": str(BATCH), r"\[\[0,1,2,3,4,5,6,7\]\]": "[[0,1]]", r"range\(10000\)": "range(41)", r"i%100 ": "i%10 ",
        r"i%1000 ": "i%20 ",
    })  # fmt: skip
    printed = run(tmp_path, program)
    assert len(losses(printed)) == 5
    assert min(losses(printed)) < 0.95 * losses(printed)[0]
    assert [int(iteration) for iteration, _ in LINE.findall(printed)] == [20, 40]
    assert (tmp_path / "_dense_10000.model").is_file()
    assert (tmp_path / "0_sparse_10000.model").is_file()


def test_epoch_mode_training(tmp_path: Path) -> None:
    config = small_dcn("Global", source="file_list.0.txt", eval_source="file_list.5.txt")
    write_data(config, "your_config.json", lists=5)
    (tmp_path / "your_temp_embedding_dir").mkdir()
    program = smaller(sample("Epoch Mode Training"), {r"16384": str(BATCH), r"iteration % 100": "iteration % 10"})
    printed = run_here(program)
    assert re.findall(r"trained with data in (\S+)", printed) == [f"file_list.{number}.txt" for number in range(5)]
    assert [int(iteration) for iteration, _ in LINE.findall(printed)] == [0, 10, 20]
    assert (tmp_path / "_dense_30.model").is_file(), "five files of six batches"


def inference_inputs(name: str, samples: int) -> tuple[list[int], str]:
    """Write a request of evaluation samples, four lines, and return the labels and the file's name."""
    config = read_hugectr(Path(name))
    reader = make_reader(
        config.data, source=config.data.eval_source, batch_size=samples, rank=0, num_ranks=1,
        i64_input_key=False, repeat=False, num_samples=None,
    )  # fmt: skip
    reader.start()
    batch = reader.next()
    reader.close()
    assert batch is not None
    keys, lengths = batch.sparse["data1"]
    assert int(lengths.max()) == int(lengths.min()) == 1
    labels = [int(label) for label in batch.label.flatten()]
    columns = keys.view(SLOTS, samples).t().flatten().tolist()
    lines = [labels, batch.dense.flatten().tolist(), columns, range(samples * SLOTS + 1)]
    Path("inputs.txt").write_text("\n".join(" ".join(map(str, line)) for line in lines) + "\n")
    return labels, "inputs.txt"


def test_notebook_of_inference_and_the_inference_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train, infer as the notebook does, then as the sample does, which defines its switch by another name."""
    training = tmp_path / "notebooks"
    (tmp_path / "tools").mkdir()
    training.mkdir()
    monkeypatch.chdir(training)
    sizes = {r"1447751": "1000", r'"num_output": 1024': '"num_output": 16', r"0\.001": "0.01"}
    config = json.loads(smaller(notebook("hugectr_inference", 1), sizes))
    write_data(config, "dcn_train.json")
    program = smaller(notebook("hugectr_inference", 2), {
        r"range\(10000\)": "range(100)", r"2048": str(BATCH), r"i%1000 ": "i%50 ",
        r'to_files\("./", i\+1\)': 'to_files("../tools/", 10000)',
    })  # fmt: skip
    printed = run_here(program, "dcn_train.json")
    assert [int(iteration) for iteration, _ in LINE.findall(printed)] == [50]
    inference = smaller(
        notebook("hugectr_inference", 4), {r"1447751": "1000", r'"num_output": 1024': '"num_output": 16'}
    )
    (training / "dcn_inference.json").write_text(inference)
    labels, inputs = inference_inputs("dcn_train.json", 4 * BATCH)
    program = notebook("hugectr_inference", 6)
    printed = run_here(program, "dcn_inference.json", "DCN", inputs)
    number, accuracy = re.findall(r"number samples: (\d+), accuracy: ([\d.]+)", printed)[0]
    assert int(number) == len(labels)
    assert float(accuracy) > max(np.mean(labels), 1 - np.mean(labels)) - 0.05, "no worse than always the same answer"
    program = sample("Inference")
    assert "use_gpu_embedding_cache =" not in program, "the sample sets use_embedding_cache in its place"
    program = smaller(program, {
        r"(?m)^use_embedding_cache = True$": "use_gpu_embedding_cache = True",
        r"your_inference_config.json": "dcn_inference.json", r"your_inference_inputs_data.txt": inputs,
    })  # fmt: skip
    printed = run_here(program + "\nprint(output)\n")
    predictions = json.loads(printed)
    assert len(predictions) == len(labels)
    hits = [(prediction > 0.5) == bool(label) for prediction, label in zip(predictions, labels, strict=True)]
    assert np.mean(hits) == pytest.approx(float(accuracy))


def test_notebook_of_training_from_scratch_and_from_stored_models(tmp_path: Path) -> None:
    sizes = {r"5863985": "1000", r'"num_output": 1024': '"num_output": 16'}
    config = json.loads(smaller(notebook("python_interface", 1), sizes))
    write_data(config, "wdl_1gpu.json", lists=8)
    (tmp_path / "temp_embedding").mkdir()
    few = {r"16384": str(BATCH), r"iteration % 100": "iteration % 20"}
    printed = run_here(smaller(notebook("python_interface", 2), few), "wdl_1gpu.json")
    first = [float(auc) for _, auc in LINE.findall(printed)]
    assert len(first) == 3, "iterations 0, 20 and 40 of 8 lists of 6 batches"
    stored = smaller(notebook("python_interface", 4), {**few, r"2016": "48"})
    printed = run_here(stored, "wdl_1gpu.json")
    second = [float(auc) for _, auc in LINE.findall(printed)]
    assert second[0] > first[0], "goes on from what was stored"
    assert (tmp_path / "_dense_1308.model").is_file()
