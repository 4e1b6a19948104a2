/* cli/info_experts.c: what `mote info` predicts: the decode of a GB10, and of a GPU that has no space for all experts, which then lie in host
   memory: how many fit into slots of its own memory, and what speed it takes to find how many of them there. The formulas are seconds_of_step
   and seconds_of_token; nobody has measured their results. */

static const mote_module *module_named(const mote_info *i, const char *name) {
    for (int m = 0; m < i->module_count; m++)
        if (!strcmp(i->modules[m].name, name)) return &i->modules[m];
    return NULL;
}

/* Seconds of a step of one row after a short context, without drafts, so without the MTP layer: weights and states at `memory` bytes per
   second, and each layer's kernels one after another (docs/performance.md). */
static double seconds_of_step(const mote_info *i, double memory) {
    const double layer = 15e-6;            /* what a layer's dependent kernels take beside bytes: some six of 2.5 us */
    const mote_module *mtp = module_named(i, "mtp");
    const uint64_t bytes = i->weight_bytes_per_token - (mtp ? mtp->bytes_per_token : 0) + 2 * i->state_bytes;
    return (double)bytes / memory + layer * i->layers;
}

static void print_prediction(const mote_info *i) {
    const double step = seconds_of_step(i, 246e9);     /* what programs have been seen to read of its 273 GB/s */
    printf("\na GB10 (246 GB/s) takes %.1f ms for a token, %.0f tok/s without drafts: predicted, not measured\n", 1e3 * step, 1 / step);
}

typedef struct offload {
    double link, memory;                   /* bytes per second: from the host's memory, of the GPU's own */
    double space;                          /* bytes of the GPU's memory; 0: unknown */
    const char *of;                        /* whose speeds these are */
} offload;

/* Decode of a token of whose experts the share `hits` is in slots: what is missing comes over the link, then the step goes on as with all on
   the GPU. */
static double seconds_of_token(const mote_info *i, const offload *x, double hits) {
    return (1 - hits) * (double)module_named(i, "experts")->bytes_per_token / x->link + seconds_of_step(i, x->memory);
}

/* The share of all experts that has space beside the other weights and a session; below 0: not even these have. A thirty-second is left for what else takes memory. Of a GPU
   that is not here the plan lacks what prompts take there: copies of two layers, and scratch, for which another thirty-second stands. */
static double share_in_slots(const mote_info *i, const mote_memory *plan, const offload *x) {
    const mote_module *of = module_named(i, "experts"), *mtp = module_named(i, "mtp");
    const uint64_t in_mtp = mtp ? mtp->bytes - mtp->bytes_per_token : 0;        /* nearly all that a token does not read is experts */
    const double experts = (double)(i->host_bytes ? i->host_bytes : of->bytes + in_mtp);
    const double prompts = i->host_bytes ? 0 : 2 * (double)of->bytes / i->layers + x->space / 32;
    const double beside = (double)i->weight_bytes - experts + (double)(plan->total - plan->weights) + prompts;
    const double share = (x->space - x->space / 32 - beside) / experts;
    return share > 1 ? 1 : share;
}

static void print_offload(const mote_info *i, const mote_memory *plan, const offload *x) {
    static const double hits[] = {0, 0.5, 0.8, 0.9, 1};
    char missing[32];
    int experts = 0, slots = INT_MAX;
    printf("\nexperts in host memory, %s: a link of %.1f GB/s, a memory of %.0f GB/s\n", x->of, x->link * 1e-9, x->memory * 1e-9);
    for (int k = 0; k < i->kind_count; k++)
        for (int n = 0; n < i->kinds[k].size_count; n++)
            if (!strcmp(i->kinds[k].sizes[n].name, "experts")) experts = i->kinds[k].sizes[n].value;
    if (x->space > 0) {
        const double share = share_in_slots(i, plan, x);
        slots = (int)(share * experts);
        if (share < 0) {
            printf("  %.1f GB are too few for all else and a session of %d tokens\n", x->space * 1e-9, plan->context);
            return;
        }
        printf("  in %.1f GB, beside all else and a session of %d tokens, %d of %d experts of each layer have slots (%.0f %%)\n", x->space * 1e-9,
               plan->context, slots, experts, 100 * share);
    }
    printf("  %-30s%16s%10s\n", "found in slots, of those used", "over the link", "tok/s");
    for (size_t k = 0; k < (slots ? sizeof hits / sizeof hits[0] : 1); k++) {
        human((1 - hits[k]) * (double)module_named(i, "experts")->bytes_per_token, "B", missing);
        printf("  %28.0f %%%16s%10.0f\n", 100 * hits[k], missing, 1 / seconds_of_token(i, x, hits[k]));
    }
    printf("  predicted, not measured: bytes over the link, plus all weights and states of a token from memory, plus 15 us a layer; without drafts\n");
}

/* What is told of a model with experts, if they are in host memory, or if another machine is asked about. */
static int predict_offload(const options *o, const mote_model *model, const mote_memory *plan) {
    const mote_info *i = mote_model_info(model);
    offload x = {.link = o->link.link * 1e9, .memory = o->link.memory * 1e9, .space = o->gpu_memory, .of = "on the machine that --link describes"};
    if (!module_named(i, "experts")) {
        if (o->link.link > 0) return complain(EXIT_USAGE, "info: --link is about models with experts, this one has none");
        return 0;
    }
    if (i->experts_shared) printf("\nthe GPU's memory is the host's: experts are used where they lie, with or without --experts host\n");
    if (o->link.link <= 0 && (!i->host_bytes || i->experts_shared)) return 0;
    double unused;
    if (o->link.link > 0 && o->link.memory <= 0 && mote_link_speed(model, &unused, &x.memory, NULL))
        return complain(EXIT_USAGE, "info: --link needs the speed of the GPU's memory, too, as 25:900, unless there is a GPU here to measure");
    if (o->link.link <= 0) {
        if (mote_link_speed(model, &x.link, &x.memory, NULL)) return 0;        /* several GPUs: nothing is predicted */
        x.of = "on this machine, measured by copies";
        x.space = (double)plan->available;
    }
    print_offload(i, plan, &x);
    return 0;
}
