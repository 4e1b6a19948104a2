#!/usr/bin/env bash
# Runs all tests that need a GPU (`make test-gpu` calls it from the top of the repository), and writes tests/gpu.stamp
# when nothing failed: which sources were tested, on what, and what passed. Called again, it goes on: what has passed with these
# binaries on this machine is not run again.
# Usage: tools/test_gpu.sh PROGRAM BUILD
#   NVCC           the compiler that built it; GPU_TARGETS: what for, for the stamp
#   GPU_FIXTURES   folders with more checkpoints and their reference results
#   GPU_REAL       0: without checkpoints of the real layer sizes, which are made with torch in BUILD/real (12 GB)
#   GPU_SANITIZER  0: without compute-sanitizer
#   GPU_JOBS       sanitizers that run beside the tests (a third of the cores, at most 5)
set -uo pipefail

mote=$1 build=$2
logs=$build/gpu
mkdir -p "$logs"
passed=0 failed=0 skipped=0 results=
before=$logs/passed-$(cat "$mote" "$build"/test_* "$build"/gpu_* "$0" 2>/dev/null | sha256sum | cut -c 1-16)
touch "$before"

note() {
    echo "$1"
    results+="$1"$'\n'
}

# Adds the counts at a line's end.
count() {
    local counts p f s _
    counts=$(grep -oE '[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' <<<"$1")
    [ -n "$counts" ] || return 0
    read -r p _ f _ s _ <<<"$counts"
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
}

log_of() {
    echo "$logs/${1//[ \/]/-}.log"
}

counts_in() {
    grep -oE '[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$1" | tail -n 1
}

# run NAME COMMAND...: passed when it returns 0, and then told in $before.
run() {
    local name=$1 log code=0 began=$SECONDS counts
    log=$(log_of "$name")
    shift
    "$@" >"$log" 2>&1 || code=$?
    counts=$(counts_in "$log")
    [ $code -ne 0 ] || echo "$name: passed${counts:+: $counts}" >>"$before"
    echo "$name: in $((SECONDS - began)) s"
}

# had NAME: has it passed? Then that counts, and so do the tests that it ran.
had() {
    local line
    line=$(awk -v name="$1: passed" 'index($0, name) == 1 { print; exit }' "$before")
    [ -n "$line" ] || return
    passed=$((passed + 1))
    count "$line"
    note "$line"
}

# What became of one that has run.
result() {
    local log counts
    log=$(log_of "$1")
    case $1 in *selftest | test_engine* | gpu_accuracy) grep -E ' off | differ |^full after' "$log" ;; esac
    had "$1" && return
    failed=$((failed + 1))
    tail -n 40 "$log"
    counts=$(counts_in "$log")
    count "$counts"
    note "$1: failed${counts:+: $counts}"
}

check() {
    had "$1" && return
    run "$@"
    result "$1"
}

# The same beside others, as soon as fewer than `most` run; ended: what became of them.
most=${GPU_JOBS:-$(($(nproc) > 15 ? 5 : $(nproc) / 3))}
: >"$logs/beside"
beside() {
    echo "$1" >>"$logs/beside"
    had "$1" >/dev/null && return                           # told by `ended`
    while [ "$(jobs -rp | wc -l)" -ge $((most > 0 ? most : 1)) ]; do sleep 0.2; done
    run "$@" &
}

ended() {
    local name
    wait
    while read -r name; do result "$name"; done <"$logs/beside"
}

trap 'trap - INT TERM; kill 0' INT TERM                     # those beside as well

skip() {
    skipped=$((skipped + 1))
    note "$1: skipped: $2"
}

# For each tool of compute-sanitizer. racecheck looks at shared memory, initcheck at device memory.
sanitize() {
    local tool=$1
    shift
    timeout 900 compute-sanitizer --tool "$tool" --error-exitcode 9 --print-limit 20 "$@"
}

# Checkpoints of the real layer sizes take a minute of other processors than the tests do.
without_real=
if [ "${GPU_REAL:-1}" = 0 ]; then
    without_real="GPU_REAL=0"
elif ! python3 -c 'import torch, transformers, safetensors' 2>/dev/null; then
    without_real="no python3 with torch, transformers and safetensors"
elif ! grep -q '^making real layer sizes: passed' "$before"; then
    python3 tools/make_fixtures.py "$build/real" --real-sizes >"$logs/real.log" 2>&1 &
    making=$!
fi

made() {
    local code=0
    wait "$making" || code=$?
    cat "$logs/real.log"
    return $code
}

check "kernels" tools/check_kernels.sh "$NVCC" "$build/kernels.txt"

# The kernels that production runs, of real layer sizes. Those that make the weights are not looked at: billions of them.
making_weights=kernel_substring=gpu_fill,kernel_substring=gpu_pack_kernel,kernel_substring=gpu_quantise
production() {
    local tool=$1
    shift
    beside "$tool $*" sanitize "$tool" --kernel-name-exclude $making_weights "$build/gpu_production" "$@"
}

# Beside the tests, the longest first.
sanitizers() {
    # racecheck without experts_up: held to that kernel alone (--kernel-name) it ends with "Internal Sanitizer Error: failed to
    # handle a hardware exception", where memcheck and synccheck find nothing. initcheck of decode takes more than a minute.
    local sessions tool model kernel
    for sessions in 17 3; do
        beside "racecheck --sessions $sessions small:fp8:4" sanitize racecheck \
            --kernel-name-exclude $making_weights,kernel_substring=experts_up "$build/gpu_production" --sessions $sessions small:fp8:4
    done
    beside "racecheck --rows small:fp8:4" sanitize racecheck --kernel-name-exclude $making_weights,kernel_substring=experts_up \
        "$build/gpu_production" --rows small:fp8:4
    beside "initcheck --prompt 66 small:fp8:1" sanitize initcheck --kernel-name-exclude $making_weights \
        "$build/gpu_production" --prompt 66 small:fp8:1
    beside "racecheck gemm_kernel" sanitize racecheck --kernel-name kernel_substring=gemm_kernel \
        "$build/gpu_production" --prompt 66 small:fp8:1
    for tool in memcheck synccheck; do
        for model in small:bf16 small:fp8; do production $tool $model; done
    done
    production memcheck small:nvfp4
    for kernel in attend_prefill delta_ moe_prefill prefill_; do
        beside "racecheck $kernel" sanitize racecheck --kernel-name kernel_substring=$kernel \
            "$build/gpu_production" --prompt 70 small:fp8
    done
    for tool in racecheck memcheck initcheck; do
        beside "$tool mote run" sanitize $tool "$mote" run -m models/demo --device cuda -n 8 --greedy --mtp 0 -p hi
        beside "$tool mote run with drafts" sanitize $tool "$mote" run -m models/demo --device cuda -n 12 --greedy --mtp 3 -p hi
        beside "$tool mote run with seven drafts" sanitize $tool "$mote" run -m models/demo --device cuda -n 16 --greedy --mtp 7 -p hi
        beside "$tool test_engine" sanitize $tool "$build/test_engine" --device cuda --brief "" tests/fixtures/fp8-ragged
    done
    wait
}

if [ "${GPU_SANITIZER:-1}" = 0 ]; then
    for tool in memcheck racecheck initcheck synccheck; do skip "$tool" "GPU_SANITIZER=0"; done
elif ! command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck initcheck synccheck; do skip "$tool" "no compute-sanitizer"; done
else
    sanitizers &
fi

# The tests of the API, on the GPU.
check "mote selftest" "$mote" selftest
check "test_engine" "$build/test_engine" --device cuda
more=$(for dir in ${GPU_FIXTURES:-}; do ls -d "$dir"/*/; done)
[ -z "$more" ] || check "test_engine more checkpoints" "$build/test_engine" --device cuda "" $more
for test in test_speculation test_misuse test_runner test_batch test_api test_embedding; do check $test "$build/$test" --device cuda; done
check "gpu_batch" "$build/gpu_batch"
check "gpu_batch_moe" "$build/gpu_batch_moe"
check "gpu_prefill" "$build/gpu_prefill" small:fp8 small:bf16
check "gpu_prefill other formats" "$build/gpu_prefill" --brief small:nvfp4 small:int4 small:fp8-channel

if [ -n "$without_real" ]; then
    skip "real layer sizes" "$without_real"
else
    check "making real layer sizes" made
    grep '^{' "$logs/making-real-layer-sizes.log"
    check "test_engine real layer sizes" "$build/test_engine" --device cuda "" "$build"/real/*/
    check "making oracles" python3 tools/make_oracle.py "$build"/real/*/
    check "gpu_accuracy" "$build/gpu_accuracy" "$build"/real/*/
fi
ended

echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] || exit 1
{
    echo "sha256 $(tools/source_hash.sh)"
    echo "targets $GPU_TARGETS"
    echo "device $(sed -n 's/^test_engine: device //p' "$logs/test_engine.log")"
    echo "date $(date -u +%Y-%m-%d)"
    echo "$passed passed, $failed failed, $skipped skipped"
    printf %s "$results"
} >tests/gpu.stamp
cat tests/gpu.stamp
