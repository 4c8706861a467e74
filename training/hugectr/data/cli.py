"""``python -m hugectr generate``: write a synthetic data set for a configuration."""

from __future__ import annotations

from pathlib import Path

from hugectr.data.generator import Amount, Generated, generate
from predictor.core.base.command_line import Parser
from predictor.recommender.hugectr.reading import read_hugectr
from predictor.recommender.workload.keys import TAILS


def _parser() -> Parser:
    parser = Parser(prog="python -m hugectr generate", description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("config", metavar="CONFIG", type=Path, help="HugeCTR configuration; its data layer says format and places")
    add("folder", metavar="FOLDER", type=Path, nargs="?", help="of the data files; Raw data need none")
    add("vocabulary", metavar="VOCABULARY", type=int, nargs="?", help="keys of all slots together")
    add("max_nnz", metavar="MAX_NNZ", type=int, nargs="?", default=1, help="most keys of a slot (default: 1)")
    add("--files", type=int, default=128, metavar="N", help="data files (default: 128)")
    add("--samples", type=int, default=40960, metavar="N", help="samples of a file (default: 40960)")
    add("--eval-files", type=int, metavar="N", help="data files for evaluation (default: an eighth of --files)")
    add("--long-tail", choices=sorted(TAILS), help="keys of a power law, exponent 1, 3 or 5 (default: uniform)")
    add("--seed", type=int, default=0, metavar="N", help="of all random numbers (default: 0)")
    add("--i64", action="store_true", default=None, help="64-bit keys, where the configuration has no solver clause")
    add("--lists", type=int, default=0, metavar="N", help="so many file lists with keysets, for oversubscription")
    add("--keysets-per-table", action="store_true", help="a keyset for each sparse input")
    return parser


def main(arguments: list[str]) -> int:
    """Generate, and print what was written."""
    given = _parser().parse_args(arguments)
    amount = Amount(given.files, given.samples, given.eval_files, given.lists, given.keysets_per_table)
    written = generate(
        read_hugectr(given.config),
        given.folder,
        given.vocabulary,
        given.max_nnz,
        amount=amount,
        long_tail=given.long_tail,
        seed=given.seed,
        i64_input_key=given.i64,
    )
    print(_text(written))
    return 0


def _text(written: Generated) -> str:
    lines = [f"{written.num_samples:,} samples for training: {', '.join(map(str, written.sources))}"]
    lines.append(f"{written.num_eval_samples:,} samples for evaluation: {written.eval_source}")
    if written.keysets:
        lines.append(f"keysets: {', '.join(map(str, written.keysets))}")
    lines.append(f"best AUC that a model can reach on the evaluation data, in expectation: {written.best_auc:.4f}")
    return "\n".join(lines)
