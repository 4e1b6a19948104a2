// Tests that the examples do what they say, with the bundled model. The Makefile builds them.
//
// Usage: test_examples [--device NAME]

#include "engine.h"
#include "test.h"

#include <sys/wait.h>

enum { OUTPUT_MOST = 1 << 16 };

// The output of an example; NULL when it failed. free() it.
static char *output_of(const char *command) {
    char all[1024], *out = (char *)room(OUTPUT_MOST);
    snprintf(all, sizeof all, "%s/%s", EXAMPLES, command);
    FILE *in = popen(all, "r");
    size_t n = in ? fread(out, 1, OUTPUT_MOST - 1, in) : 0;
    int status = in ? pclose(in) : -1;
    out[n] = 0;
    return CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0 && n > 20, "%s: status %d: %s", command, status, out) ? out : (free(out), NULL);
}

static void check_says(const char *command, const char *const *words) {
    char *out = output_of(command);
    for (; out && *words; words++) CHECK(strstr(out, *words) != NULL, "%s says no %s: %s", command, *words, out);
    free(out);
}

// Is the text at *p a value of the shape at *s (see examples/json.c)? Both go behind it.
static int has_shape(const char **p, const char **s) {
    if (!strncmp(*s, "\"\"", 2)) {
        *s += 2;
        if (*(*p)++ != '"') return 0;
        while (**p && **p != '"') *p += 1 + (**p == '\\');
        return *(*p)++ == '"';
    }
    if (**s == '0') {
        char *end;
        strtol(*p, &end, 10);
        int ok = end > *p;
        *p = end;
        ++*s;
        return ok;
    }
    if (!strncmp(*s, "true", 4)) {
        int n = strncmp(*p, "true", 4) ? 5 : 4;
        if (n == 5 && strncmp(*p, "false", 5)) return 0;
        *p += n;
        *s += 4;
        return 1;
    }
    if (**s == '[') {
        const char *item = ++*s;
        if (*(*p)++ != '[') return 0;
        for (;; ++*p) {
            *s = item;
            if (!has_shape(p, s)) return 0;
            if (**p != ',') break;
        }
        return *(*p)++ == *(*s)++;
    }
    if (**s == '{') {
        for (int quotes = 0; **s != '}' && **s; quotes = 0) {          // {"key": or , "key":
            while (quotes < 2 || **s != ' ') {
                if (**s != *(*p)++) return 0;
                quotes += *(*s)++ == '"';
            }
            if (*(*p)++ != *(*s)++ || !has_shape(p, s)) return 0;
        }
        return *(*p)++ == *(*s)++;
    }
    return 0;
}

static void test_json(const char *question, const char *shape) {
    char command[512];
    snprintf(command, sizeof command, "json models/demo '%s' '%s'", question, shape);
    char *out = output_of(command);
    const char *p = out, *s = shape;
    if (out) CHECK(has_shape(&p, &s) && !*s && !strcmp(p, "\n"), "%s is not of the shape %s, from %.40s on", out, shape, p);
    free(out);
}

int main(int argc, char **argv) {
    static const char *const embed[] = {"expert", NULL}, *const tools[] = {NULL};
    static const char *const two[] = {"Ann: What is FP8?\n", "Bob: What is a router?\n", "8 bits", "expert", NULL};
    test_main_begin("test_examples", argc, argv);
    check_says("embed", embed);
    check_says("two_conversations", two);
    check_says("tools", tools);
    test_json("What is a mixture of experts?", "{\"answer\": \"\", \"sure\": true, \"experts\": 0, \"words\": [\"\"]}");
    test_json("Hello", "{\"a\": [{\"x0\": 0, \"true\": [[0]]}], \"b\": {\"c\": \"\", \"d\": [true]}}");
    test_json("What is FP8?", "[{\"name\": \"\", \"bits\": 0}]");
    return test_main_end();
}
