#!/usr/bin/env bash
# Runs tests of a GPU on the simulated one (`make test-simulated` calls it from the top of the repository): test.sh BUILD. What a GPU does in a
# second takes minutes, so: checkpoints of tests/fixtures, in brief. The last line is `N passed, N failed, N skipped`.
set -uo pipefail

build=$1 passed=0 failed=0 skipped=0
fixtures=tests/fixtures families=tests/fixtures/families
checkpoints=$(ls -d $fixtures/*/tokens.i32 $families/*/tokens.i32 | sed 's,/tokens.i32,,')         # those with reference logits

run() {
    local name=$1 log=$build/$1.log code=0 began=$SECONDS counts p f s _
    shift
    "$@" >"$log" 2>&1 || code=$?
    counts=$(grep -oE '[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$log" | tail -n 1)
    read -r p _ f _ s _ <<<"${counts:-0 passed, 0 failed, 0 skipped}"
    if [ $code -ne 0 ] && [ "$f" -eq 0 ]; then f=1; fi      # it ended before it could count
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    [ $code -eq 0 ] || tail -n 20 "$log"
    echo "$name: in $((SECONDS - began)) s${counts:+: $counts}"
}

run simulator "$build/simulator"
run test_engine "$build/test_engine" --device cuda --brief "" $checkpoints
run test_batch "$build/test_batch" --device cuda --brief "" $fixtures/fp8-ragged $families/{gemma4-dense,gpt-oss-mxfp4}
run gpu_exchange "$build/gpu_exchange" --brief
run gpu_ngrams "$build/gpu_ngrams" --brief
run test_tables "$build/test_tables" --device cuda --brief "$([ ! -d build/data/family-data ] || echo build/data)"
run gpu_streams "$build/gpu_streams"
run gpu_mamba "$build/gpu_mamba"
run gpu_product "$build/gpu_product"
run gpu_drafter "$build/gpu_drafter" --brief
run test_groups-slots "$build/test_groups" --device cuda --brief "" $families/qwen3-moe
run test_experts "$build/test_experts" --device cuda --brief "" $families/{gpt-oss-mxfp4,deepseek-v3} tiny:nvfp4
run test_experts-pipeline "$build/test_experts" --devices cuda:0,cuda:1 --brief "" $families/qwen3-moe
run test_experts-tensor "$build/test_experts" --devices cuda:0,cuda:1 --split tensor --brief "" $families/qwen3-moe
run test_ranks "$build/test_ranks" --device cuda --brief "" $fixtures/gptq-awq-int4 $families/gemma4
run test_pipeline "$build/test_pipeline" --device cuda --brief "" $families/gpt-oss-mxfp4
SIMULATED_PEERS=0 run test_pipeline-without-peers "$build/test_pipeline" --device cuda --brief "" $fixtures/fp8-ragged
run test_hosts "$build/test_hosts" --device cuda --brief "" $families/gpt-oss-mxfp4
LD_LIBRARY_PATH=$build run test_hosts-nccl "$build/test_hosts" --devices cuda:0,cuda:1 --brief "" $fixtures/bf16-as-3.6
run test_engine-pipeline "$build/test_engine" --devices cuda:0,cuda:1 --brief "" $families/deepseek-v3
run test_engine-tensor "$build/test_engine" --devices cuda:0,cuda:1 --split tensor --brief "" $families/qwen3-moe
run test_batch-pipeline "$build/test_batch" --devices cuda:0,cuda:1 --brief "" $fixtures/fp8-ragged
run gpu_production "$build/gpu_production" tiny:fp8
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ] && [ $passed -gt 0 ]
