/* cli/info_experts.c: what `mote info` predicts of a GPU that has no space for all experts, which then lie in host memory: how many fit into slots of
   its own memory, and what speed it takes to find how many of them there. The formula is seconds_of_token; nobody has measured its results. */

typedef struct offload {
    double link, memory;                   /* bytes per second: from the host's memory, of the GPU's own */
    double space;                          /* bytes of the GPU's memory; 0: unknown */
    const char *of;                        /* whose speeds these are */
} offload;

static const mote_module *module_named(const mote_info *i, const char *name) {
    for (int m = 0; m < i->module_count; m++)
        if (!strcmp(i->modules[m].name, name)) return &i->modules[m];
    return NULL;
}

/* Decode of a token after a short context, of whose experts the share `hits` is in slots: what is missing comes over the link, then all is read from
   the GPU's memory, and a layer's phases follow each other. */
static double seconds_of_token(const mote_info *i, const offload *x, double hits) {
    const double layer = 15e-6;            /* seconds from phase to phase of a layer: print_prediction */
    const double missing = (1 - hits) * (double)module_named(i, "experts")->bytes_per_token;
    return missing / x->link + (double)i->weight_bytes_per_token / x->memory + layer * i->layers;
}

/* The share of all experts that has space beside the other weights and a session; below 0: not even these have. A thirty-second is left for what else takes memory. Of a GPU
   that is not here the plan lacks what prompts take there: copies of two layers, and scratch, for which another thirty-second stands. */
static double share_in_slots(const mote_info *i, const mote_memory *plan, const offload *x) {
    const double experts = (double)(i->host_bytes ? i->host_bytes : module_named(i, "experts")->bytes);
    const double prompts = i->host_bytes ? 0 : 2 * experts / i->layers + x->space / 32;
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
    printf("  predicted, not measured: bytes over the link, plus all bytes of a token from memory, plus 15 us a layer; without drafts\n");
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
