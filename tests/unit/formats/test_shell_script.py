"""A shell script is read, never run: variables and arrays are filled in, and what only a run would tell is marked."""

from __future__ import annotations

import pytest

from predictor.formats.shell.script import Script, is_unknown, parse, shown


def command(text: str) -> list[str]:
    """The words of a script's last command."""
    return parse(text).commands[-1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("run --a 1", ["run", "--a", "1"]),
        ("X=3\nrun $X ${X} ${X}y", ["run", "3", "3", "3y"]),
        ("export X=3; run $X", ["run", "3"]),
        ('X="a b"\nrun $X "$X"', ["run", "a", "b", "a", "b"]),
        ("run '$X' \"don't\"", ["run", "\x00X\x00", "don't"]),
        ("X=${NODES:-4}\nrun $X ${Y:-7} ${Z:-$X}", ["run", "4", "7", "4"]),
        ("X=2\nrun ${X:-4}", ["run", "2"]),
        ("X=\nrun ${X:-4} $X end", ["run", "4", "end"]),
        ("A=8\nB=16\nrun $(($A*$B)) $((A + 2 * B)) $((B / 3)) $(( (A+1)%4 ))", ["run", "128", "40", "5", "1"]),
        (
            "ARGS=(--a 1 # one\n  --b 2 \\\n  # --c 3 \\\n  --d\n)\nrun ${ARGS[@]}",
            ["run", "--a", "1", "--b", "2", "--d"],
        ),
        ('ARGS=("--a 1" "--b")\nrun "${ARGS[@]}"', ["run", "--a", "1", "--b"]),
        ("ARGS=(1)\nARGS+=(2 3)\nrun ${ARGS[*]}", ["run", "1", "2", "3"]),
        ("ARGS=(1)\nMORE=(${ARGS[@]} 2)\nrun ${MORE[@]}", ["run", "1", "2"]),
        ("run a \\\n  b \\\n  c", ["run", "a", "b", "c"]),
        ("S=(7B 13B)\nrun ${S[0]} ${S[1]} ${S[2]} ${S[@]}", ["run", "7B", "13B", "7B", "13B"]),
        ("run --a 1 \\\n `# a remark` --b 2", ["run", "--a", "1", "--b", "2"]),
        ("A=1 B=2 run --a 1", ["run", "--a", "1"]),
        ("X=ab\nX+=cd\nY=(a)\nY+=(b c)\nrun $X ${Y[@]}", ["run", "abcd", "a", "b", "c"]),
        ('run --a 1 "$@" ${@:2} $*', ["run", "--a", "1"]),
        ("first | tee log", ["tee", "log"]),
        ("cd x && run a", ["run", "a"]),
        ("run a#b # comment", ["run", "a#b"]),
        ('cmd="run --a 1 \\\n --b 2"\n$cmd', ["run", "--a", "1", "--b", "2"]),
    ],
)
def test_words_are_those_that_a_shell_would_pass(text: str, words: list[str]) -> None:
    assert command(text) == words


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("$1", "1"),
        ("$UNSET", "UNSET"),
        ("$(date +%s)", "(date+%s)"),
        ("`hostname`", "hostname"),
        ("${X%.*}", "{X%.*}"),
        ("$((1/0))", "(1/0)"),
        ("$((UNSET*2))", "(UNSET*2)"),
        ("${1:?say it}", "{1:?sayit}"),
    ],
)
def test_what_only_a_run_would_tell_is_one_marked_word(word: str, text: str) -> None:
    found = command(f"X=a.b\nrun {word} end")
    assert len(found) == 3
    assert is_unknown(found[1])
    assert shown(found[1]) == text


def test_positional_arguments_have_their_defaults() -> None:
    assert command('run ${1:-"path/to"} ${2:-7}') == ["run", "path/to", "7"]


def test_assignments_in_conditions_and_loops_are_kept_apart() -> None:
    text = "A=(1)\nif [ $B = 1 ]; then\n  A+=(2)\n  C=3\nfi\nfor i in 1 2; do D=$i; done\nE=5\nrun ${A[@]} $C $E"
    script = parse(text)
    assert script.values.keys() == {"A", "E"}
    assert script.values["E"] == "5"
    assert script.conditional["A"] == ["2"]
    assert script.conditional["C"] == ["3"]
    assert {"A", "C"} <= script.used
    words = script.commands[-1]
    assert words[0] == "run"
    assert is_unknown(words[1])  # A may be 1, or 1 and 2
    assert is_unknown(words[2])  # C may be 3 or nothing
    assert words[3] == "5"


def test_commands_of_the_script_are_not_run(capfd: pytest.CaptureFixture[str]) -> None:
    parse("echo loud $(echo louder) `echo loudest`")
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("text", ["", "\n", "#", "'", '"', "(", ")", "X=(", "$((", "${", "$(", "\\", "if", "a |& b"])
def test_broken_scripts_are_read_as_far_as_they_go(text: str) -> None:
    assert isinstance(parse(text), Script)


@pytest.mark.parametrize(
    ("condition", "branch"),
    [
        ("[ $X = bf16 ]", "yes"),
        ('[[ "$X" == "fp8" ]]', "no"),
        ("[ $N -gt 1 ]", "yes"),
        ("[[ $N -le 1 ]]", "no"),
        ("[ -z $UNSET ]", "yes"),
        ('[ -n "$X" ]', "yes"),
        ("[ ! -z $X ]", "yes"),
        ("! [ $X = bf16 ]", "no"),
        ("[ $X = bf16 ] && [ $N -eq 4 ]", "yes"),
        ("[ $X = fp8 ] || [ $N -eq 5 ]", "no"),
        ("[[ $X = bf16 && $N != 4 ]]", "no"),
        ("[ $X = bf16 -a $N = 4 ]", "yes"),
        ("[[ $X == bf* ]]", "yes"),
        ("[ $(( ($N > 1) ? 1 : 0 )) -eq 1 ]", "yes"),
    ],
)
def test_branch_that_the_script_settles_is_read(condition: str, branch: str) -> None:
    text = f"X=bf16\nN=4\nif {condition}; then\n  A=(yes)\nelse\n  A=(no)\nfi\nrun ${{A[@]}}"
    assert command(text) == ["run", branch]


@pytest.mark.parametrize("condition", ["$(nvidia-smi) = 1 ]", "[ $UNSET = 1 ]", "grep -q x file", "[ -f $FILE ]"])
def test_branch_that_only_a_run_settles_is_unknown(condition: str) -> None:
    words = command(f"TP=2\nif {condition}; then TP=4; fi\nrun $TP")
    assert is_unknown(words[1])


def test_chains_of_branches_and_cases() -> None:
    chain = "if [ $S = a ]; then X=1\nelif [ $S = b ]; then X=2\nelif [ -n $S ]; then X=3\nelse X=4\nfi\nrun $X"
    assert [command(f"S={size}\n{chain}")[1] for size in "abc"] == ["1", "2", "3"]
    case = "case $S in\n a|b) X=1 ;;\n c) X=2\n Y=5 ;;\n *) X=3 ;;\nesac\nrun $X"
    assert [command(f"S={size}\n{case}")[1] for size in "abcd"] == ["1", "1", "2", "3"]
    nested = "if [ $S = a ]; then if [ $S = b ]; then X=1; else X=2; fi; fi\nrun ${X:-9}"
    assert [command(f"S={size}\n{nested}")[1] for size in "ab"] == ["2", "9"]
    assert command("S=a\n[ $S = a ] && X=1\n[ $S = a ] || X=2\nrun $X") == ["run", "1"]


def test_defaults_of_variables_from_outside_are_guesses() -> None:
    script = parse("TP=${TP:-4}\nPP=${1:-2}\n: ${EP:=8}\n[ -z $CP ] && CP=2\nrun $TP $PP $EP $CP")
    assert script.commands[-1] == ["run", "4", "2", "8", "2"]
    assert script.guesses == {"TP": "4", "$1": "2", "EP": "8", "CP": ""}


def test_documents_are_no_commands() -> None:
    script = parse('N=4\ncat <<EOT > ds.json\n{"size": $N}\nEOT\nrun --a 1')
    assert script.documents == ['{"size": 4}\n']
    assert script.commands[-1] == ["run", "--a", "1"]


def test_variable_of_a_branch_that_does_not_run_is_empty() -> None:
    assert command("X=1\nif [ $X = 2 ]; then A='--a'; fi\nrun $A --b $B") == ["run", "--b", "\x00B\x00"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ON=true\nOFF=false\n$ON && A=1\n$OFF && A=2\nrun $A", ["run", "1"]),
        ("A=1\ncd x || A=2\nsource env && B=3\nrun $A $B", ["run", "1", "3"]),
        ("A=1\n[ 1 = 2 ] && [ 1 = 1 ] && A=2\nrun $A", ["run", "1"]),
        ("A=1\n! [ 1 = 2 ] && A=2\nrun $A", ["run", "2"]),
        ("A=1\n[ 1 = 2 ] && A=2 || A=3\nrun $A", ["run", "3"]),
        ("A=1\n[[ 1 = 1 && 2 = 2 ]] && A=2\nrun $A", ["run", "2"]),
        ("A=1\n[[ 1 = 1 && 2 = 3 ]] && A=2\nrun $A", ["run", "1"]),
        ("N=2\nA=1\n(( N > 1 )) && A=2\n((N>2)) && A=3\nrun $A", ["run", "2"]),
        ("N=2\nif (( N > 1 )); then A=1; else A=2; fi\nrun $A", ["run", "1"]),
        ("OFF=false\nif $OFF; then A=1; else A=2; fi\nrun $A", ["run", "2"]),
        ("N=8\nrun $[$N / 4]", ["run", "2"]),
        ("X=1\nrun a ${X:+set} ${X+set} ${Y:+set} end", ["run", "a", "set", "set", "end"]),
        ("X=1\nrun ${X:?say it}", ["run", "1"]),
    ],
)
def test_commands_joined_by_operators_run_as_in_a_shell(text: str, words: list[str]) -> None:
    assert command(text) == words


@pytest.mark.parametrize("text", ["grep -q x f && TP=4", "$UNSET && TP=4", "! make && TP=4", "ls | grep x && TP=4"])
def test_outcome_of_a_command_that_is_run_for_it_is_unknown(text: str) -> None:
    assert is_unknown(command(f"TP=2\n{text}\nrun $TP")[1])


@pytest.mark.parametrize(
    "loop",
    [
        'while [[ $# -gt 0 ]]; do\n  case $1 in\n    --tp) TP="$2"; shift 2;;\n    *) exit 1;;\n  esac\ndone',
        'for i in "$@"; do case $i in -t=*) TP="${i#*=}" ;; esac; done',
        'while true; do case "$1" in --tp) TP=$2 ;; --) break ;; esac; done',
        'while getopts "t:" opt; do TP=$OPTARG; done',
    ],
)
def test_loop_over_own_arguments_keeps_the_defaults(loop: str) -> None:
    script = parse(f"TP=2\n{loop}\nrun $TP $PP")
    assert script.commands[-1][1] == "2"
    assert is_unknown(script.commands[-1][2])
    assert script.guesses["TP"] == "2"


def test_literal_documents_have_variables_of_their_own() -> None:
    script = parse("TP=1\ncat <<'EOF' > job\nTP=4\nrun $TP\nEOF\ncat <<EOF > job\nTP=4\nrun $TP \\$TP\nEOF\n")
    assert script.documents == ["TP=4\nrun $TP\n", "TP=4\nrun 1 $TP\n"]


@pytest.mark.parametrize(
    ("form", "changed"), [("X,,", "abc"), ("X,", "aBC"), ("Y^^", "ABC"), ("Y^", "Abc"), ("EMPTY^", "")]
)
def test_letters_change_their_case(form: str, changed: str) -> None:
    script = parse(f"X=ABC\nY=abc\nEMPTY=\nZ=${{{form}}}\n")
    assert script.values["Z"] == changed


def test_of_a_loop_over_words_the_first_run_is_read() -> None:
    script = parse("for LR in 1e-4 2e-4; do\n  for TP in 2 4; do\n    run $LR $TP\n  done\ndone\nbehind $TP")
    assert script.commands[0] == ["run", "1e-4", "2"]
    assert is_unknown(script.commands[1][1])  # the last of them, unless the loop is left
    assert script.of_loops("a.sh") == ["a.sh: of a loop the first run is read: LR 1e-4 of 1e-4, 2e-4, TP 2 of 2, 4"]
