#!/bin/sh
# tools/soak.sh BUILD SECONDS [DEVICES]: tests/serve/soak_serve.c against the mote of that build: see make soak. DEVICES: with replicas
set -u
build=$1
export ASAN_OPTIONS=quarantine_size_mb=4 TSAN_OPTIONS=halt_on_error=1:exitcode=66
quiet=; [ "${build%thread}" = "$build" ] || quiet='setarch -R'           # TSan dislikes the address space of newer kernels

start() {                                  # LOG OPTIONS...: its process is $!, its port $port
    log=$1; shift
    : >"$log"
    $quiet "$build/mote" serve --port 0 --threads 1 "$@" 2>"$log" &
    while ! grep -q 'on http' "$log"; do kill -0 $! || { cat "$log"; exit 1; }; sleep 0.2; done
    port=$(sed -n 's/.*http:.*://p' "$log")
}

start "$build/alone.log" --parallel 1 --cache-memory 0
alone=$! alone_port=$port
start "$build/soak.log" --parallel 12 --queue 40 --cache-memory 0.02 ${3:+--devices "$3" --split replicas}
server=$!
$quiet "$build/soak_serve" "$port" "$server" "$alone_port" "$2"; code=$?
for process in "$server" "$alone"; do kill "$process"; wait "$process" || code=1; done
[ "$code" = 0 ] || cat "$build/soak.log" "$build/alone.log"
exit "$code"
