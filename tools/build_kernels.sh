#!/bin/sh
# Runs the CUDA compiler: what ptxas tells of each kernel goes into a file, what else it says is shown. One line tells that it takes
# minutes and, on a terminal, how far it is. Its steps are of very different length: by far the longest are cicc's and ptxas', one of each for every GPU.
# Usage: tools/build_kernels.sh REPORT GPUS NVCC ARGUMENTS...
set -u

report=$1 gpus=$2
shift 2
what="kernels for $gpus, which takes minutes"

# Commands that it runs, in a report of --verbose or --dryrun.
steps() {
    grep '^#\$ ' "$1" | grep -vE '^#\$ ([A-Za-z_]+=|rm )'
}

# Until the shell that has started this has ended: what is under way, for how long.
watch_steps() {
    began=$(date +%s)
    while sleep 1 && kill -0 $$ 2>/dev/null; do
        took=$(($(date +%s) - began))
        printf '\r\033[K%s: %d:%02d, step %d of %d: %s' "$what" $((took / 60)) $((took % 60)) "$(steps "$report" | wc -l)" "$all" \
            "$(steps "$report" | tail -n 1 | sed 's/^#\$ "*\([^ "]*\).*/\1/; s/.*\///')" >&2
    done
}

watching=
if [ ! -t 2 ]; then
    echo "$what"
else
    printf %s "$what" >&2
    "$@" --dryrun >"$report" 2>&1
    all=$(steps "$report" | wc -l)
    : >"$report"
    watch_steps &
    watching=$!
fi
"$@" --verbose >"$report" 2>&1
code=$?
if [ -n "$watching" ]; then
    kill "$watching"
    echo >&2
fi
grep -vE '^#\$ |^ptxas info|^ +[0-9]+ bytes stack frame' "$report" >&2
exit $code
