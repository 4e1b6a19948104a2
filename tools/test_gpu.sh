#!/usr/bin/env bash
# Runs the tests that need a GPU (`make test-gpu` calls it from the top of the repository), in parts:
#   tests        the API's tests on the GPU, stages and kernels beside the CPU's code
#   sanitizers   compute-sanitizer over the bundled model, a fixture and production's kernels
#   oracles      checkpoints of the real layer sizes beside transformers and a float64 oracle
# A part of which nothing failed writes its stamp, tests/gpu-PART.stamp: which sources were tested, on what, and what passed. Called again, it
# goes on: what has passed with this program and these tests on this machine is not run again.
# Usage: tools/test_gpu.sh PROGRAM BUILD PART...
#   NVCC           the compiler that built it; GPU_TARGETS: what for, for the stamps
#   GPU_FIXTURES   folders with more checkpoints and their reference results
#   GPU_REAL       0: without checkpoints of the real layer sizes, which are made with torch in BUILD/real (12 GB)
#   GPU_SANITIZER  0: without compute-sanitizer
#   GPU_JOBS       sanitizers at a time (a third of the cores, at most 5 for each GPU)
set -uo pipefail

mote=$1 build=$2
shift 2
parts=" $* "
passed=0 failed=0 skipped=0 results=
logs=$build/gpu
mkdir -p "$logs"
before=$logs/passed-$({ cat "$mote" "$0"; find tests -name '*.[ch]' | LC_ALL=C sort | xargs cat; } | sha256sum | cut -c 1-16)
touch "$before"

has() {
    [[ $parts == *" $1 "* ]]
}

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

# In a lane, `told` says later what became of it.
check() {
    if [ -n "$lane" ]; then
        echo "$1" >>"$lane"
        had "$1" >/dev/null || run "$@"
        return
    fi
    had "$1" && return
    run "$@"
    result "$1"
}

# lane FUNCTION: its checks, one after the other, beside what follows. They take a GPU's latency more than its time.
lane=
lane() {
    local lane=$logs/$1.lane
    : >"$lane"
    { "$1" && echo end >>"$lane"; } &
}

told() {
    local name
    while read -r name && [ "$name" != end ]; do result "$name"; done <"$logs/$1.lane"
    [ "${name:-}" = end ] || { failed=$((failed + 1)); note "$1: did not come to its end"; }
}

# The GPUs that are here, for the sanitizers by turns.
IFS=, read -ra gpus <<<"${CUDA_VISIBLE_DEVICES:-$(nvidia-smi --query-gpu=index --format=csv,noheader 2>/dev/null | paste -sd ,)}"
[ ${#gpus[@]} -gt 0 ] || gpus=(0)

# The same beside others, as soon as fewer than `most` run, on the next GPU; ended: what became of them.
most=$(($(nproc) / 3 < 5 * ${#gpus[@]} ? $(nproc) / 3 : 5 * ${#gpus[@]}))
most=${GPU_JOBS:-$((most > 0 ? most : 1))}
turn=0
beside() {
    local gpu=${gpus[turn % ${#gpus[@]}]}
    echo "$1" >>"$logs/beside"
    had "$1" >/dev/null && return                           # told by `ended`
    while [ "$(jobs -rp | wc -l)" -ge "$most" ]; do sleep 0.2; done
    turn=$((turn + 1))
    CUDA_VISIBLE_DEVICES=$gpu run "$@" &
}

ended() {
    local name
    while read -r name; do result "$name"; done <"$logs/beside"
}

trap 'trap - INT TERM; kill 0' INT TERM                     # those beside as well

skip() {
    skipped=$((skipped + 1))
    note "$1: skipped: $2"
}

# ---- Sanitizers -------------------------------------------------------------------------------------------------------

# For each tool of compute-sanitizer. racecheck looks at shared memory, initcheck at device memory.
sanitize() {
    local tool=$1
    shift
    timeout 900 compute-sanitizer --tool "$tool" --error-exitcode 9 --print-limit 20 "$@"
}

# The kernels that production runs, of real layer sizes. Those that make the weights are not looked at: billions of them.
making_weights=kernel_substring=gpu_fill,kernel_substring=gpu_pack_kernel,kernel_substring=gpu_quantise
production() {
    local tool=$1
    shift
    beside "$tool $*" sanitize "$tool" --kernel-name-exclude $making_weights "$build/gpu_production" "$@"
}

# The longest first.
sanitizers() {
    # racecheck without experts_up: held to one kernel of those that poll, as that and experts_place (--kernel-name), it ends with "Internal
    # Sanitizer Error: failed to handle a hardware exception", where memcheck and synccheck, and racecheck of all kernels, find nothing.
    # initcheck of decode takes more than a minute.
    local sessions tool model kernel test
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
    for tool in racecheck memcheck; do                      # Laguna's attention, Gemma 4's
        for model in 5 7 8; do beside "$tool gpu_attention $model" sanitize $tool "$build/gpu_attention" --brief "" $model; done
    done
    for kernel in attend_prefill delta_ moe_prefill prefill_; do
        beside "racecheck $kernel" sanitize racecheck --kernel-name kernel_substring=$kernel \
            "$build/gpu_production" --prompt 70 small:fp8
    done
    beside "racecheck moe_prefill, more rows than a block sorts" sanitize racecheck --kernel-name kernel_substring=moe_prefill \
        "$build/gpu_production" --prompt 140 small:fp8
    beside "racecheck index_" sanitize racecheck --kernel-name kernel_substring=index_ "$build/gpu_attention" --brief "" 100       # INDEXES
    for test in gpu_mamba gpu_product gpu_streams; do
        for tool in racecheck memcheck; do beside "$tool $test" sanitize $tool "$build/$test"; done
    done
    for tool in racecheck memcheck initcheck; do
        beside "$tool mote run" sanitize $tool "$mote" run -m models/demo --device cuda -n 8 --greedy --mtp 0 -p hi
        beside "$tool mote run with drafts" sanitize $tool "$mote" run -m models/demo --device cuda -n 12 --greedy --mtp 3 -p hi
        beside "$tool mote run with seven drafts" sanitize $tool "$mote" run -m models/demo --device cuda -n 16 --greedy --mtp 7 -p hi
        beside "$tool mote run, experts in host memory" sanitize $tool "$mote" run -m models/demo --device cuda --experts host -n 12 --greedy --mtp 3 -p hi
        beside "$tool mote bench, three slots for experts" sanitize $tool "$mote" bench -m models/demo --device cuda --experts host --expert-slots 3 \
            --mtp 0 --depth 0 --rows 1,4 --prompt 5 --tokens 4 --repeat 1
        beside "$tool test_engine" sanitize $tool "$build/test_engine" --device cuda --brief "" tests/fixtures/fp8-ragged
    done
    wait
}

without_sanitizers=
if [ "${GPU_SANITIZER:-1}" = 0 ]; then without_sanitizers="GPU_SANITIZER=0"
elif ! command -v compute-sanitizer >/dev/null; then without_sanitizers="no compute-sanitizer"
fi

# They run beside the other parts from the beginning.
part_sanitizers() {
    local tool
    if [ -n "$without_sanitizers" ]; then
        for tool in memcheck racecheck initcheck synccheck; do skip "$tool" "$without_sanitizers"; done
        return
    fi
    wait "$sanitizing"
    ended
}

# ---- Tests of the API, on the GPU -------------------------------------------------------------------------------------

part_tests() {
    local test lanes=()
    for test in api_tests kernel_tests prefill_tests; do
        lane $test
        lanes+=($!)
    done
    group_tests
    wait "${lanes[@]}"
    for test in api_tests kernel_tests prefill_tests; do told $test; done
}

api_tests() {
    local more dir test
    check "test_engine" "$build/test_engine" --device cuda
    more=$(for dir in ${GPU_FIXTURES:-}; do ls -d "$dir"/*/; done)
    [ -z "$more" ] || check "test_engine more checkpoints" "$build/test_engine" --device cuda "" $more
    for test in test_experts test_speculation test_misuse test_runner test_batch test_sliding test_api test_embedding; do check $test "$build/$test" --device cuda; done
}

group_tests() {
    local test
    check "test_tables" "$build/test_tables" --device cuda "$([ ! -d build/data/family-data ] || echo build/data)"
    check "test_hosts" "$build/test_hosts" --device cuda
    check "test_groups, experts in host memory" "$build/test_groups" --device cuda "" tests/fixtures/fp8-ragged tests/fixtures/families/qwen3-moe
    check "test_groups, experts of families" "$build/test_groups" --device cuda --brief "" \
        tests/fixtures/families/{deepseek-v3,gemma4,glm4-moe-lite,gpt-oss-bf16,gpt-oss-mxfp4,laguna,mixtral,nemotron-h,qwen3-next}
    if [ ${#gpus[@]} -gt 1 ]; then
        check "test_hosts by NCCL" "$build/test_hosts" --devices cuda:0,cuda:1
        check "test_replicas" "$build/test_replicas" --device cuda
        check "test_pipeline" "$build/test_pipeline" --device cuda
        check "test_ranks" "$build/test_ranks" --device cuda "" tests/fixtures/gptq-awq-int4 \
            tests/fixtures/families/{gemma4,gemma4-dense,gpt-oss-bf16,llama,mistral,mixtral,nemotron-h,qwen3,qwen3-moe,qwen3.5-dense}
    else
        for test in replicas pipeline ranks; do skip "test_$test" "one GPU"; done
    fi
    check "mote selftest" "$mote" selftest
}

kernel_tests() {
    check "kernels" tools/check_kernels.sh "$NVCC" "$build/kernels.txt"
    check "gpu_attention" "$build/gpu_attention"
    check "gpu_latent" "$build/gpu_latent"
    check "gpu_ngrams" "$build/gpu_ngrams"
    check "gpu_streams" "$build/gpu_streams"
    check "gpu_mamba" "$build/gpu_mamba"
    check "gpu_batch" "$build/gpu_batch"
    check "gpu_batch_moe" "$build/gpu_batch_moe"
    check "gpu_product" "$build/gpu_product"
    check "gpu_exchange" "$build/gpu_exchange"
    check "gpu_drafter" "$build/gpu_drafter"
}

prefill_tests() {
    check "gpu_vision" "$build/gpu_vision" "$([ ! -d build/data/vision-data ] || echo build/data)"
    check "gpu_prefill" "$build/gpu_prefill" small:fp8 small:bf16
    check "gpu_prefill other formats" "$build/gpu_prefill" --brief small:nvfp4 small:int4 small:fp8-channel tiny-oss:bf16 tiny-oss:mxfp4 tiny-latent tiny-mamba:fp8
    check "gpu_prefill windows" "$build/gpu_prefill" small-oss:mxfp4
    check "gpu_prefill heads" "$build/gpu_prefill" small-gemma:bf16 small-laguna:fp8
}

# ---- Real layer sizes, and oracles ------------------------------------------------------------------------------------

# Checkpoints of the real layer sizes take a minute of other processors than the tests do: they are made from the beginning.
without_real=
if [ "${GPU_REAL:-1}" = 0 ]; then without_real="GPU_REAL=0"
elif ! python3 -c 'import torch, transformers, safetensors' 2>/dev/null; then without_real="no python3 with torch, transformers and safetensors"
fi

made() {
    local code=0
    wait "$making" || code=$?
    cat "$logs/real.log"
    return $code
}

part_oracles() {
    if [ -n "$without_real" ]; then
        skip "real layer sizes" "$without_real"
        return
    fi
    check "making real layer sizes" made
    grep '^{' "$logs/making-real-layer-sizes.log"
    check "test_engine real layer sizes" "$build/test_engine" --device cuda "" "$build"/real/*/
    check "making oracles" python3 tools/make_oracle.py "$build"/real/*/
    check "gpu_accuracy" "$build/gpu_accuracy" "$build"/real/*/
}

# ---- All of it --------------------------------------------------------------------------------------------------------

if has oracles && [ -z "$without_real" ] && ! grep -q '^making real layer sizes: passed' "$before"; then
    python3 tools/make_fixtures.py "$build/real" --real-sizes >"$logs/real.log" 2>&1 &
    making=$!
fi
if has sanitizers && [ -z "$without_sanitizers" ]; then
    : >"$logs/beside"
    sanitizers &
    sanitizing=$!
fi

# A part, and its stamp when nothing failed.
sum=(0 0 0)
part() {
    has "$1" || return 0
    passed=0 failed=0 skipped=0 results=
    "part_$1"
    sum=($((sum[0] + passed)) $((sum[1] + failed)) $((sum[2] + skipped)))
    echo "$1: $passed passed, $failed failed, $skipped skipped, after $SECONDS s"
    [ $failed -eq 0 ] || rm -f "tests/gpu-$1.stamp"
    [ $failed -eq 0 ] && [ $passed -gt 0 ] || return 0
    {
        echo "sha256 $(tools/source_hash.sh "$1")"
        echo "targets $GPU_TARGETS"
        echo "device $(sed -n 's/^test_engine: device //p' "$logs"/*test_engine*.log | tail -n 1)"
        echo "date $(date -u +%Y-%m-%d)"
        echo "$passed passed, $failed failed, $skipped skipped"
        printf %s "$results"
    } >"tests/gpu-$1.stamp"
    cat "tests/gpu-$1.stamp"
}

part tests
part oracles
part sanitizers
echo "${sum[0]} passed, ${sum[1]} failed, ${sum[2]} skipped"
[ "${sum[1]}" -eq 0 ] && [ "${sum[0]}" -gt 0 ]
