/* program/foreign.c: options that people know from llama.cpp, vLLM and ollama, and what mote has for them. It knows names alone,
   and nothing of values. */

typedef struct foreign_option {
    const char *names;                     /* with blanks between them and around */
    const char *here;                      /* mote's option, or why there is none */
} foreign_option;

static const foreign_option foreign_options[] = {
    {" -c --ctx-size --num-ctx --max-model-len ", "--context N"},
    {" --predict --n-predict --num-predict --max-tokens ", "-n N"},
    {" --temperature ", "--temp T"},
    {" --repeat-penalty ", "--repetition-penalty P"},
    {" -s ", "--seed N"},
    {" -sys --system-prompt ", "--system TEXT"},
    {" -f --file ", "mote run TEXT < FILE"},
    {" -r --reverse-prompt ", "--stop TEXT"},
    {" --reasoning --hidethinking --reasoning-budget ", "--think on|off, or --effort LEVEL"},
    {" --model ", "-m DIR"},
    {" -hf --hf-repo -mu --model-url ", "hf download ORG/NAME, then -m ORG/NAME: mote has no network code"},
    {" --prompt ", "-p TEXT, of mote run"},
    {" -cnv --conversation -i --interactive ", "mote chat"},
    {" -t --num-threads -tb --threads-batch ", "--threads N"},
    {" -b --batch-size -ub --ubatch-size --max-num-batched-tokens --num-batch ", "--chunk N"},
    {" -ctk --cache-type-k -ctv --cache-type-v --kv-cache-dtype ", "--kv f32|bf16|fp8"},
    {" --quantization ", "--quantize fp8 of BF16 weights; a checkpoint's own format is recognised"},
    {" -mg --main-gpu ", "--device cuda:N"},
    {" -md --model-draft --draft --draft-max --spec-draft-n-max --spec-type --speculative-config ",
     "--mtp N: the checkpoint's own layer drafts, and what stands in the context already"},
    {" -a --alias --served-model-name ", "--name TEXT, of mote serve"},
    {" -np --max-num-seqs ", "--parallel N, of mote serve"},
    {" --swap-space -cram --cache-ram ", "--cache-memory GB, of mote serve"},
    {" --slot-save-path ", "--cache-dir DIR, of mote serve"},
    {" --allowed-origins ", "--cors, of mote serve"},
    {" --verbose ", "-v"},
    {" -ngl --gpu-layers --n-gpu-layers --num-gpu ", "all layers are on the GPU if there is one (--device cpu: none)"},
    {" -tp --tensor-parallel-size -sm --split-mode -ts --tensor-split ", "a model is on one GPU, --device cuda:N"},
    {" --gpu-memory-utilization ", "--gpu-memory SIZE; --context and --parallel are what fits; mote info tells how much that is"},
    {" -ncmoe --n-cpu-moe -cmoe --cpu-moe -ot --override-tensor --cpu-offload-gb ", "--experts host, which a model that does not fit has by itself"},
    {" --dtype ", "weights stay as the checkpoint has them"},
    {" -fa --flash-attn --enable-prefix-caching -cb --cont-batching --enable-chunked-prefill --metrics ", "it is always so"},
    {" --mlock --no-mmap --use-mmap --keepalive ", "weights are in memory as long as mote runs"},
    {" --jinja --chat-template --reasoning-parser --reasoning-format --tool-call-parser --enable-auto-tool-choice --trust-remote-code ",
     "the checkpoint's chat template is recognised, and none of its code is run"},
};

/* What mote has for an option of others; NULL: it is none that is known. Names may be written with _ for -. */
static const char *foreign_answer(const char *typed) {
    char name[64];
    int n = snprintf(name, sizeof name, " %s ", typed);
    if (n >= (int)sizeof name || strchr(typed, ' ')) return NULL;
    for (char *at = name; *at; at++)
        if (*at == '_') *at = '-';
    for (size_t i = 0; i < sizeof foreign_options / sizeof foreign_options[0]; i++)
        if (strstr(foreign_options[i].names, name)) return foreign_options[i].here;
    return NULL;
}
