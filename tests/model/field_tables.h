/* field_tables.h: all tables of fields (layers/shape.c), for tests: those of the kinds of layers, in their order, of the
   residual, of a rope, of a model. After engine.cu. */

#ifndef MOTE_TEST_FIELD_TABLES_H
#define MOTE_TEST_FIELD_TABLES_H

enum { OF_RESIDUAL = LAYER_KIND_COUNT, OF_ROPE, OF_CONFIG, FIELD_TABLES };

static const struct { const char *name; const shape_field *row; int count; } field_tables[FIELD_TABLES] = {
#define X(NAME, name) {#name, name##_fields, NAME##_FIELD_COUNT},
    LAYER_KINDS(X)
#undef X
    {"residual", residual_fields, RESIDUAL_FIELD_COUNT}, {"rope", rope_fields, ROPE_FIELD_COUNT}, {"config", config_fields, CONFIG_FIELD_COUNT}};

#endif
