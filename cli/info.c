/* cli/info.c: the command info: what a model is made of, and the memory that a session of it takes, as mote_info and
   mote_plan have it. No weights are read and no session is opened. */

static void print_amount(const char *label, double value, const char *unit) {
    char text[32];
    human(value, unit, text);
    printf("  %-22s%10s\n", label, text);
}

static void print_sizes(const mote_info *i) {
    char all[32], active[32];
    human((double)i->parameters, "", all);
    human((double)i->active_parameters, "", active);
    printf("architecture    %s; chat template: %s\n", i->architecture,
           i->chat_template ? i->chat_template : "none known");
    printf("parameters      %s in all, %s active for one token\n", all, active);
    printf("layers          %d; %d MTP\n", i->layers, i->mtp_layers);
    printf("hidden size     %d; vocabulary %d%s; context up to %d\n", i->hidden_size, i->vocab_size,
           i->tied_embeddings ? ", tied" : "", i->context_max);
    if (i->pooling)
        printf("embeddings      %s\n", i->pooling == MOTE_POOLING_MEAN ? "the mean of a text's rows" : "the row of a text's last token");
    for (int k = 0; k < i->kind_count; k++) {
        const mote_layers *of = &i->kinds[k];
        printf("%-16sin %d layers", of->name, of->count);
        for (int n = 0; n < of->size_count; n++) printf("%s %s %d", n ? "," : ":", of->sizes[n].name, of->sizes[n].value);
        printf("\n");
    }
}

/* A block of drafts reads as much of the head as drafts come from: mote_options.draft_rows, of which info has the default. */
static void print_block(const mote_info *i) {
    const mote_module *drafter = module_named(i, "drafter"), *own = module_named(i, "lm_head");
    const mote_module *head = own ? own : module_named(i, "embed_tokens");
    const int rows = i->vocab_size < 65536 ? i->vocab_size : 65536;
    char size[32];
    if (!drafter || !head) return;
    human((double)drafter->bytes + (double)head->bytes * rows / i->vocab_size, "B", size);
    printf("\na block of drafts reads the drafter and %d rows of the head, %s\n", rows, size);
}

static void print_modules(const mote_info *i) {
    char parameters[32], size[32], per_token[32];
    int width = 24;
    for (int m = 0; m < i->module_count; m++)
        if ((int)strlen(i->modules[m].dtype) + 1 > width) width = (int)strlen(i->modules[m].dtype) + 1;
    const char *note = i->quantize    ? ", quantised while loading: they are not the checkpoint's own"
                       : i->estimated ? ", estimated" : "";
    printf("\nweights by module%s\n  %-16s%-*s%12s%12s%18s\n", note, "", width, "dtype", "parameters", "bytes", "read per token");
    for (int m = 0; m < i->module_count; m++) {
        human((double)i->modules[m].parameters, "", parameters);
        human((double)i->modules[m].bytes, "B", size);
        human((double)i->modules[m].bytes_per_token, "B", per_token);
        printf("  %-16s%-*s%12s%12s%18s\n", i->modules[m].name, width, i->modules[m].dtype, parameters, size, per_token);
    }
    human((double)i->parameters, "", parameters);
    human((double)i->weight_bytes, "B", size);
    human((double)i->weight_bytes_per_token, "B", per_token);
    printf("  %-16s%-*s%12s%12s%18s\n", "total", width, "", parameters, size, per_token);
    print_block(i);
}

/* What is not memory: tables of which few rows are wanted. */
static void print_tables(const mote_model *model) {
    mote_tables_seen seen;
    char size[32];
    if (mote_model_tables(model, &seen, NULL) || !seen.bytes) return;
    human((double)seen.bytes, "B", size);
    printf("\na table of n-grams of %s stays in the checkpoint's files: rows are read when they are wanted\n", size);
}

static void print_plan(const mote_info *info, const mote_memory *plan) {
    printf("\nmemory for a session of %d tokens%s\n", plan->context, plan->estimated ? ", estimated" : "");
    if (info->host_bytes) print_amount("experts, in the host's", (double)info->host_bytes, "B");
    print_amount(info->host_bytes && !info->experts_shared ? "weights, in the GPU's" : "weights", (double)plan->weights, "B");
    print_amount("KV cache", (double)plan->kv, "B");
    print_amount("recurrent state", (double)plan->state, "B");
    print_amount("scratch", (double)plan->scratch, "B");
    printf("  %-22s%10d tokens\n", "prompt chunk", plan->chunk);
    print_amount("total", (double)plan->total, "B");
    if (!plan->available) return;
    print_amount(!on_gpu(info) ? "free on this machine" : info->device_count > 1 ? "free on the GPUs" : "free on the GPU", (double)plan->available, "B");
    if (plan->sessions > 1) printf("  %-22s%10d on one runner\n", "sessions that fit", plan->sessions);
    if (plan->context_fits > plan->context) printf("  %-22s%10d tokens\n", "longest context", plan->context_fits);
    if (plan->context_fits >= plan->context) return;
    if (plan->context_fits > 0) printf("  does not fit; --context %d does\n", plan->context_fits);
    else printf("  does not fit%s\n", plan->context_fits ? "" : ", whatever the context");
}

/* "0-19", or "0-39 1/2" of the first of two ranks. */
static void layers_text(const mote_device *d, char *text, size_t size) {
    int n = snprintf(text, size, "%d-%d", d->first_layer, d->first_layer + d->layer_count - 1);
    if (d->ranks > 1) snprintf(text + n, size - (size_t)n, " %d/%d", d->rank + 1, d->ranks);
}

/* The bytes that are left on the device of the i-th when all is there; devices may be named twice. */
static double left_on_device(const mote_info *info, const mote_memory *plans, int i) {
    double left = (double)plans[i].available;
    for (int k = 0; k < info->device_count; k++)
        if (!strcmp(info->devices[k].name, info->devices[i].name)) left -= (double)plans[k].total;
    return left;
}

/* What lies where. */
static int print_devices(const mote_model *model, const mote_session_options *how) {
    const mote_info *info = mote_model_info(model);
    mote_memory plans[64];
    mote_error error = {0, ""};
    char layers[32], bytes[32];
    if (info->device_count < 2) return 0;
    printf("\nby device\n  %-10s%-12s%11s%11s%11s%11s%11s%11s\n", "", "layers", "weights", "KV cache", "state", "scratch", "free", "left");
    for (int i = 0; i < info->device_count; i++)
        if (mote_plan_device(model, i, how, &plans[i], &error)) return report(&error);
    for (int i = 0; i < info->device_count; i++) {
        const mote_memory *p = &plans[i];
        const double columns[] = {(double)p->weights, (double)p->kv, (double)p->state, (double)p->scratch, (double)p->available,
                                  left_on_device(info, plans, i)};
        layers_text(&info->devices[i], layers, sizeof layers);
        printf("  %-10.*s%-12s", (int)strcspn(info->devices[i].name, " "), info->devices[i].name, layers);
        for (size_t k = 0; k < (p->available ? 6 : 4); k++) {
            human(columns[k], "B", bytes);
            printf("%11s", columns[k] < 0 ? "nothing" : bytes);
        }
        printf("\n");
    }
    return 0;
}

static int command_info(options *o) {
    mote_model *model = NULL;
    mote_memory plan;
    mote_error error = {0, ""};
    int code = o->model && o->synthetic ? complain(EXIT_USAGE, "info: -m and --synthetic exclude each other")
                                         : open_model(o, MOTE_DESCRIPTION, &model);
    mote_session_options how = session_options(o);
    how.callbacks.log = NULL;              /* what there is to note, mote_open has noted */
    if (!code) {
        plan_context(o);
        how.context = chosen_context(o, mote_model_info(model));
        if (plan_memory(o, &how, &plan, &error)) code = report(&error);
    }
    if (!code) {
        const mote_info *info = mote_model_info(model);
        show_format(stdout, "model           %s\n", o->synthetic ? o->synthetic : o->model);
        if (info->estimated)
            printf("estimate        of config.json and what headers there are: the weights themselves are not here\n");
        show_format(stdout, "device          %s\n", info->device);
        print_sizes(info);
        print_modules(info);
        print_tables(model);
        print_prediction(info);
        print_plan(info, &plan);
        code = print_devices(model, &how);
        if (!code) code = predict_offload(o, model, &plan);
    }
    mote_close(model);
    return code;
}
