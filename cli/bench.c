/* cli/bench.c: the command bench: planning and running it. Here it is decided what is measured, in which order and with
   how much context; how it is measured is the business of bench_steps.c, bench_ask.c, bench_images.c and bench_sessions.c. */

static void add_defaults(list *l, const int *values, int count, int limit) {
    if (l->count) return;
    for (int i = 0; i < count && values[i] <= limit; i++) l->value[l->count++] = values[i];
}

/* Gives the options that were not given their defaults: of lengths those that fit, and the context the lengths need. Returns
   that. */
static int plan_bench(options *o, const mote_info *info) {
    static const int prompts[] = {128, 512}, depths[] = {0, 1024}, gpu_depths[] = {0, 4096, 32768, 131072},
                     rows[] = {1, 2, 3, 4}, report_prompts[] = {512, 8192, 32768};
    int gpu = on_gpu(info), most = o->accept.count ? MOTE_ROWS_MAX : 1, need = 0;
    int limit = o->context && o->context < info->context_max ? o->context : info->context_max;
    if (on_one_gpu(info)) add_defaults(&o->rows, rows, 4, 4);
    for (int i = 0; i < o->rows.count; i++)
        if (o->rows.value[i] > most) most = o->rows.value[i];
    if (!o->steps) o->steps = gpu ? 200 : 32;
    int after = o->steps * most + 1;       /* tokens after a depth */
    if (o->report && gpu) add_defaults(&o->prompts, report_prompts, 3, limit);
    add_defaults(&o->prompts, prompts, 2, limit);
    add_defaults(&o->depths, gpu ? gpu_depths : depths, gpu ? 4 : 2, limit - after);
    for (int i = 0; i < o->prompts.count; i++)
        if (o->prompts.value[i] > need) need = o->prompts.value[i];
    for (int i = 0; i < o->depths.count; i++)
        if (o->depths.value[i] + after > need) need = o->depths.value[i] + after;
    if (!o->context) o->context = need;
    return need;
}

static int bench_model(bench *b, options *o, const replicas *r) {
    const mote_model *model = r->model[0];
    const char *name = o->synthetic ? o->synthetic : o->model;
    mote_error error = {0, ""};
    b->info = mote_model_info(model);
    for (int i = 0; i < r->count && o->expert_slots >= 0; i++)
        if (mote_limit_expert_slots((mote_model *)(uintptr_t)r->model[i], o->expert_slots, &error)) return report(&error);
    const int simulates = o->accept.count && !(o->sessions.count && on_gpu(b->info));
    if (!on_one_gpu(b->info) && (o->rows.count || o->stages || o->sms || simulates))
        return complain(EXIT_FAILURE, "bench: --rows, --stages, --sms and --accept are for one GPU, but the model is on %s",
                        on_gpu(b->info) ? "several" : "the CPU");
    if (o->accept.count && !b->info->mtp_layers && !o->drafter) return complain(EXIT_FAILURE, "%s: the model has no MTP layer", name);
    if (o->ask) return bench_ask(b, o, name, model);
    if (o->image_sides.count) return bench_images(b, o, name, model);
    if (o->sessions.count && !o->steps) o->steps = 64;
    if (o->sessions.count && mote_read_speed(model, o->threads, &b->ceiling, &error)) return report(&error);
    if (o->sessions.count) return bench_sessions(b, name, r);
    if (on_one_gpu(b->info) && o->steps > 1000)
        return complain(EXIT_USAGE, "bench: --tokens on a GPU needs a whole number from 1 to 1000, not '%d'", o->steps);
    if (o->locality >= 0 && !on_gpu(b->info)) return complain(EXIT_USAGE, "bench: --locality is of experts in host memory, for a GPU");
    b->ids = random_ids(plan_bench(o, b->info), b->info->vocab_size);
    int code = b->ids ? open_session(model, o, &b->session) : complain(EXIT_FAILURE, "out of memory");
    if (!code && mote_read_speed(model, o->threads, &b->ceiling, &error)) code = report(&error);
    if (!code && o->locality >= 0 && mote_simulate_experts(b->session, o->locality, &error)) code = report(&error);
    if (code) return code;
    if (o->report) print_report_head(b);
    print_head(b, name);
    json_head(b, name);
    code = bench_prefill(b);
    if (!code) code = on_one_gpu(b->info) ? bench_decode_gpu(b) : bench_decode_timed(b);
    if (!code && o->accept.count) code = bench_speculation(b);
    if (!code && o->stages && o->depths.count) code = bench_stages(b);
    for (int i = 0; i < o->prompts.count && !code && o->stages; i++)
        code = bench_prefill_stages(b, o->prompts.value[i]);
    if (!code && o->report) code = report_ask(b, name, model);
    if (b->json) fputs("\n]}\n", b->json);
    return code;
}

static int bench_usage(const options *o) {
    if (o->model && o->synthetic) return complain(EXIT_USAGE, "bench: -m and --synthetic exclude each other");
    if (o->synthetic && o->quantize)
        return complain(EXIT_USAGE, "bench: --quantize is for a folder's weights: --synthetic NAME:fp8 makes such");
    if (o->ask && (o->prompts.count || o->depths.count || o->rows.count || o->stages || o->accept.count))
        return complain(EXIT_USAGE, "bench: not with --ask: --prompt, --depth, --rows, --stages, --accept");
    if (o->report && (o->ask || o->sessions.count)) return complain(EXIT_USAGE, "bench: not with --report: --ask, --sessions");
    if (o->sessions.count && (o->ask || o->depths.count || o->rows.count || o->stages))
        return complain(EXIT_USAGE, "bench: not with --sessions: --ask, --depth, --rows, --stages");
    if (o->sessions.count && o->prompts.count > 1) return complain(EXIT_USAGE, "bench: --sessions takes one length of --prompt");
    if (o->image_sides.count && (o->ask || o->report || o->sessions.count || o->prompts.count || o->depths.count || o->rows.count || o->stages || o->accept.count ||
                                 o->locality >= 0))
        return complain(EXIT_USAGE, "bench: not with --image: --ask, --report, --sessions, --prompt, --depth, --rows, --stages, --accept, --locality");
    if (o->split == SPLIT_REPLICAS && (!o->sessions.count || o->beside))
        return complain(EXIT_USAGE, "bench: --split replicas belongs to --sessions without --beside");
    if (o->beside && (!o->sessions.count || o->accept.count))
        return complain(EXIT_USAGE, "bench: --beside belongs to --sessions without --accept");
    if (o->overlap >= 0 && !o->accept.count)
        return complain(EXIT_USAGE, "bench: --overlap belongs to simulated speculation: it needs --accept");
    if (o->text && (!o->sessions.count || o->beside || o->accept.count || o->synthetic))
        return complain(EXIT_USAGE, "bench: --text belongs to --sessions without --beside, --accept and --synthetic");
    if (o->locality >= 0 && (o->sessions.count || o->ask || o->report || o->overlap >= 0))
        return complain(EXIT_USAGE, "bench: not with --locality: --sessions, --ask, --report, --overlap");
    if (o->accept.count && o->drafter && !o->sessions.count)
        return complain(EXIT_USAGE, "bench: --accept with --drafter needs --sessions: a block is drafted between passes");
    if (o->accept.count && o->mtp == MOTE_MTP_OFF)
        return complain(EXIT_USAGE, "bench: --accept needs drafts: not with --mtp 0");
    return 0;
}

static int command_bench(options *o) {
    replicas r = {.count = 1};
    output json = {0};
    bench b;
    int code = bench_usage(o), json_to_screen = o->json && strcmp(o->json, "-") == 0;
    if (code) return code;
    memset(&b, 0, sizeof b);
    b.o = o;
    b.table = json_to_screen ? stderr : stdout;
    b.ceiling = NAN;
    catch_interrupt(1);
    if (o->json && !json_to_screen) code = open_output(&json, o->json);
    b.json = json_to_screen ? stdout : json.file;
    if (!code && o->ask) code = read_questions(&b, o->ask);
    if (!code && o->report) code = append(&b.file, report_questions, sizeof report_questions - 1) || split_questions(&b, "--report");
    if (!code && o->report) code = report_selftest(&b);
    if (!code) code = find_replicas(o, 0, &r);
    if (!code) code = open_replicas(o, o->ask || o->report || o->text ? MOTE_EVERYTHING : MOTE_WEIGHTS_ONLY, &r);
    if (!code) code = begin_outputs(&json, 1);
    if (!code) code = bench_model(&b, o, &r);
    code = close_outputs(&json, 1, code);
    for (int i = 0; i < b.question_count; i++) free(b.questions[i].first.data);
    free(b.questions);
    free(b.file.data);
    free(b.ids);
    mote_session_close(b.session);
    close_replicas(&r);
    return code;
}
