// A part of test_checkpoint: the container, 134 safetensors files.

// Headers with ' for ", ` for ', and $T $I $[ $] $0 for a tensor, the beginning of an info, 200 brackets, and a NUL.
// What is expected is what the reference reader says, but REJECT where mote is stricter on purpose: infos that are no
// objects, names that are empty, hold a NUL or come twice (v13, v15, v16, e20, e76, e77, e78).

enum { REJECT = -1 };

static const struct {
    const char *name, *header;
    int data;           // bytes of zeros after the header
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
