"""Completion scripts: what shells offer is what the command line takes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from predictor.__main__ import COMMANDS, PROGRAM, main, parser_with_commands
from predictor.commands.completion import COMPLETED, SHELLS
from predictor.core.base.bundled import examples, systems
from predictor.core.schema.presets import preset_names

BASH, FISH, ZSH = (shutil.which(shell) for shell in ("bash", "fish", "zsh"))
ASK = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 ))
_estimate_train_time
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("completion")
    (folder / "run.yml").write_text("", encoding="utf-8")
    written = {}
    for shell in SHELLS:
        with pytest.MonkeyPatch.context() as patch:
            printed: list[str] = []
            patch.setattr("predictor.__main__._write", lambda text, stream, into=printed: into.append(text))
            assert main(["completion", shell]) == 0
        written[shell] = folder / f"script.{shell}"
        written[shell].write_text(printed[0] + "\n", encoding="utf-8")
    return written


def offered(script: Path, *words: str) -> set[str]:
    """Return what bash offers for the last of some words."""
    command = [str(BASH), "--norc", "-c", ASK, "bash", str(script), PROGRAM, *words]
    done = subprocess.run(command, cwd=script.parent, capture_output=True, text=True, check=True)
    assert not done.stderr
    return set(done.stdout.split())


def test_the_script_is_for_the_installed_program() -> None:
    assert COMPLETED == PROGRAM


@pytest.mark.skipif(BASH is None, reason="no bash")
def test_bash_takes_the_script(scripts: dict[str, Path]) -> None:
    command = [str(BASH), "--norc", "-c", 'source "$1" && complete -p "$2"', "bash", str(scripts["bash"]), PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["complete", "-F", "_estimate_train_time", PROGRAM]
    assert not done.stderr


@pytest.mark.skipif(BASH is None, reason="no bash")
def test_bash_knows_the_command_behind_options_of_every_command(scripts: dict[str, Path]) -> None:
    assert "search" in offered(scripts["bash"], "--no-color", "sea")
    assert offered(scripts["bash"], "--debug", "--no-color", "search", "--write-j") == {"--write-job"}
    assert {"fp16", "bf16", "fp32"} <= offered(scripts["bash"], "predict", "--precision", "")


@pytest.mark.skipif(BASH is None, reason="no bash")
def test_bash_offers_every_command_and_every_option(scripts: dict[str, Path]) -> None:
    parser = parser_with_commands(COMMANDS)
    assert offered(scripts["bash"], "") >= set(COMMANDS)
    assert offered(scripts["bash"], "com") == {"compare", "completion"}
    choices = next(action.choices for action in parser._actions if action.dest == "command")
    assert isinstance(choices, dict)
    assert list(choices) == list(COMMANDS)
    for name, command in choices.items():
        expected = {flag for action in command._actions for flag in action.option_strings}
        assert offered(scripts["bash"], name, "-") == expected, name


@pytest.mark.skipif(BASH is None, reason="no bash")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("predict", "--system", ""), {*systems(), "run.yml", "script.bash", "script.fish", "script.zsh"}),
        (("predict", "--system", "H"), {"H100", "H100_HBM2e", "H100_PCIe", "H20", "H200", "H800"}),
        (("predict", "--system", "=", "H1"), {"H100", "H100_HBM2e", "H100_PCIe"}),
        (("search", "--model", "llama3.1-"), {"llama3.1-8b", "llama3.1-70b", "llama3.1-405b"}),
        (("predict", "-e", ""), set(examples())),
        (("show-example", "l"), set(examples())),
        (("search", "--schedule", "zero_bubble_h"), {"zero_bubble_h1"}),
        (("search", "--framework", ""), {"megatron", "torchtitan", "deepspeed"}),
        (("predict", "--framework", "torch"), {"torchtitan"}),
        (("verify", "--device", ""), {"auto", "cpu", "cuda"}),
        (("predict", "run"), {"run.yml"}),
        (("predict", "--gpus", ""), set()),
        (("completion", ""), {*SHELLS, "-h", "--help", "--debug", "--no-color"}),
        (("run.yml", "--requ"), {"--require-fit"}),
    ],
)
def test_bash_offers_what_fits(words: tuple[str, ...], expected: set[str], scripts: dict[str, Path]) -> None:
    assert offered(scripts["bash"], *words) == expected


@pytest.mark.skipif(FISH is None, reason="no fish")
def test_fish_offers_the_same(scripts: dict[str, Path]) -> None:
    def complete(line: str) -> set[str]:
        command = [str(FISH), "--no-config", "-c", f"source {scripts['fish']}; complete -C '{PROGRAM} {line}'"]
        done = subprocess.run(command, cwd=scripts["fish"].parent, capture_output=True, text=True, check=True)
        assert not done.stderr
        return {offer.split("\t")[0] for offer in done.stdout.splitlines()}

    assert complete("com") == {"compare", "completion"}
    assert complete("predict --system H") == {"H100", "H200"}
    assert complete("completion ") == set(SHELLS)
    assert complete("predict --require") == {"--require-fit"}


@pytest.mark.skipif(ZSH is None, reason="no zsh")
def test_zsh_takes_the_script(scripts: dict[str, Path]) -> None:
    code = f"autoload -Uz compinit; compinit -D -u; source {scripts['zsh']}; print $_comps[{PROGRAM}]"
    done = subprocess.run([str(ZSH), "-f", "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == ("_estimate_train_time", "")


def test_every_shell_knows_systems_and_presets(scripts: dict[str, Path]) -> None:
    for path in scripts.values():
        text = path.read_text(encoding="utf-8")
        assert all(name in text for name in (*systems(), *preset_names()))
