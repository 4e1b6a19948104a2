/* model/devices.c: the devices that an application names for a model, and how it wants them to share it. Knows the text of options; must not know
   what a device can do, nor what lies on it. */

enum { DEVICE_LAYERS_MAX = 1 << 12 };

typedef struct device_list {
    int count;                                 /* 0: none was named; device_choose does */
    int gpus;                                  /* they are GPUs, not CPUs */
    int ranges, ranks;                         /* how they share the model: count is one times the other */
    int apart;                                 /* each is on a host of its own, as model_part has it */
    char name[DEVICES_MAX][16];                /* "cpu", "cuda:1" */
    uint64_t memory;                           /* mote_options.gpu_memory */
    int layers[DEVICES_MAX];                   /* of each range; 0: as they fit */
} device_list;

/* Takes what stands before the next comma; *text is NULL after the last one. 0: it is empty, or longer than any name. */
static int list_item(const char **text, char item[16]) {
    const size_t n = strcspn(*text, ",");
    if (!n || n >= 16) return 0;
    memcpy(item, *text, n);
    item[n] = 0;
    *text = (*text)[n] ? *text + n + 1 : NULL;
    return 1;
}

/* "0" is "cuda:0". */
static int device_list_read(device_list *l, const char *text, mote_error *err) {
    char item[16], name[32];
    for (const char *rest = text; rest; l->count++) {
        int number;
        if (l->count == DEVICES_MAX || !list_item(&rest, item))
            return fail(err, MOTE_EINVAL, "devices \"%.40s\", expected 1 to %d with commas between them, as \"0,1\"", text, DEVICES_MAX);
        snprintf(name, sizeof name, "%s%s", *item >= '0' && *item <= '9' ? "cuda:" : "", item);
        const int code = device_number(name, &number, err);
        if (code) return code;
        if (l->count && l->gpus != (number >= 0))
            return fail(err, MOTE_EUNSUPPORTED, "devices \"%.40s\": GPUs and CPUs cannot share a model", text);
        l->gpus = number >= 0;
        snprintf(l->name[l->count], sizeof *l->name, number < 0 ? "cpu" : "cuda:%d", number);
        for (int i = 0; i < l->count && l->gpus; i++)       /* parts wait for each other inside kernels, and one GPU may not have space for both */
            if (!strcmp(l->name[i], l->name[l->count]))
                return fail(err, MOTE_EINVAL, "devices \"%.40s\": %s is named twice", text, l->name[i]);
    }
    return MOTE_OK;
}

static int device_layers_read(device_list *l, const char *text, mote_error *err) {
    char item[16], *end;
    int n = 0;
    for (const char *rest = text; rest; n++) {
        const int whole = n < l->ranges && list_item(&rest, item) && *item >= '1' && *item <= '9';
        const long layers = whole ? strtol(item, &end, 10) : 0;
        if (!whole || *end || layers > DEVICE_LAYERS_MAX) break;
        l->layers[n] = (int)layers;
        if (!rest && n + 1 == l->ranges) return MOTE_OK;
    }
    return fail(err, MOTE_EINVAL, "layers \"%.40s\", expected %d numbers from 1 with a comma between them: those of each device", text, l->ranges);
}

/* What options say of devices. */
static int device_list_of(device_list *l, const mote_options *o, mote_error *err) {
    memset(l, 0, sizeof *l);
    l->ranges = l->ranks = 1;
    l->memory = o->gpu_memory;
    if (o->split < MOTE_SPLIT_AUTO || o->split > MOTE_SPLIT_TENSOR)
        return fail(err, MOTE_EINVAL, "split is %d, expected MOTE_SPLIT_...", o->split);
    if (!o->devices && !o->split && !o->layers) return MOTE_OK;
    if (!o->devices) return fail(err, MOTE_EINVAL, "%s is of several devices, and none is named", o->split ? "split" : "layers");
    if (o->device) return fail(err, MOTE_EINVAL, "device \"%.40s\" and devices \"%.40s\" exclude each other", o->device, o->devices);
    if (o->layers && o->split == MOTE_SPLIT_TENSOR)
        return fail(err, MOTE_EINVAL, "layers \"%.40s\" are of a pipeline: with MOTE_SPLIT_TENSOR each device has all of them", o->layers);
    int code = device_list_read(l, o->devices, err);
    if (code) return code;
    *(o->split == MOTE_SPLIT_TENSOR ? &l->ranks : &l->ranges) = l->count;
    if (o->layers) code = device_layers_read(l, o->layers, err);
    return code;
}
