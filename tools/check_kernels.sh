#!/bin/sh
# Prints what each kernel takes of a GPU, from a report of `nvcc -Xptxas -v`, and fails when one has a stack frame, spills
# registers, or has more shared memory than any GPU grants: 101376 bytes a block is what SM12x has. Shared memory asked for at
# launch is not known here. Some kernels may spill, as much as tests/kernels.table says: those of prefill, whose sums alone are half
# of the registers they may have or more; experts_down for any shape, in the format that takes most; of those for 122B's shape two, and of
# projections of many rows some, registers that are needed once a tile, those of 64 rows on sm_120f most, for MXFP4's two sums of a k block; on sm_89
# attention in a pass with heads of 64 and keys in FP8; what chooses experts for several rows, on sm_120f, for routers with ranks, once a row;
# on sm_90a projections of one row of Nemotron, two registers, in few that leave space for conv_scan; on sm_120f its experts_down one register;
# on sm_120f a prompt's mixtures of streams, two registers, once a row. It also fails when anything is not what the table says, so that a change shows; another compiler's registers are not compared, nor targets that the report does not have.
# UPDATE=1 writes the rows of the report's targets anew.
# Usage: tools/check_kernels.sh NVCC REPORT
set -eu

nvcc=$1 committed=tests/kernels.table
shift

table=$(awk '
/^ptxas warning/ { print > "/dev/stderr" }
/Compiling entry function/ { split($0, part, "\047"); kernel = part[2]; target = part[4] }
/Function properties for/ { name = $NF }
/bytes stack frame/ {
    stack = $1
    spilled = $5 + $9                                   # bytes stored and loaded
    if (name != kernel) row("-", 0)                     # a function that kernels call
}
/: Used [0-9]+ registers/ {
    shared = 0
    for (i = 2; i <= NF; i++) {
        if ($i ~ /^registers/) registers = $(i - 1)
        if ($i ~ /^smem/) shared = $(i - 2)
    }
    row(registers, shared)
}
function row(registers, shared,    bad, most) {
    most = name ~ /gemm_kernel/ ? 448 : name ~ /gpu_batch_wideILi16E/ ? 768 : name ~ /gpu_batch_(wide|narrow)ILi/ ? 256 : name ~ /attend_prefillIL|16gpu_experts_downIL/ ? 1024 : \
        name ~ /attend_fastILb1ELi64ELi64ELb1E/ ? 32 : name ~ /gpu_batch_route|gpu_experts_upILi4E|moe_prefill_route/ ? 96 : \
        name ~ /mla_valuesILi4E/ || (name ~ /shape_nemotronLi1E/ && target == "sm_90a") || (name ~ /experts_down_own/ && target == "sm_120f") ? 16 : \
        name ~ /experts_up_fixedI.*122b_a10bLi1E|gpu_batch_up_any|gpu_projectI13gpu_norm_rowsLi4E|gpu_project_fixedI13gpu_norm_rows15shape_122b_a10bLi2E|prefill_streams_mix/ ? 16 : 0
    bad = stack > most || spilled > most || shared > 101376
    printf "%-9s%10s%10d%8d%8d  %s%s\n", target, registers, shared, stack, spilled, name, bad ? "  <- too much" : ""
    stack = spilled = 0
}' "$@")

now=$(mktemp) before=$(mktemp) all=$(mktemp)
trap 'rm -f "$now" "$before" "$all"' EXIT
targets=$(echo "$table" | awk '/^sm_/ { print $1 }' | sort -u | paste -sd '|' -)
sorted() { LC_ALL=C sort -k 6 -k 1,1; }
titles() { printf '%-9s%10s%10s%8s%8s  %s\n' target registers shared stack spilled kernel; }

# Of the committed table, which has a kernel in a line, to rows as above, and back.
expand() {
    awk 'NR == 1 { print; next }
         NR == 2 { n = split(substr($0, 1, index($0, ":") - 1), target, " "); next }
         { split($0, half, "  "); split(half[1], value, " ")
           for (i = 0; i < n; i++)
               if (value[4 * i + 4] != "-")
                   printf "%-9s%10s%10d%8d%8d  %s\n", target[i + 1], value[4 * i + 1], value[4 * i + 2], value[4 * i + 3], value[4 * i + 4], half[2] }' "$1"
}
compact() {
    awk 'NR == 1 { release = $0; next }
         NR == 2 { next }
         { name = substr($0, 48); if (!(name in seen)) { seen[name] = 1; kernel[++kernels] = name }
           if (!($1 in known)) { known[$1] = 1; target[++targets] = $1 }
           row[name, $1] = $2 " " $3 " " $4 " " $5 }
         END { print release
               for (t = 1; t <= targets; t++) printf "%s%s", target[t], t < targets ? " " : ": registers, shared memory, stack and spilled bytes  kernel\n"
               for (k = 1; k <= kernels; k++) {
                   line = ""
                   for (t = 1; t <= targets; t++) line = line ((kernel[k], target[t]) in row ? row[kernel[k], target[t]] : "- - - -") " "
                   print line " " kernel[k]
               } }'
}
{
    "$nvcc" --version | sed -n 's/^Cuda compilation tools, //p'
    titles
    if command -v c++filt >/dev/null; then echo "$table" | c++filt -p; else echo "$table"; fi | sorted
} >"$now"

{ head -n 1 "$committed"; titles; expand "$committed" | tail -n +2 | sorted; } >"$all"
grep -E "^(release|target|$targets) " "$all" >"$before"
cat "$now"
kernels=$(echo "$table" | grep -c '^sm_' || true)
bad=$(echo "$table" | grep -c 'too much$' || true)
spilling=$(echo "$table" | awk '$5 > 0' | wc -l)
echo "$kernels kernels and functions, $bad with a stack frame, spills or too much shared memory; $spilling that may spill do"
[ "$kernels" -gt 0 ] && [ "$bad" -eq 0 ]

if [ "${UPDATE:-0}" != 0 ]; then
    { head -n 2 "$now"; { tail -n +3 "$now"; grep -vE "^(release|target|$targets) " "$all"; } | sorted; } | compact >"$before"
    cp "$before" "$committed"
elif [ "$(head -n 1 "$now")" != "$(head -n 1 "$committed")" ]; then
    echo "not compared with $committed, which is of $(head -n 1 "$committed")"
elif ! diff "$before" "$now"; then
    echo "kernels take other resources than $committed says: UPDATE=1 make check-kernels, and say why in the commit"
    exit 1
fi
