# One job at a time runs this experiment, and none once it has ended with 0, whatever Slurm starts. Who runs it is in
# claim.1, claim.2 … of its folder: the newest holds until it says when it ended. Only link() makes one, which decides
# on any shared file system who is first, and none is removed, so that nobody takes over from a claim twice.
claim_dir={{experiment_dir}}
claim_job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID:-}}
claim_job=${claim_job:-${SLURM_JOB_ID:-by-hand-$$}}
claim_own=$claim_dir/.claim.$claim_job.$$.$(uname -n)
claim_number=1
claim_waits=
claim_hint=

claim_say() { printf '%s job %s: %s\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$claim_job" "$*"; }

claim_value() { sed -n "s/^$1=//p" "$claim_dir/claim.$claim_number"; } # key

claim_ticks() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d ' ' -f 20; } # process: when it began, since boot

claim_is_here() { # whether the process that made the claim runs on this machine
    [ "$(claim_value host)" = "$(uname -n)" ] || return 1
    claim_began=$(claim_ticks "$(claim_value pid)")
    [ -n "$claim_began" ] && [ "$claim_began" = "$(claim_value ticks)" ]
}

claim_is_live() { # job: whether it runs, or will run again; waits for a controller that is away
    case $1 in
    *[!0-9_]*) # not of Slurm
        claim_hint="; if it is gone, remove $claim_dir/claim.$claim_number"
        if [ "$(claim_value host)" = "$(uname -n)" ]; then claim_is_here; else true; fi
        return
        ;;
    esac
    command -v scontrol >/dev/null || return 0
    until claim_answer=$(scontrol show job --oneliner "$1" 2>&1); do
        case $claim_answer in *"Invalid job id"*) return 1 ;; esac
        sleep 2
    done
    claim_answer=${claim_answer#* JobState=}
    case ${claim_answer%% *} in
    COMPLETED | FAILED | CANCELLED | TIMEOUT | PREEMPTED | NODE_FAIL | OUT_OF_MEMORY | BOOT_FAIL) false ;;
    DEADLINE | LAUNCH_FAILED | RECONFIG_FAIL | EXPIRED | REVOKED) false ;;
    *) true ;;
    esac
}

claim_leave() { # exit status, why: without having touched anything
    rm -f "$claim_own"
    claim_say "$2"
    exit "$1"
}

claim_end() { # say in the claim when it ended
    cp "$claim_dir/claim.$claim_number" "$claim_own" && printf 'end=%s\n' "$(date -u +%FT%TZ)" >>"$claim_own" &&
        mv -f "$claim_own" "$claim_dir/claim.$claim_number"
}

claim_is_lost() { [ -e "$claim_dir/claim.$((claim_number + 1))" ]; } # whether a later start has taken over

printf '%s\n' "job=$claim_job" "host=$(uname -n)" "pid=$$" "ticks=$(claim_ticks $$)" "start=$(date -u +%FT%TZ)" \
    "restart=${SLURM_RESTART_COUNT:-0}" >"$claim_own" || exit 1
# Where the answer of link() is lost, the file tells who made it.
until ln "$claim_own" "$claim_dir/claim.$claim_number" 2>/dev/null ||
    [ "$claim_own" -ef "$claim_dir/claim.$claim_number" ]; do
    if [ ! -e "$claim_dir/claim.$claim_number" ]; then claim_leave 1 "$claim_dir takes no link(): nothing is run"; fi
    claim_holder=$(claim_value job)
    if [ -n "$(claim_value end)" ]; then
        claim_number=$((claim_number + 1))
    elif [ "$claim_holder" = "$claim_job" ]; then # an earlier start: Slurm has ended it, or is about to
        if claim_is_here; then
            if [ -z "$claim_waits" ]; then claim_say "waits for its earlier start, process $(claim_value pid)"; fi
            claim_waits=1
            sleep 1
        else
            claim_number=$((claim_number + 1))
        fi
    elif claim_is_live "$claim_holder"; then
        claim_leave 75 "job $claim_holder on $(claim_value host) has run this since $(claim_value start): nothing is \
done$claim_hint"
    else
        claim_number=$((claim_number + 1))
    fi
done
rm -f "$claim_own"
# Looked at only now: the link just made in its folder is what makes NFS look for it anew.
if [ "$(cat "$claim_dir/exit_code" 2>/dev/null)" = 0 ]; then
    claim_end
    claim_leave 0 "the experiment has ended with 0 already: nothing is done"
fi
