// A part of test_config: Nemotron-H, whose layers are one sublayer each.

static int read_nemotron(const char *keys, config *c, mote_error *err) {
    char text[2 * QUOTED], json[2 * QUOTED];
    snprintf(text, sizeof text,
             "{'model_type':'nemotron_h','num_hidden_layers':4,'hidden_size':32,'vocab_size':8,'hybrid_override_pattern':'M*E-','mlp_hidden_act':'relu2',"
             "'num_attention_heads':4,'num_key_value_heads':2,'head_dim':8,'mamba_num_heads':6,'mamba_head_dim':8,'ssm_state_size':16,'n_groups':2,"
             "'conv_kernel':4,'intermediate_size':48,'n_routed_experts':8,'num_experts_per_tok':2,'moe_intermediate_size':16,"
             "'moe_shared_expert_intermediate_size':24,'n_shared_experts':1,'layer_norm_epsilon':1e-5,'routed_scaling_factor':2.5,"
             "'chunk_size':128,'expand':2,'use_conv_bias':true,'time_step_min':0.001,'rope_theta':10000,'partial_rotary_factor':1.0%s%s}", *keys ? "," : "", keys);
    temp_empty();
    temp_text(CONFIG, quoted(text, json));
    return config_read(c, temp_dir, err);
}

static void test_nemotron_layers(void) {
    static const char *const forms[] = {"", "'hybrid_override_pattern':null,'layers_block_type':['mamba','attention','moe','mlp']",
                                        "'layers_block_type':['mamba','attention','moe','mlp'],'time_step_limit':[0.0,Infinity]",
                                        "'time_step_limit':[0,{'__float__':'Infinity'}],'mtp_hybrid_override_pattern':'*E','num_nextn_predict_layers':1"};
    static const enum layer_kind kinds[4][2] = {{LAYER_MAMBA, LAYER_NONE}, {LAYER_ATTENTION, LAYER_NONE}, {LAYER_NONE, LAYER_MOE}, {LAYER_NONE, LAYER_MLP}};
    for (size_t i = 0; i < COUNT(forms); i++) {
        config c;
        mote_error err = {0};
        if (!CHECK(!read_nemotron(forms[i], &c, &err), "%s: %s", forms[i], err.message)) continue;
        for (int l = 0; l < 4; l++)
            CHECK(c.layer[l].mixer.kind == kinds[l][0] && c.layer[l].ffn.kind == kinds[l][1], "%s: layer %d", forms[i], l);
        const mamba_shape *s = &c.layer[0].mixer.of.mamba;
        const moe_shape *e = &c.layer[2].ffn.of.moe;
        CHECK(s->heads == 6 && s->head_dim == 8 && s->groups == 2 && s->state_dim == 16 && s->taps == 4 && s->hidden == 32 && s->eps == 1e-5f, "%s: Mamba", forms[i]);
        CHECK(c.layer[1].mixer.of.attention.rotary_dim == 0 && c.mtp_layers == 0, "%s: attention", forms[i]);
        CHECK(e->squared_relu && e->sigmoid && e->corrected && e->shared_size == 24 && e->shared_ungated && e->routed_scale == 2.5f && !e->groups, "%s: experts", forms[i]);
        CHECK(c.layer[3].ffn.of.mlp.squared_relu && c.layer[3].ffn.of.mlp.size == 48, "%s: MLP", forms[i]);
        config_free(&c);
    }
}

static void test_nemotron_keys(void) {
    static const struct { const char *keys; int code; const char *needle; } cases[] = {
        {"'hybrid_override_pattern':'M*E'", BAD, "config.json: hybrid_override_pattern has 3 letters, num_hidden_layers is 4"},
        {"'hybrid_override_pattern':'M*EX'", NOT, "config.json: hybrid_override_pattern has X for layer 3, mote supports M, *, E and -"},
        {"'hybrid_override_pattern':'M\xc3\xa9-'", NOT, "config.json: hybrid_override_pattern has byte 0xC3 for layer 1, mote supports M, *, E and -"},
        {"'hybrid_override_pattern':4", BAD, "config.json: hybrid_override_pattern must be a text with one of M, *, E and - for each layer"},
        {"'hybrid_override_pattern':null", NOT, "config.json: neither hybrid_override_pattern nor layers_block_type says what the layers are"},
        {"'hybrid_override_pattern':null,'layers_block_type':['mamba']", BAD, "layers_block_type lists 1 layers, num_hidden_layers is 4"},
        {"'hybrid_override_pattern':null,'layers_block_type':['mamba','attention','moe','gru']", NOT, "layers_block_type[3] is not mamba, attention, moe or mlp"},
        {"'layers_block_type':['mamba','moe','moe','mlp']", BAD, "layers_block_type[1] is moe, but hybrid_override_pattern has * there"},
        {"'n_groups':4", BAD, "mamba_num_heads = 6 is no multiple of n_groups = 4"},
        {"'ssm_state_size':1024", BAD, "ssm_state_size must be a whole number from 1 to 512"},
        {"'mamba_num_heads':4096,'mamba_head_dim':16384", NOT, "exceeds 1048576"},
        {"'time_step_limit':[0.001,0.1]", NOT, "time_step_limit bounds the steps of Mamba layers"},
        {"'time_step_limit':[0,{'__float__':'NaN'}]", NOT, "time_step_limit bounds"},
        {"'time_step_limit':[]", NOT, "time_step_limit bounds"},
        {"'moe_latent_size':1024", NOT, "moe_latent_size is 1024, a key that is not known to mote"},
        {"'mlp_hidden_act':'silu'", NOT, "mlp_hidden_act is silu, mote supports relu2 only"},
        {"'use_conv_bias':false", NOT, "use_conv_bias is false, mote supports true only"},
        {"'mamba_proj_bias':true", NOT, "mamba_proj_bias is true, mote supports false only"},
        {"'norm_eps':1e-6", NOT, "norm_eps is 1e-06, but layer_norm_epsilon is 1e-05"},
        {"'n_shared_experts':2", NOT, "n_shared_experts is 2, mote supports 1 only"}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        config c;
        mote_error err = {0};
        const int code = read_nemotron(cases[i].keys, &c, &err);
        CHECK(code == cases[i].code && strstr(err.message, cases[i].needle), "%s: code %d: %s", cases[i].keys, code, err.message);
        if (!code) config_free(&c);
    }
}
