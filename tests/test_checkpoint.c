// Tests of the checkpoint reader: the container, whole folders made wrong one way at a time, large ones; and
// of what opening does inside: how much context fits, synthetic weights, experts at equal distances.
// Usage: test_checkpoint [DATA], from the top of the repository; DATA is the unpacked data folder.
//
//   1. The container: 134 safetensors files    2. Checkpoint folders made wrong: tensors and shards (config.json: test_config)
//   3. Tokenizer, template and generation_config.json made wrong
//   4. Large checkpoints                       5. Inside: plans and synthetic weights

#include "../engine.cu"
#include "api.h"
#include "folders.h"


// ---- 1. The container: 134 safetensors files ------------------------------------------------------------------------
// Headers with ' for ", ` for ', and $T $I $[ $] $0 for a tensor, the beginning of an info, 200 brackets, and a NUL.
// What is expected is what the reference reader says, but REJECT where mote is stricter on purpose: infos that are no
// objects, names that are empty, hold a NUL or come twice (v13, v15, v16, e20, e76, e77, e78).

enum { REJECT = -1 };

static const struct {
    const char *name, *header;
    int data;           // bytes of zeros behind the header
    uint64_t n;         // the length in the file's first 8 bytes; 0: that of the header
    int tensors;        // expected, or REJECT
} container_cases[] = {
    {"v00_minimal_empty", "{}", 0, 0, 0},
    {"v01_basic", "{$T}", 16, 0, 1},
    {"v02_trailing_ws", "{$T} \t\r\n", 16, 0, 1},
    {"v03_leading_ws", "\n\t {$T}", 16, 0, 1},
    {"v04_scalar", "{'t':$I[],'data_offsets':[0,4]}}", 4, 0, 1},
    {"v05_zero_dim", "{'t':$I[2,0],'data_offsets':[0,0]}}", 0, 0, 1},
    {"v06_meta", "{'__metadata__':{'format':'pt'},$T}", 16, 0, 1},
    {"v07_meta_null", "{'__metadata__':null,$T}", 16, 0, 1},
    {"v08_meta_empty", "{'__metadata__':{},$T}", 16, 0, 1},
    {"v09_unsorted_offsets", "{'b':$I[1],'data_offsets':[16,20]},'a':$I[2,2],'data_offsets':[0,16]}}", 20, 0, 2},
    {"v10_unaligned_header", "{$T} ", 16, 0, 1},
    {"v11_unaligned_tensor",
     "{'a':{'dtype':'U8','shape':[1],'data_offsets':[0,1]},"
     "'b':{'dtype':'F32','shape':[1],'data_offsets':[1,5]}}", 5, 0, 2},
    {"v12_extra_field_in_info", "{'t':$I[2,2],'data_offsets':[0,16],'foo':1}}", 16, 0, 1},
    {"v13_info_as_array", "{'t':['I32',[2,2],[0,16]]}", 16, 0, REJECT},
    {"v14_escaped_name", "{'\\u0074\\u00e9':$I[2,2],'data_offsets':[0,16]}}", 16, 0, 1},
    {"v15_empty_name", "{'':$I[2,2],'data_offsets':[0,16]}}", 16, 0, REJECT},
    {"v16_nul_in_name", "{'a\\u0000b':$I[2,2],'data_offsets':[0,16]}}", 16, 0, REJECT},
    {"v17_zero_elem_huge_dim", "{'t':$I[0,18446744073709551615],'data_offsets':[0,0]}}", 0, 0, 1},
    {"v18_huge_then_zero", "{'t':$I[18446744073709551615,0],'data_offsets':[0,0]}}", 0, 0, 1},
    {"v19_overflow_then_zero", "{'t':$I[18446744073709551615,2,0],'data_offsets':[0,0]}}", 0, 0, REJECT},
    {"v20_two_zero_sized_same_offset",
     "{'a':$I[0],'data_offsets':[0,0]},'b':$I[0],'data_offsets':[0,0]},$T}", 16, 0, 3},
    {"v21_F4", "{'t':{'dtype':'F4','shape':[1,2],'data_offsets':[0,1]}}", 1, 0, 1},
    {"v22_F6", "{'t':{'dtype':'F6_E2M3','shape':[4],'data_offsets':[0,3]}}", 3, 0, 1},
    {"e03_n0", "", 0, 0, REJECT},
    {"e04_n_too_big_for_file", "{$T}", 16, 1000u, REJECT},
    {"e05_n_eq_100000001", "{$T}", 16, 100000001u, REJECT},
    {"e05b_n_eq_100000000_trunc", "{$T}", 16, 100000000u, REJECT},
    {"e06_n_u64max", "{$T}", 16, 18446744073709551615u, REJECT},
    {"e07_n_big_endian", "{$T}", 16, 4323455642275676160u, REJECT},
    {"e08_n_one_short", "{$T}", 16, 56u, REJECT},
    {"e09_n_one_long", "{$T}", 16, 58u, REJECT},
    {"e10_bad_utf8", "\xff""", 0, 0, REJECT},
    {"e11_not_json", "{", 0, 0, REJECT},
    {"e12_root_array", "[]", 0, 0, REJECT},
    {"e13_root_string", "'x'", 0, 0, REJECT},
    {"e14_utf8_bom", "\xef""\xbb""\xbf""{}", 0, 0, REJECT},
    {"e15_nul_padding", "{$T}$0$0", 16, 0, REJECT},
    {"e16_trailing_garbage_json", "{$T}x", 16, 0, REJECT},
    {"e17_trailing_comma", "{$T,}", 16, 0, REJECT},
    {"e18_single_quotes", "{`t`:{`dtype`:`I32`,`shape`:[2,2],`data_offsets`:[0,16]}}", 16, 0, REJECT},
    {"e19_comment", "{/*x*/$T}", 16, 0, REJECT},
    {"e20_dup_name_same_offsets", "{$T,$T}", 16, 0, REJECT},
    {"e21_dup_name_diff_offsets", "{$T,'t':$I[2,2],'data_offsets':[16,32]}}", 32, 0, REJECT},
    {"e22_dup_field_in_info", "{'t':{'dtype':'I32','dtype':'F32','shape':[2,2],'data_offsets':[0,16]}}", 16, 0, REJECT},
    {"e23_dup_metadata", "{'__metadata__':{'a':'b'},'__metadata__':{'a':'c'},$T}", 16, 0, REJECT},
    {"e24_dup_key_inside_metadata", "{'__metadata__':{'a':'b','a':'c'},$T}", 16, 0, 1},
    {"e25_meta_nonstring", "{'__metadata__':{'a':1},$T}", 16, 0, REJECT},
    {"e26_meta_nested", "{'__metadata__':{'a':{'b':'c'}},$T}", 16, 0, REJECT},
    {"e27_meta_is_string", "{'__metadata__':'x',$T}", 16, 0, REJECT},
    {"e28_meta_value_null", "{'__metadata__':{'a':null},$T}", 16, 0, REJECT},
    {"e29_missing_dtype", "{'t':{'shape':[2,2],'data_offsets':[0,16]}}", 16, 0, REJECT},
    {"e30_missing_shape", "{'t':{'dtype':'I32','data_offsets':[0,16]}}", 16, 0, REJECT},
    {"e31_missing_offsets", "{'t':$I[2,2]}}", 16, 0, REJECT},
    {"e32_unknown_dtype", "{'t':{'dtype':'Q4','shape':[2,2],'data_offsets':[0,16]}}", 16, 0, REJECT},
    {"e33_lowercase_dtype", "{'t':{'dtype':'i32','shape':[2,2],'data_offsets':[0,16]}}", 16, 0, REJECT},
    {"e34_dtype_number", "{'t':{'dtype':3,'shape':[2,2],'data_offsets':[0,16]}}", 16, 0, REJECT},
    {"e35_negative_dim", "{'t':$I[-2,-2],'data_offsets':[0,16]}}", 16, 0, REJECT},
    {"e36_float_dim", "{'t':$I[2.0,2],'data_offsets':[0,16]}}", 16, 0, REJECT},
    {"e37_exp_dim", "{'t':$I[2e0,2],'data_offsets':[0,16]}}", 16, 0, REJECT},
    {"e38_string_dim", "{'t':$I['2',2],'data_offsets':[0,16]}}", 16, 0, REJECT},
    {"e39_dim_gt_u64", "{'t':$I[18446744073709551616],'data_offsets':[0,16]}}", 16, 0, REJECT},
    {"e40_leading_zero_dim", "{'t':$I[02,2],'data_offsets':[0,16]}}", 16, 0, REJECT},
    {"e41_shape_null", "{'t':$Inull,'data_offsets':[0,16]}}", 16, 0, REJECT},
    {"e42_offsets_one", "{'t':$I[2,2],'data_offsets':[16]}}", 16, 0, REJECT},
    {"e43_offsets_three", "{'t':$I[2,2],'data_offsets':[0,16,16]}}", 16, 0, REJECT},
    {"e44_offsets_negative", "{'t':$I[2,2],'data_offsets':[-16,0]}}", 16, 0, REJECT},
    {"e45_offsets_reversed", "{'t':$I[2,2],'data_offsets':[16,0]}}", 16, 0, REJECT},
    {"e46_first_offset_nonzero", "{'t':$I[2,2],'data_offsets':[4,20]}}", 20, 0, REJECT},
    {"e47_hole", "{'a':$I[1],'data_offsets':[0,4]},'b':$I[1],'data_offsets':[8,12]}}", 12, 0, REJECT},
    {"e48_overlap_partial", "{'a':$I[2],'data_offsets':[0,8]},'b':$I[2],'data_offsets':[4,12]}}", 12, 0, REJECT},
    {"e49_overlap_full", "{'a':$I[2],'data_offsets':[0,8]},'b':$I[2],'data_offsets':[0,8]}}", 8, 0, REJECT},
    {"e50_size_mismatch_small", "{'t':$I[2,2],'data_offsets':[0,4]}}", 4, 0, REJECT},
    {"e51_size_mismatch_big", "{'t':$I[2,2],'data_offsets':[0,20]}}", 20, 0, REJECT},
    {"e52_data_truncated", "{$T}", 14, 0, REJECT},
    {"e53_data_extra", "{$T}", 17, 0, REJECT},
    {"e54_no_tensors_but_data", "{}", 1, 0, REJECT},
    {"e55_overflow_shape", "{'t':$I[2,18446744073709551614],'data_offsets':[0,16]}}", 16, 0, REJECT},
    {"e56_overflow_bits", "{'t':$I[2,9223372036854775807],'data_offsets':[0,16]}}", 16, 0, REJECT},
    {"e57_overflow_bits_not_bytes",
     "{'t':{'dtype':'U8','shape':[4611686018427387904],'data_offsets':[0,4611686018427387904]}}", 0, 0, REJECT},
    {"e58_bits_wrap_to_16bytes",
     "{'t':{'dtype':'U8','shape':[2305843009213693954],'data_offsets':[0,16]}}", 16, 0, REJECT},
    {"e59_offset_end_u64max",
     "{'t':{'dtype':'U8','shape':[18446744073709551615],'data_offsets':[0,18446744073709551615]}}", 0, 0, REJECT},
    {"e60_end_near_max_U8_2e60",
     "{'t':{'dtype':'U8','shape':[2305843009213693951],'data_offsets':[0,2305843009213693951]}}", 0, 0, REJECT},
    {"e61_F4_odd", "{'t':{'dtype':'F4','shape':[1,3],'data_offsets':[0,2]}}", 2, 0, REJECT},
    {"e62_F4_scalar", "{'t':{'dtype':'F4','shape':[],'data_offsets':[0,1]}}", 1, 0, REJECT},
    {"e63_F6_not_mult", "{'t':{'dtype':'F6_E2M3','shape':[5],'data_offsets':[0,4]}}", 4, 0, REJECT},
    {"e64_info_is_string", "{'t':'x'}", 0, 0, REJECT},
    {"e65_info_null", "{'t':null}", 0, 0, REJECT},
    {"e66_info_number", "{'t':1}", 0, 0, REJECT},
    {"e67_lone_surrogate", "{'\\ud800':$I[2,2],'data_offsets':[0,16]}}", 16, 0, REJECT},
    {"e68_raw_control_char", "{'a\nb':$I[2,2],'data_offsets':[0,16]}}", 16, 0, REJECT},
    {"e69_deep_nesting_unknown_field", "{'t':$I[2,2],'data_offsets':[0,16],'x':$[$]}}", 16, 0, REJECT},
    {"e70_nan_literal", "{'t':$I[NaN],'data_offsets':[0,16]}}", 16, 0, REJECT},
    {"e71_plus_sign", "{'t':$I[+2,2],'data_offsets':[0,16]}}", 16, 0, REJECT},
    {"e72_hex", "{'t':$I[0x2,2],'data_offsets':[0,16]}}", 16, 0, REJECT},
    {"e73_neg_zero_offset", "{'t':$I[2,2],'data_offsets':[-0,16]}}", 16, 0, REJECT},
    {"e74_zero_size_mid_inside", "{'a':$I[2],'data_offsets':[0,8]},'z':$I[0],'data_offsets':[4,4]}}", 8, 0, REJECT},
    {"e75_zero_size_at_end", "{'a':$I[2],'data_offsets':[0,8]},'z':$I[0],'data_offsets':[8,8]}}", 8, 0, 2},
    {"e76_escaped_dup_name", "{$T,'\\u0074':$I[2,2],'data_offsets':[0,16]}}", 16, 0, REJECT},
    {"e77_dtype_object_enum", "{'t':{'dtype':{'I32':null},'shape':[2,2],'data_offsets':[0,16]}}", 16, 0, REJECT},
    {"e78_dup_name_first_zero_sized", "{'t':$I[0],'data_offsets':[0,0]},$T}", 16, 0, REJECT},
    {"e79_offsets_object", "{'t':$I[2,2],'data_offsets':{'0':0,'1':16}}}", 16, 0, REJECT},
    {"e80_f6_bits_ok_3bytes_for_4", "{'t':{'dtype':'F6_E3M2','shape':[2,2],'data_offsets':[0,3]}}", 3, 0, 1},
    {"e81_dup_meta_escaped", "{'\\u005f_metadata__':{'a':'b'},$T}", 16, 0, 1},
    {"e82_big_meta_only", "{'__metadata__':{'a':'b'}}", 0, 0, 0},
    {"e83_whitespace_only", "    ", 0, 0, REJECT},
    {"e84_surrogate_pair_ok", "{'\\ud83d\\ude00':$I[2,2],'data_offsets':[0,16]}}", 16, 0, 1},
    {"e85_two_objects", "{}{}", 0, 0, REJECT},
    {"e87_U8_bits_wrap_to_128bits",
     "{'t':{'dtype':'U8','shape':[2305843009213693968],'data_offsets':[0,16]}}", 16, 0, REJECT},
    {"e88_I32_bytes_wrap_to_16", "{'t':$I[4611686018427387908],'data_offsets':[0,16]}}", 16, 0, REJECT},
    {"e89_shape_product_wraps_to_16",
     "{'t':{'dtype':'U8','shape':[16,1152921504606846977],'data_offsets':[0,16]}}", 16, 0, REJECT},
    {"e90_begin_plus_size_wraps",
     "{'t':{'dtype':'U8','shape':[16],'data_offsets':[18446744073709551608,8]}}", 16, 0, REJECT},
};

static void expand_header(const char *from, buf *out) {
    for (const char *p = from; *p; p++) {
        if (*p != '$') {
            buf_add(out, *p == '\'' ? "\"" : *p == '`' ? "'" : p, 1);
            continue;
        }
        p++;
        if (*p == 'T') buf_text(out, "\"t\":{\"dtype\":\"I32\",\"shape\":[2,2],\"data_offsets\":[0,16]}");
        else if (*p == 'I') buf_text(out, "{\"dtype\":\"I32\",\"shape\":");
        else if (*p == '0') buf_add(out, "", 1);
        else memset(buf_add(out, NULL, 200), *p, 200);
    }
}

// Reads the file and checks the verdict.
static void check_container(const char *name, int fd, int tensors) {
    tensor_table table = {0};
    struct stat info;
    mote_error err = {0};
    int code = fstat(fd, &info) ? -1 : safetensors_read(&table, fd, (uint64_t)info.st_size, 0, "x.safetensors", &err);
    if (tensors == REJECT) {
        CHECK(code == MOTE_EFORMAT, "%s: code %d, should be refused", name, code);
        CHECK(err.code == code && !strncmp(err.message, "x.safetensors: ", 15) && err.message[15] &&
              !strchr(err.message, '\n'), "%s: message <%s>", name, err.message);
    } else {
        CHECK(!code && table_count(&table) == (size_t)tensors, "%s: code %d, %zu tensors, not %d: %s", name, code,
              table_count(&table), tensors, err.message);
    }
    table_free(&table);
}

static void check_container_bytes(const char *name, uint64_t n, const buf *header, int data, int tensors) {
    FILE *f = tmpfile();
    unsigned char start[8];
    for (int i = 0; i < 8; i++) start[i] = (unsigned char)(n >> 8 * i);
    if (!CHECK(f && fwrite(start, 8, 1, f) == 1 && fwrite(header->data, 1, header->size, f) == header->size &&
               !fflush(f) && !ftruncate(fileno(f), 8 + (off_t)header->size + data), "%s: tmpfile", name)) return;
    check_container(name, fileno(f), tensors);
    fclose(f);
}

static void test_container(void) {
    int cases = 0;
    buf header = {0};
    for (size_t i = 0; i < COUNT(container_cases); i++, cases++) {
        header.size = 0;
        expand_header(container_cases[i].header, &header);
        uint64_t n = container_cases[i].n ? container_cases[i].n : header.size;
        check_container_bytes(container_cases[i].name, n, &header, container_cases[i].data, container_cases[i].tensors);
    }
    for (int i = 0; i < TYPE_COUNT; i++) {
        char text[128];
        int bits = container_types[i].bits;
        if (bits < 8) continue;                                                 // v21, v22
        header.size = 0;
        snprintf(text, sizeof text, "{\"t\":{\"dtype\":\"%s\",\"shape\":[3],\"data_offsets\":[0,%d]}}",
                 container_types[i].name, 3 * bits / 8);
        buf_text(&header, text);
        check_container_bytes(text, header.size, &header, 3 * bits / 8, 1);
        cases++;
    }
    for (int size = 0; size <= 7; size += 7, cases++) {                         // e01, e02
        FILE *f = tmpfile();
        if (CHECK(f && fwrite("\2\0\0\0\0\0\0", 1, (size_t)size, f) == (size_t)size && !fflush(f), "tmpfile"))
            check_container("too short", fileno(f), REJECT);
        if (f) fclose(f);
    }
    header.size = 0;                                                            // v30, e86
    memset(buf_add(&header, NULL, MAX_HEADER + 1), ' ', MAX_HEADER + 1);
    memcpy(header.data, "{}", 2);
    header.size = MAX_HEADER;
    check_container_bytes("v30_n_exactly_100000000", MAX_HEADER, &header, 0, 0);
    header.size = MAX_HEADER + 1;
    check_container_bytes("e86_n_100000001_real", MAX_HEADER + 1, &header, 0, REJECT);
    cases += 2;
    CHECK(cases == 134, "%d cases, not 134", cases);
    buf_free(&header);
}

// The same cases as the generator that came with the test data writes them, with the reference reader's own verdicts.
static void test_container_generator(void) {
    static const char *const stricter[] = {"v13_", "v15_", "v16_", "e20_", "e76_", "e77_", "e78_"};
    const char *tools = "../shared/tools/formats";
    buf verdicts = {0};
    char command[1024];
    mote_error err;
    int files = 0;
    snprintf(command, sizeof command, "python3 %s/st_gen_cases.py %s >/dev/null 2>&1", tools, temp_dir);
    temp_empty();
    if (access("../shared/tools/formats/st_gen_cases.py", R_OK) || system(command)) {
        test_skip("the generator of safetensors cases needs the shared tools and python3");
        return;
    }
    CHECK(!read_file(tools, "st_reference_results.tsv", &verdicts, &err), "st_reference_results.tsv");
    for (char *line = verdicts.data, *end; line && (end = strchr(line, '\n')); line = end + 1) {
        *end = 0;
        char *tab = strchr(line, '\t');
        if (!tab) continue;
        *tab = 0;
        int tensors = REJECT, fd = open(temp_path(line), O_RDONLY);
        if (sscanf(tab + 1, "OK n=%d", &tensors) != 1) tensors = REJECT;
        for (size_t i = 0; i < COUNT(stricter); i++)
            if (!strncmp(line, stricter[i], strlen(stricter[i]))) tensors = REJECT;
        if (CHECK(fd >= 0, "%s is not there", line)) {
            check_container(line, fd, tensors);
            close(fd);
            files++;
        }
    }
    CHECK(files == 134, "%d files, not 134", files);
    buf_free(&verdicts);
    temp_empty();
}

// ---- 2. Checkpoint folders made wrong -------------------------------------------------------------------------------
#define GATE "model.layers.0.mlp.gate.weight"
#define O_PROJ "model.layers.0.self_attn.o_proj."
#define EXPERT "model.layers.1.mlp.experts.0.gate_proj.weight"
#define HEAD_FROM "'lm_head.weight': 'outside.safetensors'"

static void test_tensors(void) {
    const wrong_folder cases[] = {
        {"missing", TIED, DROP, F, "model.layers.1.linear_attn.norm.weight", "", "", BAD, SAME,
         {"model.layers.1.linear_attn.norm.weight", "missing", "[20]"}},
        {"extra", TIED, ADD, F, "model.layers.0.extra.weight", "F32", "2,2", BAD, SAME,
         {"model.layers.0.extra.weight", F}},
        {"a layer too many", TIED, ADD, F, "model.layers.2.mlp.gate.weight", "F32", "3,28", BAD, SAME,
         {"layers.2.mlp.gate", F}},
        {"line feed in a name", TIED, ADD, F, "a\\u000ab", "F32", "2", BAD, SAME, {"a b", F}},
        {"long name", TIED, ADD, F,
         "\\u00e9\\u00e9\\u00e9\\u00e9\\u00e9\\u00e9\\u00e9\\u00e9\\u00e9\\u00e9\\u00e9\\u00e9", "F32", "2", BAD,
         SAME, {F}},
        {"rows", TIED, RETYPE, F, GATE, "F32", "4,28", BAD, SAME, {F, GATE, "[4, 28]"}},
        {"rows expected", TIED, RETYPE, F, GATE, "F32", "4,28", BAD, SAME, {"[3, 28]"}},
        {"transposed", TIED, RETYPE, F, GATE, "F32", "28,3", BAD, SAME, {F, GATE, "[28, 3]"}},
        {"flat", TIED, RETYPE, F, GATE, "F32", "84", BAD, SAME, {F, GATE, "[84]"}},
        {"scalar", TIED, RETYPE, F, GATE, "F32", "", BAD, SAME, {F, GATE, "[]"}},
        {"three dimensions", TIED, RETYPE, F, GATE, "F32", "3,28,1", BAD, SAME, {F, GATE, "[3, 28, 1]"}},
        {"seven dimensions", TIED, RETYPE, F, GATE, "F32", "3,28,1,1,1,1,1", BAD, SAME, {F, GATE,
         "[3, 28, 1, 1, ...]"}},
        {"empty", TIED, RETYPE, F, GATE, "F32", "0,28", BAD, SAME, {F, GATE, "[0, 28]"}},
        {"vector too short", TIED, RETYPE, F, "model.norm.weight", "F32", "27", BAD, SAME, {F, "model.norm.weight",
         "[28]"}},
        {"conv1d in two dimensions", TIED, RETYPE, F, "model.layers.1.linear_attn.conv1d.weight", "F32", "88,4", BAD,
         SAME, {F, "conv1d", "[88, 1, 4]"}},
        {"I32", TIED, RETYPE, F, GATE, "I32", "3,28", BAD, SAME, {F, GATE, "I32"}},
        {"F64", TIED, RETYPE, F, GATE, "F64", "3,28", BAD, SAME, {F, GATE, "F64"}},
        {"U8", TIED, RETYPE, F, GATE, "U8", "3,28", BAD, SAME, {F, GATE, "U8"}},
        {"F8_E5M2", TIED, RETYPE, F, GATE, "F8_E5M2", "3,28", NOT, SAME, {F, GATE, "F8_E5M2"}},
        {"FP8 vector", TIED, RETYPE, F, "model.norm.weight", "F8_E4M3", "28", NOT, SAME, {F, "model.norm.weight",
         "F8_E4M3"}},
        {"FP8 without a scale", TIED, RETYPE, F, GATE, "F8_E4M3", "3,28", BAD, SAME, {GATE "_scale_inv", "missing",
         "[1, 1]"}},
        {"another float type", TIED, RETYPE, F, GATE, "BF16", "3,28", OK, SAME, {NULL}},
        {"qweight", TIED, RENAME, F, O_PROJ "weight", O_PROJ "qweight", "", BAD, SAME, {O_PROJ "qweight",
         "I32", "[28, 32] in F32"}},
        {"weight_packed", TIED, RENAME, F, O_PROJ "weight", O_PROJ "weight_packed", "", BAD, SAME,
         {O_PROJ "weight_packed", "U8 or I32"}},
        {"a scale behind BF16", TIED, ADD, F, GATE "_scale_inv", "F32", "1,1", BAD, SAME, {F, GATE "_scale_inv"}},
        {"tied with lm_head", TIED, ADD, F, "lm_head.weight", "F32", "64,28", OK, SAME, {NULL}},
        {"vision", TIED, ADD, F, "model.visual.blocks.0.attn.qkv.weight", "F32", "2,2", OK, SAME, {"vision",
         "ignored"}},
        {"no mtp.fc", TIED, DROP, F, "mtp.fc.weight", "", "", OK, SAME, {"MTP", "ignored"}},
        {"MTP in part", TIED, DROP, F, "mtp.norm.weight", "", "", OK, SAME, {"MTP layer left out", "mtp.norm.weight", "missing"}},
        {"scale missing", FP8, DROP, F, EXPERT "_scale_inv", "", "", BAD, SAME, {EXPERT "_scale_inv", "missing"}},
        {"scale of other blocks", FP8, RETYPE, F, EXPERT "_scale_inv", "F32", "4,4", BAD, SAME, {F,
         EXPERT "_scale_inv", "[4, 4]"}},
        {"scale for each row", FP8, RETYPE, F, EXPERT "_scale_inv", "F32", "1", BAD, SAME, {F, EXPERT "_scale_inv",
         "[1]"}},
        {"scale in U8", FP8, RETYPE, F, EXPERT "_scale_inv", "U8", "2,1", NOT, SAME, {F, EXPERT "_scale_inv", "U8"}},
        {"NaN scale", FP8, POKE, F, EXPERT "_scale_inv", "\0\0\xC0\x7F", "4", BAD, FINE, {F, EXPERT "_scale_inv",
         "finite"}},
        {"Inf scale", FP8, POKE, F, EXPERT "_scale_inv", "\0\0\x80\x7F", "4", BAD, FINE, {F, EXPERT "_scale_inv",
         "finite"}},
        {"huge scale", FP8, POKE, F, EXPERT "_scale_inv", "\0\0\0\x43", "4", BAD, FINE,
         {F, EXPERT "_scale_inv", "128"}},
        {"-Inf scale", FP8, POKE, F, EXPERT "_scale_inv", "\0\0\x80\xFF", "4", BAD, FINE, {F, EXPERT "_scale_inv",
         "finite"}},
        {"NaN code 7F", FP8, POKE, F, EXPERT, "\0\x7F", "2", BAD, FINE, {F, EXPERT, "NaN"}},
        {"NaN code FF", FP8, POKE, F, EXPERT, "\xFF", "1", BAD, FINE, {F, EXPERT, "NaN"}},
        {"largest codes", FP8, POKE, F, EXPERT, "\x7E\xFE", "2", OK, SAME, {NULL}},
        {"NaN BF16 scale", SHARDS, POKE, "mtp.safetensors", "mtp.layers.0.self_attn.k_proj.weight_scale_inv",
         "\xC0\x7F", "2", BAD, FINE, {"mtp.safetensors", "k_proj.weight_scale_inv", "finite"}},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        const wrong_folder *w = &cases[i];
        if (!temp_fixture(w->fixture)) continue;
        apply_edit(w);
        check_open(w->title, MOTE_WEIGHTS_ONLY, w->code, w->needles);
        check_plan(w->title, w->plan == FINE ? OK : w->code, w->needles);
    }
}

// The same for quantised layouts: a tensor missing, of another shape or type, or with numbers that are not allowed.
#define NVFP4 "nvfp4-fp8-tensor"
#define MIXED "ct-nvfp4-fp8-int4"
#define INT4 "gptq-awq-int4"
#define UP "model.language_model.layers.0.mlp.experts.0.up_proj."
#define UP_FLAT "model.layers.0.mlp.experts.0.up_proj."
#define SHARED_UP "model.layers.0.mlp.shared_expert.up_proj."
#define GPTQ_UP "model.layers.0.mlp.experts.0.up_proj."
#define AWQ_Z "model.layers.0.linear_attn.in_proj_z."
#define Q_PROJ "model.language_model.layers.1.self_attn.q_proj."
#define K_SCALE "model.language_model.layers.1.self_attn.k_proj.k_scale"

static void test_quantised(void) {
    const wrong_folder cases[] = {
        {"no weight_scale_2", NVFP4, DROP, F, UP "weight_scale_2", "", "", BAD, SAME, {UP "weight_scale_2", "missing", "[]"}},
        {"no weight_scale", NVFP4, DROP, F, UP "weight_scale", "", "", BAD, SAME, {UP "weight_scale is missing", "[48, 4]"}},
        {"no codes", NVFP4, DROP, F, UP "weight", "", "", BAD, SAME, {UP "weight is missing", "beside " UP "weight_scale"}},
        {"factor in BF16", NVFP4, RETYPE, F, UP "weight_scale_2", "BF16", "", BAD, SAME, {F, UP "weight_scale_2", "in BF16"}},
        {"factor of one", NVFP4, RETYPE, F, UP "weight_scale_2", "F32", "1", OK, SAME, {NULL}},
        {"factor for each row", NVFP4, RETYPE, F, UP "weight_scale_2", "F32", "48", BAD, SAME, {F, UP "weight_scale_2",
         "[48]"}},
        {"scales of 32", NVFP4, RETYPE, F, UP "weight_scale", "F8_E4M3", "48,2", BAD, SAME, {F, UP "weight_scale", "[48, 4]"}},
        {"scales in U8", NVFP4, RETYPE, F, UP "weight_scale", "U8", "48,4", NOT, SAME, {F, UP "weight_scale", "U8"}},
        {"codes of whole columns", NVFP4, RETYPE, F, UP "weight", "U8", "48,64", BAD, SAME, {F, UP "weight", "[48, 64]"}},
        {"NaN block scale", NVFP4, POKE, F, UP "weight_scale", "\x38\x7f", "2", BAD, FINE, {F, UP "weight_scale: scale 1",
         "NaN"}},
        {"-NaN block scale", NVFP4, POKE, F, UP "weight_scale", "\xff", "1", BAD, FINE, {F, UP "weight_scale: scale 0", "NaN"}},
        {"negative block scale", NVFP4, POKE, F, UP "weight_scale", "\xb8", "1", BAD, FINE, {F, UP "weight_scale", "-1"}},
        {"NaN factor", NVFP4, POKE, F, UP "weight_scale_2", "\0\0\xC0\x7F", "4", BAD, FINE, {F, UP "weight_scale_2", "nan"}},
        {"Inf factor", NVFP4, POKE, F, UP "weight_scale_2", "\0\0\x80\x7F", "4", BAD, FINE, {F, UP "weight_scale_2", "inf"}},
        {"negative factor", NVFP4, POKE, F, UP "weight_scale_2", "\0\0\x80\xBF", "4", BAD, FINE, {F, UP "weight_scale_2",
         "-1"}},
        {"any codes", NVFP4, POKE, F, UP "weight", "\x88\xff\x7f", "3", OK, SAME, {NULL}},
        {"two formats at once", NVFP4, ADD, F, UP "weight_scale_inv", "F32", "1,1", BAD, SAME, {F, UP "weight_scale_inv",
         "another format"}},
        {"two codes at once", NVFP4, ADD, F, UP "weight_packed", "U8", "48,32", BAD, SAME, {F, UP "weight_packed",
         "another format"}},
        {"another input_scale", NVFP4, ADD, F, UP "input_scale", "F32", "", OK, SAME, {NULL}},
        {"pre_quant_scale", NVFP4, ADD, F, UP "pre_quant_scale", "BF16", "64", BAD, SAME, {F, UP "pre_quant_scale"}},
        {"FP8 without a scale", NVFP4, DROP, F, Q_PROJ "weight_scale", "", "", BAD, SAME, {Q_PROJ "weight_scale", "missing"}},
        {"FP8 by thirds", NVFP4, RETYPE, F, Q_PROJ "weight_scale", "F32", "3,1", BAD, SAME, {F, Q_PROJ "weight_scale",
         "[3, 1]"}},
        {"FP8 by row", NVFP4, RETYPE, F, Q_PROJ "weight_scale", "F32", "128", OK, SAME, {NULL}},
        {"negative FP8 scale", NVFP4, POKE, F, Q_PROJ "weight_scale", "\0\0\x80\xBF", "4", BAD, FINE, {F, Q_PROJ "weight_scale",
         "-1"}},
        {"NaN FP8 scale", NVFP4, POKE, F, Q_PROJ "weight_scale", "\0\0\xC0\x7F", "4", BAD, FINE, {F, Q_PROJ "weight_scale",
         "finite"}},
        {"K scale of two", NVFP4, RETYPE, F, K_SCALE, "F32", "2", BAD, SAME, {F, K_SCALE, "[2]"}},
        {"K scale in BF16", NVFP4, RETYPE, F, K_SCALE, "BF16", "1", BAD, FINE, {F, K_SCALE, "positive"}},
        {"K scale of nothing", NVFP4, POKE, F, K_SCALE, "\0\0\0\0", "4", BAD, FINE, {F, K_SCALE, "positive"}},
        {"K scale by another name", NVFP4, RENAME, F, K_SCALE, "model.language_model.layers.1.self_attn.k_scale", "", OK, SAME,
         {NULL}},
        {"two K scales", NVFP4, ADD, F, "model.language_model.layers.1.self_attn.k_scale", "F32", "1", BAD, SAME, {F,
         "self_attn.k_scale"}},
        {"Q scale", NVFP4, ADD, F, "model.language_model.layers.1.self_attn.q_scale", "F32", "1", OK, SAME, {NULL}},
        {"no K scale", NVFP4, DROP, F, K_SCALE, "", "", OK, SAME, {NULL}},
        {"says plain", NVFP4, REPLACE, CONFIG, "'mtp*'", "'model.language_model.layers.0.mlp.*'", "", OK, SAME,
         {"config.json says", "15 matrices", "experts.0.gate_proj is NVFP4"}},
        {"no weight_global_scale", MIXED, DROP, F, UP_FLAT "weight_global_scale", "", "", BAD, SAME,
         {UP_FLAT "weight_global_scale", "missing"}},
        {"divided by zero", MIXED, POKE, F, UP_FLAT "weight_global_scale", "\0\0\0\0", "4", BAD, FINE,
         {F, UP_FLAT "weight_global_scale", "inf"}},
        {"no weight_shape", MIXED, DROP, F, SHARED_UP "weight_shape", "", "", BAD, SAME, {SHARED_UP "weight_shape", "missing"}},
        {"another weight_shape", MIXED, POKE, F, SHARED_UP "weight_shape", "\x3f", "1", NOT, FINE, {F, SHARED_UP "weight_shape",
         "[63, 64], expected [64, 64]"}},
        {"groups of 21", MIXED, RETYPE, F, SHARED_UP "weight_scale", "BF16", "64,3", NOT, SAME, {F, SHARED_UP "weight_scale",
         "groups of 32, 64, 128"}},
        {"groups of 16", MIXED, RETYPE, F, SHARED_UP "weight_scale", "BF16", "64,4", NOT, SAME, {F, SHARED_UP "weight_scale"}},
        {"no groups", MIXED, RETYPE, F, SHARED_UP "weight_scale", "BF16", "64,0", NOT, SAME, {F, SHARED_UP "weight_scale"}},
        {"zero points of one group", MIXED, RETYPE, F, SHARED_UP "weight_zero_point", "I32", "8,1", BAD, SAME,
         {F, SHARED_UP "weight_zero_point", "[8, 2]"}},
        {"symmetric", MIXED, DROP, F, SHARED_UP "weight_zero_point", "", "", OK, SAME, {NULL}},
        {"NaN INT4 scale", MIXED, POKE, F, SHARED_UP "weight_scale", "\xC0\x7F", "2", BAD, FINE, {F, SHARED_UP "weight_scale",
         "nan"}},
        {"negative INT4 scale", MIXED, POKE, F, SHARED_UP "weight_scale", "\0\xBC", "2", OK, SAME, {NULL}},
        {"no qzeros", INT4, DROP, F, GPTQ_UP "qzeros", "", "", BAD, SAME, {GPTQ_UP "qzeros", "missing"}},
        {"no scales", INT4, DROP, F, GPTQ_UP "scales", "", "", BAD, SAME, {GPTQ_UP "scales", "missing"}},
        {"no g_idx", INT4, DROP, F, GPTQ_UP "g_idx", "", "", OK, SAME, {NULL}},
        {"g_idx out of order", INT4, POKE, F, GPTQ_UP "g_idx", "\1", "1", NOT, FINE, {F, GPTQ_UP "g_idx", "desc_act"}},
        {"g_idx of a half", INT4, RETYPE, F, GPTQ_UP "g_idx", "I32", "64", BAD, SAME, {F, GPTQ_UP "g_idx", "[128]"}},
        {"8 bits", INT4, RETYPE, F, GPTQ_UP "qweight", "I32", "32,32", BAD, SAME, {F, GPTQ_UP "qweight", "[32, 32]"}},
        {"Inf F16 scale", INT4, POKE, F, GPTQ_UP "scales", "\0\x7C", "2", BAD, FINE, {F, GPTQ_UP "scales", "inf"}},
        {"codes beside", INT4, ADD, F, GPTQ_UP "weight", "BF16", "32,128", BAD, SAME, {F, "another format"}},
        {"AWQ zeros missing", INT4, DROP, F, AWQ_Z "qzeros", "", "", BAD, SAME, {AWQ_Z "qzeros", "missing"}},
        {"AWQ groups", INT4, RETYPE, F, AWQ_Z "scales", "F16", "5,64", BAD, SAME, {F, AWQ_Z "scales", "[4, 64]"}},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        const wrong_folder *w = &cases[i];
        if (!temp_fixture(w->fixture)) continue;
        apply_edit(w);
        check_open(w->title, MOTE_WEIGHTS_ONLY, w->code, w->needles);
        check_plan(w->title, w->plan == FINE ? OK : w->code, w->needles);
    }
}

static void test_shards(void) {
    static const char shard[] = "layers-0.safetensors", outside[] = "outside.safetensors";
    const wrong_folder cases[] = {
        {"cut by a byte", SHARDS, CUT, outside, "1", "", "", BAD, SAME, {outside, "truncated"}},
        {"cut in the header", SHARDS, CUT, outside, "45200", "", "", BAD, SAME, {outside, "truncated"}},
        {"cut in the length", SHARDS, CUT, outside, "45436", "", "", BAD, SAME, {outside}},
        {"empty shard", SHARDS, TEXT, outside, "", "", "", BAD, SAME, {outside}},
        {"shard missing", SHARDS, REMOVE, outside, "", "", "", MOTE_EIO, SAME, {outside}},
        {"no shard is there", TIED, REMOVE, F, "", "", "", MOTE_EIO, FINE, {F}},
        {"a parent folder", SHARDS, REPLACE, INDEX, HEAD_FROM, "'lm_head.weight': '../outside.safetensors'", "", BAD,
         SAME, {INDEX, "../outside.safetensors"}},
        {"an absolute name", SHARDS, REPLACE, INDEX, HEAD_FROM, "'lm_head.weight': '/etc/passwd'", "", BAD, SAME,
         {INDEX, "/etc/passwd"}},
        {"an empty name", SHARDS, REPLACE, INDEX, HEAD_FROM, "'lm_head.weight': ''", "", BAD, SAME, {INDEX}},
        {"NUL in a file name", SHARDS, REPLACE, INDEX, HEAD_FROM, "'lm_head.weight': 'a\\u0000b'", "", BAD, SAME,
         {INDEX}},
        {"NUL in a tensor's name", SHARDS, REPLACE, INDEX, HEAD_FROM, "'a\\u0000b': 'outside.safetensors'", "", BAD,
         SAME, {INDEX}},
        {"a number for a file", SHARDS, REPLACE, INDEX, HEAD_FROM, "'lm_head.weight': 1", "", BAD, SAME, {INDEX}},
        {"mapped to the wrong file", SHARDS, REPLACE, INDEX, HEAD_FROM, "'lm_head.weight': 'layers-0.safetensors'",
         "", BAD, SAME, {shard, "lm_head.weight", "missing"}},
        {"mapped and nowhere", SHARDS, REPLACE, INDEX, HEAD_FROM, HEAD_FROM ", 'ghost': 'mtp.safetensors'", "", BAD,
         SAME, {"mtp.safetensors", "ghost", "missing"}},
        {"not mapped", SHARDS, REPLACE, INDEX, HEAD_FROM ",", "", "", OK, SAME, {NULL}},
        {"in two files", SHARDS, ADD, shard, "lm_head.weight", "BF16", "1,1", OK, SAME, {NULL}},
        {"a file nobody lists", SHARDS, TEXT, "extra.safetensors", "garbage", "", "", OK, SAME, {NULL}},
        {"index cut", SHARDS, CUT, INDEX, "20", "", "", BAD, SAME, {INDEX, "JSON"}},
        {"index empty", SHARDS, TEXT, INDEX, "", "", "", BAD, SAME, {INDEX}},
        {"index a list", SHARDS, TEXT, INDEX, "[]", "", "", BAD, SAME, {INDEX}},
        {"index a link to nothing", TIED, LINK, INDEX, "", "", "", MOTE_EIO, SAME, {INDEX}},
        {"weights a link to nothing", TIED, LINK, F, "", "", "", MOTE_EIO, SAME, {F}},
        {"no weight_map", SHARDS, TEXT, INDEX, "{}", "", "", BAD, SAME, {INDEX, "weight_map"}},
        {"weight_map a list", SHARDS, TEXT, INDEX, "{'weight_map':[]}", "", "", BAD, SAME, {INDEX, "weight_map"}},
        {"mapped and nowhere, of the MTP layer", SHARDS, REPLACE, INDEX, HEAD_FROM, HEAD_FROM ", 'mtp.ghost': 'mtp.safetensors'",
         "", OK, SAME, {NULL}},
        {"mapped to a file that is not there, of the vision tower", SHARDS, REPLACE, INDEX, HEAD_FROM,
         HEAD_FROM ", 'model.visual.x': 'vision.safetensors'", "", OK, SAME, {"1 vision tensors ignored"}},
        {"an MTP tensor that the index lists", SHARDS, DROP, "mtp.safetensors", "mtp.norm.weight", "", "", OK, SAME,
         {"MTP layer left out", "tensor mtp.norm.weight is missing"}},
        {"the first MTP tensor", SHARDS, DROP, "mtp.safetensors", "mtp.fc.weight", "", "", OK, SAME, {"MTP tensors ignored"}},
        {"the last MTP tensor", SHARDS, DROP, "mtp.safetensors", "mtp.layers.0.mlp.shared_expert.down_proj.weight", "", "", OK,
         SAME, {"MTP layer left out", "tensor mtp.layers.0.mlp.shared_expert.down_proj.weight is missing"}},
        {"the MTP layer's shard", SHARDS, REMOVE, "mtp.safetensors", "", "", "", OK, SAME, {"MTP tensors ignored"}},
        {"an MTP tensor of another shape", SHARDS, RETYPE, "mtp.safetensors", "mtp.norm.weight", "BF16", "3", BAD, SAME,
         {"mtp.safetensors", "mtp.norm.weight", "shape"}},
        {"weight_map empty", SHARDS, TEXT, INDEX, "{'weight_map':{}}", "", "", BAD, SAME, {"missing"}},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        const wrong_folder *w = &cases[i];
        if (!temp_fixture(w->fixture)) continue;
        apply_edit(w);
        check_open(w->title, MOTE_WEIGHTS_ONLY, w->code, w->needles);
        check_plan(w->title, w->plan == FINE ? OK : w->code, w->needles);
    }
    const char *wrong_copy[3] = {shard, "lm_head.weight", "[1, 1]"};
    const char *vision[3] = {"vision tensors ignored"}, *none[3] = {NULL};
    temp_fixture(SHARDS);                                     // of two copies, the index decides: now for the bad one
    apply_edit(&cases[15]);
    temp_replace(INDEX, "lm_head.weight\": \"outside", "lm_head.weight\": \"layers-0");
    check_open("the map decides", MOTE_WEIGHTS_ONLY, BAD, wrong_copy);
    temp_fixture("bf16-as-3.5");
    check_open("vision tensors", MOTE_WEIGHTS_ONLY, OK, vision);
    temp_empty();
    check_open("an empty folder", MOTE_WEIGHTS_ONLY, MOTE_EIO, none);
    temp_fixture(TIED);
    unlink(temp_path(F));
    mkdir(temp_path(F), 0700);
    check_open("a folder for a shard", MOTE_WEIGHTS_ONLY, MOTE_EIO, none);
}

// The same logits as those of the fixture, and this many MTP layers.
static void check_logits(const char *title, const char *fixture, int mtp) {
    char dir[256];
    const int32_t ids[] = {1, 5, 9, 2, 40};
    snprintf(dir, sizeof dir, "tests/fixtures/%s", fixture);
    mote_model *want = model_of(dir, MOTE_WEIGHTS_ONLY), *got = model_of(temp_dir, MOTE_WEIGHTS_ONLY);
    mote_session *a = session_of(want, .context = 64), *b = session_of(got, .context = 64);
    EXPECT(MOTE_OK, mote_feed(a, ids, COUNT(ids), &failure));
    EXPECT(MOTE_OK, mote_feed(b, ids, COUNT(ids), &failure));
    CHECK(same_logits(b, mote_logits(a), want->c.vocab), "%s: other logits", title);
    CHECK(mote_model_info(got)->mtp_layers == mtp, "%s: %d MTP layers", title, mote_model_info(got)->mtp_layers);
    for (int i = 0; i < 4; i++) {
        int32_t x, y;
        EXPECT(MOTE_OK, mote_step(a, NULL, &x, &failure));
        EXPECT(MOTE_OK, mote_step(b, NULL, &y, &failure));
        CHECK(x == y, "%s: token %d is %d, not %d", title, i, y, x);
    }
    mote_session_close(a);
    mote_session_close(b);
    mote_close(want);
    mote_close(got);
}

static void test_without_mtp(void) {
    static const wrong_folder lost = {"", SHARDS, DROP, "mtp.safetensors", "mtp.layers.0.self_attn.o_proj.weight", "", "", OK, SAME, {NULL}};
    temp_fixture(SHARDS);
    check_logits("all there", SHARDS, 1);
    apply_edit(&lost);
    check_logits("an MTP tensor lost", SHARDS, 0);
    unlink(temp_path("mtp.safetensors"));
    check_logits("the MTP shard lost", SHARDS, 0);
}

// Names that begin in another way.
static void test_prefixes(void) {
    static const struct { const char *fixture, *from, *to, *head; int mtp; } cases[] = {
        {TIED, "model.", "model.language_model.model.", "", 1}, {TIED, "model.", "language_model.model.", "", 1},
        {TIED, "model.", "", "", 1}, {"f16-all-delta", "model.", "language_model.model.", "language_model.", 0},
        {"bf16-as-3.6", "model.language_model.", "model.", "", 1}, {FP8, "model.", "llm.", "llm.", 1}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        if (!temp_fixture(cases[i].fixture)) return;
        parts *p = parts_read(F);
        for (int k = 0; k < p->n; k++) {
            char name[sizeof p->list[k].name];
            const int head = !strncmp(p->list[k].name, "lm_head.", 8);
            if (!head && strncmp(p->list[k].name, cases[i].from, strlen(cases[i].from))) continue;
            snprintf(name, sizeof name, "%s%.100s", head ? cases[i].head : cases[i].to, p->list[k].name + (head ? 0 : strlen(cases[i].from)));
            memcpy(p->list[k].name, name, sizeof name);
        }
        parts_write(p, F);
        parts_free(p);
        check_logits(cases[i].to, cases[i].fixture, cases[i].mtp);
    }
}

static int cancel_at_once(void *user) {
    (void)user;
    return 1;
}

static void test_cancel(void) {
    mote_options o = {0};
    mote_model *m = NULL;
    mote_error err = {0};
    o.parts = MOTE_WEIGHTS_ONLY;
    o.callbacks.cancel = cancel_at_once;
    temp_fixture(TIED);
    int code = mote_open(temp_dir, &o, &m, &err);
    CHECK(code == MOTE_ECANCELLED && !m && err.code == code, "cancel: code %d: %s", code, err.message);
    CHECK(mote_open(temp_dir, &o, &m, NULL) == MOTE_ECANCELLED && !m, "cancel without an error to fill");
}

// ---- 3. Tokenizer, template and generation_config.json made wrong ---------------------------------------------------

static const char DEMO[] = "models/demo", TOKENIZER[] = "tokenizer.json", GENERATION[] = "generation_config.json",
                  TEMPLATE[] = "chat_template.jinja", TOKENIZER_CONFIG[] = "tokenizer_config.json";

static int temp_tokenizer(void) {
    temp_empty();
    return temp_copy(DEMO, TOKENIZER);
}

static void check_render(const char *title, int code, const char *needle) {
    static const char request[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}";
    mote_options o = {0};
    mote_model *m;
    mote_error err = {0};
    char text[256];
    size_t n;
    o.parts = MOTE_TEXT_ONLY;
    if (!CHECK(!mote_open(temp_dir, &o, &m, &err), "%s: %s", title, err.message)) return;
    int got = mote_render(m, request, sizeof request - 1, text, sizeof text, &n, &err);
    CHECK(got == code && (!code || strstr(err.message, needle)), "%s: render: code %d, %s", title, got, err.message);
    mote_close(m);
}

static void test_text(void) {
    static const wrong_folder cases[] = {
        {"no tokenizer", "", REMOVE, TOKENIZER, "", "", "", MOTE_EIO, SAME, {TOKENIZER}},
        {"tokenizer cut", "", CUT, TOKENIZER, "4", "", "", BAD, SAME, {TOKENIZER, "JSON"}},
        {"tokenizer empty", "", TEXT, TOKENIZER, "", "", "", BAD, SAME, {TOKENIZER}},
        {"tokenizer a list", "", TEXT, TOKENIZER, "[]", "", "", BAD, SAME, {TOKENIZER}},
        {"generation cut", "", TEXT, GENERATION, "{'eos_token_id': ", "", "", BAD, SAME, {GENERATION, "JSON"}},
        {"generation a list", "", TEXT, GENERATION, "[]", "", "", BAD, SAME, {GENERATION}},
        {"generation: sampling of other types", "", TEXT, GENERATION,
         "{'temperature':'hot','top_k':-5,'top_p':1e999,'min_p':0.5,'do_sample':[]}", "", "", OK, SAME,
         {"temperature ignored", "top_k ignored", "top_p ignored"}},
        {"generation: nulls", "", TEXT, GENERATION, "{'eos_token_id':null,'temperature':null,'do_sample':null}", "", "", OK,
         SAME, {NULL}},
        {"generation: an id as text", "", TEXT, GENERATION, "{'eos_token_id':'x'}", "", "", BAD, SAME,
         {GENERATION, "eos_token_id"}},
        {"generation: text among ids", "", TEXT, GENERATION, "{'eos_token_id':[1,'x']}", "", "", BAD, SAME,
         {GENERATION, "eos_token_id"}},
        {"generation: a negative id", "", TEXT, GENERATION, "{'eos_token_id':-1}", "", "", BAD, SAME, {"eos_token_id"}},
        {"generation: a fraction", "", TEXT, GENERATION, "{'eos_token_id':[1e99]}", "", "", BAD, SAME, {"eos_token_id"}},
        {"generation: a large id", "", TEXT, GENERATION, "{'eos_token_id':[4294967297]}", "", "", BAD, SAME,
         {"eos_token_id"}},
        {"generation: 16 ids", "", TEXT, GENERATION, "{'eos_token_id':[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,16,1]}", "",
         "", OK, SAME, {NULL}},
        {"tokenizer a link to nothing", "", LINK, TOKENIZER, "", "", "", MOTE_EIO, SAME, {TOKENIZER}},
        {"generation a link to nothing", "", LINK, GENERATION, "", "", "", MOTE_EIO, SAME, {GENERATION}},
        {"template a link to nothing", "", LINK, TEMPLATE, "", "", "", MOTE_EIO, SAME, {TEMPLATE}},
        {"tokenizer_config a link to nothing", "", LINK, TOKENIZER_CONFIG, "", "", "", MOTE_EIO, SAME, {TOKENIZER_CONFIG}},
        {"template unknown", "", TEXT, TEMPLATE, "{{ messages }}", "", "", OK, SAME, {NULL}},
        {"tokenizer_config cut", "", TEXT, TOKENIZER_CONFIG, "{", "", "", BAD, SAME, {TOKENIZER_CONFIG, "JSON"}},
        {"template of other types", "", TEXT, TOKENIZER_CONFIG, "{'chat_template':[1,{},{'name':'default'},[]]}", "",
         "", OK, SAME, {NULL}},
        {"template a number", "", TEXT, TOKENIZER_CONFIG, "{'chat_template':1}", "", "", OK, SAME, {NULL}},
    };
    if (access("models/demo/tokenizer.json", R_OK)) {
        test_skip("models/demo is not there");
        return;
    }
    for (size_t i = 0; i < COUNT(cases); i++) {
        if (!temp_tokenizer()) return;
        apply_edit(&cases[i]);
        check_open(cases[i].title, MOTE_TEXT_ONLY, cases[i].code, cases[i].needles);
    }
    temp_tokenizer();
    check_render("no template", NOT, "template");
    temp_text(TEMPLATE, "{{ messages }}");
    check_render("template unknown", NOT, "raw");
    temp_copy(DEMO, TEMPLATE);
    check_render("template known", OK, "");
    const char *ids[3] = {TOKENIZER, "vocab_size", "64"}, *none[3] = {NULL}, *generation[3] = {GENERATION};
    temp_fixture(TIED);
    check_open("weights alone", MOTE_EVERYTHING, OK, none);
    temp_copy(DEMO, TOKENIZER);
    check_open("ids beyond vocab_size", MOTE_EVERYTHING, BAD, ids);
    check_open("ids beyond vocab_size, weights only", MOTE_WEIGHTS_ONLY, OK, none);
    temp_text(GENERATION, "{");
    check_open("generation cut, weights only", MOTE_WEIGHTS_ONLY, BAD, generation);
}

// ---- 4. Large checkpoints -------------------------------------------------------------------------------------------
// A model with as many tensors as Qwen3.5-35B-A3B-FP8 but hardly any weights: 40 layers and MTP of 256 experts, each
// with three matrices and three scales. And a tokenizer.json of 20 MB. They should open in well under a second each.

static void add_info(buf *header, const char *name, const char *type, const char *shape, size_t *at, size_t size) {
    char text[256];
    int n = snprintf(text, sizeof text, "%c\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
                     header->size ? ',' : '{', name, type, shape, *at, *at + size);
    buf_add(header, text, (size_t)n);
    *at += size;
}

static void write_large_shard(const char *file, const char *prefix, int layer, int attention, buf *index) {
    static const struct { const char *name, *shape; int size; } small[] = {
        {"input_layernorm.weight", "2", 2}, {"post_attention_layernorm.weight", "2", 2},
        {"mlp.gate.weight", "256,2", 512},
        {"mlp.shared_expert_gate.weight", "1,2", 2}, {"mlp.shared_expert.gate_proj.weight", "1,2", 2},
        {"mlp.shared_expert.up_proj.weight", "1,2", 2}, {"mlp.shared_expert.down_proj.weight", "2,1", 2},
        {"self_attn.q_proj.weight", "4,2", 8}, {"self_attn.k_proj.weight", "2,2", 4},
        {"self_attn.v_proj.weight", "2,2", 4},
        {"self_attn.q_norm.weight", "2", 2}, {"self_attn.k_norm.weight", "2", 2},
        {"self_attn.o_proj.weight", "2,2", 4},
        {"linear_attn.in_proj_qkv.weight", "3,2", 6}, {"linear_attn.in_proj_z.weight", "1,2", 2},
        {"linear_attn.in_proj_b.weight", "1,2", 2}, {"linear_attn.in_proj_a.weight", "1,2", 2},
        {"linear_attn.out_proj.weight", "2,1", 2}, {"linear_attn.conv1d.weight", "3,1,4", 12},
        {"linear_attn.A_log", "1", 1},
        {"linear_attn.dt_bias", "1", 1}, {"linear_attn.norm.weight", "1", 1}};
    static const char *const matrices[] = {"gate_proj", "up_proj", "down_proj"};
    static const struct { const char *name, *shape; int size; } outside[] = {
        {"model.embed_tokens.weight", "8,2", 16}, {"model.norm.weight", "2", 2}, {"mtp.fc.weight", "2,4", 8},
        {"mtp.norm.weight", "2", 2}, {"mtp.pre_fc_norm_embedding.weight", "2", 2},
        {"mtp.pre_fc_norm_hidden.weight", "2", 2}};
    buf header = {0};
    size_t at = 0;
    char name[128];
    for (size_t i = 0; i < COUNT(small); i++) {
        if (strncmp(small[i].name, attention ? "linear" : "self", 4) == 0) continue;
        snprintf(name, sizeof name, "%slayers.%d.%s", prefix, layer, small[i].name);
        add_info(&header, name, "BF16", small[i].shape, &at, 2 * (size_t)small[i].size);
    }
    for (size_t i = 0; i < COUNT(outside) && prefix[1] == 't'; i++)
        add_info(&header, outside[i].name, "BF16", outside[i].shape, &at, 2 * (size_t)outside[i].size);
    for (int e = 0; e < 256; e++) {
        for (int i = 0; i < 3; i++) {
            snprintf(name, sizeof name, "%slayers.%d.mlp.experts.%d.%s.weight", prefix, layer, e, matrices[i]);
            add_info(&header, name, "F8_E4M3", i == 2 ? "2,1" : "1,2", &at, 2);
            strcat(name, "_scale_inv");
            add_info(&header, name, "BF16", "1,1", &at, 2);
        }
    }
    json j;
    buf_text(&header, "}");
    CHECK(!json_parse(&j, header.data, header.size, file, NULL), "%s", file);
    for (uint32_t key = 1; key < j.count; key = j.nodes[key + 1].next) {
        buf_text(index, index->size ? ",\n    \"" : "{\n  \"metadata\": {},\n  \"weight_map\": {\n    \"");
        buf_add(index, j.text + j.nodes[key].start, j.nodes[key].size);
        buf_text(index, "\": \"");
        buf_text(index, file);
        buf_text(index, "\"");
    }
    json_free(&j);
    buf out = {0};
    for (int i = 0; i < 8; i++) name[i] = (char)(header.size >> 8 * i & 0xFF);
    buf_add(&out, name, 8);
    buf_add(&out, header.data, header.size);
    memset(buf_add(&out, NULL, at), 0, at);
    temp_write(file, out.data, out.size);
    buf_free(&out);
    buf_free(&header);
}

static void test_large_index(void) {
    buf index = {0};
    char file[64], json[QUOTED];
    mote_options o = {0};
    mote_model *m;
    mote_memory plan;
    mote_error err = {0};
    o.parts = MOTE_WEIGHTS_ONLY;
    temp_empty();
    for (int i = 0; i < 40; i++) {
        snprintf(file, sizeof file, "layers-%d.safetensors", i);
        write_large_shard(file, "model.", i, i % 4 == 3, &index);
    }
    write_large_shard("mtp.safetensors", "mtp.", 0, 1, &index);
    buf_text(&index, "\n  }\n}\n");
    temp_write(INDEX, index.data, index.size);
    temp_text(CONFIG, quoted("{'model_type':'qwen3_5_moe_text','num_hidden_layers':40,'hidden_size':2,'vocab_size':8,"
              "'num_attention_heads':1,'num_key_value_heads':1,'head_dim':2,'linear_num_key_heads':1,"
              "'linear_num_value_heads':1,'linear_key_head_dim':1,'linear_value_head_dim':1,'num_experts':256,"
              "'num_experts_per_tok':8,'moe_intermediate_size':1,'shared_expert_intermediate_size':1,"
              "'rope_parameters':{'partial_rotary_factor':1.0},'mtp_num_hidden_layers':1,"
              "'tie_word_embeddings':true}", json));
    int tensors = 0;
    for (size_t i = 0; i < index.size; i++) tensors += index.data[i] == '\n';
    double start = seconds();
    CHECK(!mote_plan(temp_dir, NULL, NULL, &plan, &err), "%s", err.message);
    double planned = seconds() - start;
    start = seconds();
    if (CHECK(!mote_open(temp_dir, &o, &m, &err), "%s", err.message)) mote_close(m);
    double opened = seconds() - start;
    printf("test_checkpoint: %d tensors in 41 files, index of %.1f MB: plan %.3f s, open %.3f s\n", tensors - 5,
           (double)index.size * 1e-6, planned, opened);
    buf_free(&index);
}

// The printable character that stands for a byte in byte-level BPE, as JSON text.
static void byte_character(unsigned byte, buf *out) {
    unsigned shift = 0;
    for (unsigned b = 0; b < byte; b++) shift += b < 33 || (b > 126 && b < 161) || b == 173;
    int moved = byte < 33 || (byte > 126 && byte < 161) || byte == 173;
    if (byte == '"' || byte == '\\') buf_text(out, "\\");
    utf8_put(out, moved ? 256 + shift : byte);
}

// Tokens of n letters: those of half the length, joined two by two, in the layout that published files have.
static void add_words(int n, int count, buf *vocab, buf *merges, int *id) {
    char text[256], word[8];
    for (int i = 0; i < count; i++) {
        for (int k = 0, x = i; k < n; k++, x /= 26) word[k] = (char)('a' + x % 26);
        int size = snprintf(text, sizeof text, ",\n      \"%.*s\": %d", n, word, (*id)++);
        buf_add(vocab, text, (size_t)size);
        size = snprintf(text, sizeof text, "%s      [\n        \"%.*s\",\n        \"%.*s\"\n      ]",
                        merges->size ? ",\n" : "", n / 2, word, n / 2, word + n / 2);
        buf_add(merges, text, (size_t)size);
    }
}

static void test_large_tokenizer(void) {
    buf text = {0}, merges = {0};
    char one[32], json[QUOTED];
    int id = 0;
    mote_options o = {0};
    mote_model *m;
    mote_error err = {0};
    o.parts = MOTE_TEXT_ONLY;
    buf_text(&text, quoted("{\n  'version': '1.0',\n  'normalizer': null,\n  'pre_tokenizer': {'type': 'ByteLevel', "
             "'add_prefix_space': false, 'trim_offsets': true, 'use_regex': true},\n  'model': {\n    'type': 'BPE',\n"
             "    'vocab': {", json));
    for (; id < 256; id++) {
        buf_text(&text, id ? ",\n      \"" : "\n      \"");
        byte_character((unsigned)id, &text);
        snprintf(one, sizeof one, "\": %d", id);
        buf_text(&text, one);
    }
    add_words(2, 26 * 26, &text, &merges, &id);
    add_words(4, 310000, &text, &merges, &id);
    buf_text(&text, "\n    },\n    \"merges\": [\n");
    buf_add(&text, merges.data, merges.size);
    buf_text(&text, "\n    ]\n  }\n}\n");
    temp_empty();
    temp_write(TOKENIZER, text.data, text.size);
    double start = seconds();
    if (CHECK(!mote_open(temp_dir, &o, &m, &err), "%s", err.message)) {
        double opened = seconds() - start;
        int32_t ids[8];
        size_t n = 0;
        int code = mote_tokenize(m, "aaaabbbb ", 9, 0, ids, 8, &n, &err);
        CHECK(!code && n == 3 && ids[0] == 256 + 26 * 26 && ids[1] > ids[0], "%zu ids: %s", n, err.message);
        printf("test_checkpoint: tokenizer.json of %.1f MB with %d tokens: open %.3f s\n", (double)text.size * 1e-6, id,
               opened);
        CHECK(text.size > 20e6, "%.1f MB", (double)text.size * 1e-6);
        mote_close(m);
    }
    buf_free(&text);
    buf_free(&merges);
}

// ---- 5. Inside: plans and synthetic weights -------------------------------------------------------------------------

// The most context that fits into the memory of a context's plan is that one or, where it costs no more, a longer one.
static void test_fits(void) {
    static const char fixture[] = "tests/fixtures/bf16-as-3.5";
    mote_model *m = model_of(fixture, MOTE_EVERYTHING);
    mote_options o = {.device = "cpu"};
    mote_session_options so = {.threads = 2}, planned = so;
    mote_session *s = session_shell(m);
    if (!CHECK(s != NULL, "a session")) return;
    EXPECT(MOTE_OK, session_options(m, &so, &so, &failure));
    so.threads = 2;
    for (int context = 1, most = m->info.context_max; context <= most; context += 1 + context / 3) {
        mote_memory p;
        planned.context = context;
        EXPECT(MOTE_OK, mote_plan(fixture, &o, &planned, &p, &failure));
        uint64_t session = p.total - p.weights;
        int fits = context_that_fits(m, &so, session, s), one_less = context_that_fits(m, &so, session - 1, s);
        CHECK(fits >= context && one_less < context, "context %d: %d fit, with a byte less %d", context, fits, one_less);
    }
    CHECK(context_that_fits(m, &so, 0, s) == 0, "something fits into nothing");
    mote_session_close(s);
    mote_close(m);
}

// The spread of what is made up, and codes that are no NaN.
static void test_made_values(void) {
    double bf16 = 0, fp8 = 0;
    int wrong = 0, n = 1 << 16;
    for (uint32_t i = 0; i < (uint32_t)n; i++) {
        float w = float_of_bf16(made_bf16(7, i)), s = made_scale(9, i);
        uint8_t code = made_fp8(8, i);
        float v = fp8_bits(code) * FP8_UNIT;
        int bell = made_bell(8, i), clipped = bell > 448 ? 448 : bell < -448 ? -448 : bell;
        wrong += (code & 0x7f) == 0x7f || !(fabsf(v - (float)clipped) <= fabsf((float)clipped) / 16);
        wrong += !(s > 0 && s < 128);
        bf16 += (double)w * w;
        fp8 += (double)(v * s) * (v * s);
    }
    CHECK(!wrong, "%d wrong FP8 codes or scales", wrong);
    CHECK(fabs(sqrt(bf16 / n) - 0.02) < 0.002 && fabs(sqrt(fp8 / n) - 0.02) < 0.006, "spread %g in BF16, %g in FP8",
          sqrt(bf16 / n), sqrt(fp8 / n));
}

// The same name makes the same bytes, and the experts of a matrix lie at equal distances, as GPUs read them.
static void test_made(const char *name) {
    mote_options o = {.device = "cpu"};
    mote_model *m = NULL, *again = NULL;
    size_t stride = 0;
    EXPECT(MOTE_OK, mote_open_synthetic(name, &o, &m, &failure));
    EXPECT(MOTE_OK, mote_open_synthetic(name, &o, &again, &failure));
    if (m && again) {
        moe_weights *w = &m->layers[1].ffn.w.moe;
        int E = m->c.shapes.moe.experts;
        CHECK(m->arena_size == again->arena_size && !memcmp(m->arena, again->arena, m->arena_size), "%s: differs", name);
        CHECK(experts_stride(w, E, &stride) && stride, "%s: no stride", name);
        const char *first = (const char *)w->down_proj[0].component[CODES], *last = (const char *)w->down_proj[E - 1].component[CODES];
        CHECK(last == first + (size_t)(E - 1) * stride, "%s: the last expert is elsewhere", name);
        w->up_proj[E - 2].format = FORMAT_F16;
        CHECK(!experts_stride(w, E, &stride), "%s: two types have a stride", name);
    }
    mote_close(m);
    mote_close(again);
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    test_main_begin("test_checkpoint", argc, argv);
    if (!temp_open()) return test_main_end();
    test_container();
    test_container_generator();
    test_tensors();
    test_quantised();
    test_shards();
    test_without_mtp();
    test_prefixes();
    test_cancel();
    test_text();
    test_large_index();
    test_large_tokenizer();
    test_fits();
    test_made_values();
    test_made("tiny:fp8");
    test_made("tiny:bf16");
    test_made("tiny:nvfp4");
    test_made("tiny:nvfp4-experts");
    test_made("tiny:int4");
    test_made("tiny:int4-experts");
    test_made("tiny:fp8-channel");
    temp_close();
    return test_main_end();
}
