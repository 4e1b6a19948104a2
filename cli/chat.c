/* cli/chat.c: the command chat. A read-eval-print loop: chat_input.c reads, conversation.c evaluates, screen.c prints. */

/* Messages are zero-terminated texts to the library: what came after a zero byte would be lost. */
static void chat_refuse_zero(chat *c) {
    c->failed = 1;
    complain(0, "standard input: the message holds a zero byte and is not asked");
}

static void chat_loop(chat *c) {
    int quoted;
    while (!c->leave && read_message(c, &quoted)) {
        if (c->holds_zero) chat_refuse_zero(c);
        else if (c->message.data[strspn(c->message.data, " \t\n")] == 0) continue;
        else if (c->message.data[0] == '/' && !quoted) c->replaces = 0, chat_execute(c, c->message.data);
        else chat_turn(c);
        if (ferror(stdout) || (interrupted && !c->typed)) break;
    }
    if (c->typed && !c->leave) say(c, "\n");
}

static void chat_banner(const chat *c, const mote_info *info) {
    char parameters[32], size[32];
    human((double)info->parameters, "", parameters);
    human((double)info->weight_bytes, "B", size);
    say(c, "mote %s: %s, %s parameters, %s\non %s, context %d; /help lists the commands\n\n", mote_version(), c->o->model,
        parameters, size, info->device, c->context);
}

static int chat_with(const mote_model *model, chat *c) {
    const mote_info *info = mote_model_info(model);
    if (!info->chat_template)
        return complain(EXIT_FAILURE, "%s: no chat template mote knows; mote run --raw -p TEXT continues plain text",
                        c->o->model);
    c->model = model;
    c->sampling = sampling_for(model, c->o);
    if (c->o->system && append(&c->system, c->o->system, strlen(c->o->system))) return EXIT_FAILURE;
    int code = open_session(model, c->o, &c->session);
    if (code) return code;
    c->context = mote_context(c->session);
    c->speculates = c->o->mtp != MOTE_MTP_OFF;
    if (c->typed && c->styled) chat_banner(c, info);
    chat_loop(c);
    if (c->typed) return 0;
    return interrupted ? EXIT_INTERRUPTED : c->failed;
}

static int command_chat(options *o) {
    mote_model *model = NULL;
    chat c;
    memset(&c, 0, sizeof c);
    c.o = o;
    c.typed = isatty(STDIN_FILENO);
    c.styled = isatty(STDOUT_FILENO);
    if (o->greedy && o->temperature > 0) return complain(EXIT_USAGE, "chat: --greedy and --temp exclude each other");
    if (check_effort("chat", o)) return EXIT_USAGE;
    c.edits = c.typed && (c.styled || isatty(STDERR_FILENO));
    if (c.edits) editor_open(&c.edit, c.styled ? stdout : stderr, !o->no_history);
    c.edit.complete = complete_message;
    catch_interrupt(0);
    int code = find_model(o, MOTE_EVERYTHING);
    if (!code) plan_context(o);
    if (!code) code = open_model(o, MOTE_EVERYTHING, &model);
    if (!code) code = chat_with(model, &c);
    forget_undo(&c);
    if (c.edits) editor_close(&c.edit);
    free(c.message.data);
    free(c.line.data);
    free(c.system.data);
    free(c.effort.data);
    free(c.attached.data);
    free_pictures(&c.read);
    free_pictures(&c.shown);
    free(c.typed_last.data);
    free(c.asked.data);
    free(c.held.data);
    if (c.session) log_experts(mote_model_info(model), o, c.session);
    mote_session_close(c.session);
    mote_close(model);
    return code;
}
