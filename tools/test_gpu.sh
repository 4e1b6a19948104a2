#!/usr/bin/env bash
# Runs all tests that need a GPU (`make test-gpu` calls it from the top of the repository), and writes tests/gpu.stamp
# when nothing failed: which sources were tested, on what, and what passed. Called again, it goes on: what has passed with these
# binaries on this machine is not run again.
# Usage: tools/test_gpu.sh PROGRAM BUILD
#   NVCC           the compiler that built it; GPU_TARGETS: what for, for the stamp
#   GPU_FIXTURES   folders with more checkpoints and their reference results
#   GPU_REAL       0: without checkpoints of the real layer sizes, which are made with torch in BUILD/real (12 GB)
#   GPU_SANITIZER  0: without compute-sanitizer
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

# had NAME: has it passed before? Then that counts.
had() {
    local line
    line=$(awk -v name="$1: passed" 'index($0, name) == 1 { print; exit }' "$before")
    [ -n "$line" ] || return
    passed=$((passed + 1))
    count "$line"
    note "$line"
}

# check NAME COMMAND...: passed when it returns 0. The counts of the tests that it ran are added.
check() {
    local name=$1 log="$logs/${1//[ \/]/-}.log" result=passed counts
    shift
    had "$name" && return
    local began=$SECONDS
    "$@" >"$log" 2>&1 || result=failed
    counts=$(grep -oE '[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$log" | tail -n 1)
    count "$counts"
    if [ $result = passed ]; then
        passed=$((passed + 1))
        echo "$name: passed${counts:+: $counts}" >>"$before"
    else
        failed=$((failed + 1))
        tail -n 40 "$log"
    fi
    echo "$name: in $((SECONDS - began)) s"
    note "$name: $result${counts:+: $counts}"
}

skip() {
    skipped=$((skipped + 1))
    note "$1: skipped: $2"
}

# check's part for each tool of compute-sanitizer. racecheck looks at shared memory, initcheck at device memory.
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
    trap 'kill $making 2>/dev/null' EXIT
fi

made() {
    local code=0
    wait "$making" || code=$?
    trap - EXIT                                             # its number may be another process's now
    cat "$logs/real.log"
    return $code
}

check "kernels" tools/check_kernels.sh "$NVCC" "$build/kernels.txt"
check "mote selftest" "$mote" selftest
grep -E 'off the|^full after' "$logs/mote-selftest.log"

# The tests of the API, on the GPU. What they say of how far results are off is shown.
engine() {
    local name=$1
    shift
    check "$name" "$build/test_engine" --device cuda "$@"
    grep -E ' off | differ |^full after' "$logs/${name// /-}.log"
}

engine "test_engine"
more=$(for dir in ${GPU_FIXTURES:-}; do ls -d "$dir"/*/; done)
[ -z "$more" ] || engine "test_engine more checkpoints" "" $more
check "test_speculation" "$build/test_speculation" --device cuda
check "test_misuse" "$build/test_misuse" --device cuda
check "test_runner" "$build/test_runner" --device cuda
check "test_batch" "$build/test_batch" --device cuda
check "test_api" "$build/test_api" --device cuda
check "gpu_batch" "$build/gpu_batch"
check "gpu_batch_moe" "$build/gpu_batch_moe"
check "gpu_prefill" "$build/gpu_prefill" small:fp8 small:bf16
check "gpu_prefill other formats" "$build/gpu_prefill" --brief small:nvfp4 small:int4 small:fp8-channel

# The kernels that production runs, of real layer sizes. Those that make the weights are not looked at: billions of them.
making_weights=kernel_substring=gpu_fill,kernel_substring=gpu_pack_kernel,kernel_substring=gpu_quantise
production() {
    local tool=$1
    shift
    check "$tool $*" sanitize "$tool" --kernel-name-exclude $making_weights "$build/gpu_production" "$@"
}

# The slow ones run beside the others: slow NAME TOOL COMMAND..., and at the end slow_ones.
slow=() slow_processes=()
slow() {
    local name=$1
    shift
    had "$name" && return
    slow+=("$name")
    (sanitize "$@"; echo $? >"$logs/slow ${#slow[@]}.code") >"$logs/slow ${#slow[@]}.log" 2>&1 &
    slow_processes+=($!)
}

slow_ended() {
    cat "$logs/slow $1.log"
    return "$(cat "$logs/slow $1.code")"
}

slow_ones() {
    wait "${slow_processes[@]}"
    for i in "${!slow[@]}"; do check "${slow[$i]}" slow_ended $((i + 1)); done
}

if [ "${GPU_SANITIZER:-1}" = 0 ]; then
    for tool in memcheck racecheck initcheck synccheck; do skip "$tool" "GPU_SANITIZER=0"; done
elif ! command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck initcheck synccheck; do skip "$tool" "no compute-sanitizer"; done
else
    # racecheck without experts_up: held to that kernel alone (--kernel-name) it ends with "Internal Sanitizer Error: failed to
    # handle a hardware exception", where memcheck and synccheck find nothing. initcheck of decode takes more than a minute.
    slow "racecheck --rows small:fp8:4" racecheck --kernel-name-exclude $making_weights,kernel_substring=experts_up \
        "$build/gpu_production" --rows small:fp8:4
    for sessions in 3 17; do
        slow "racecheck --sessions $sessions small:fp8:4" racecheck --kernel-name-exclude $making_weights,kernel_substring=experts_up \
            "$build/gpu_production" --sessions $sessions small:fp8:4
    done
    slow "initcheck --prompt 66 small:fp8:1" initcheck --kernel-name-exclude $making_weights \
        "$build/gpu_production" --prompt 66 small:fp8:1
    slow "racecheck gemm_kernel" racecheck --kernel-name kernel_substring=gemm_kernel "$build/gpu_production" --prompt 66 small:fp8:1
    for kernel in attend_prefill delta_ moe_prefill prefill_; do
        check "racecheck $kernel" sanitize racecheck --kernel-name kernel_substring=$kernel \
            "$build/gpu_production" --prompt 70 small:fp8
    done
    for tool in memcheck synccheck; do
        for model in small:fp8 small:bf16; do production $tool $model; done
    done
    production memcheck small:nvfp4
    for tool in memcheck racecheck initcheck; do
        check "$tool mote run" sanitize $tool "$mote" run -m models/demo --device cuda -n 8 --greedy --mtp 0 -p hi
        check "$tool mote run with drafts" sanitize $tool "$mote" run -m models/demo --device cuda -n 12 --greedy --mtp 3 -p hi
        check "$tool mote run with seven drafts" sanitize $tool "$mote" run -m models/demo --device cuda -n 16 --greedy --mtp 7 -p hi
        check "$tool test_engine" sanitize $tool "$build/test_engine" --device cuda --brief "" tests/fixtures/fp8-ragged
    done
    slow_ones
fi

if [ -n "$without_real" ]; then
    skip "real layer sizes" "$without_real"
else
    check "making real layer sizes" made
    grep '^{' "$logs/making-real-layer-sizes.log"
    engine "test_engine real layer sizes" "" "$build"/real/*/
    check "making oracles" python3 tools/make_oracle.py "$build"/real/*/
    check "gpu_accuracy" "$build/gpu_accuracy" "$build"/real/*/
    grep ' off ' "$logs/gpu_accuracy.log"
fi

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
