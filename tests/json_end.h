// json_end.h: whether a text is JSON. After test.h.

#ifndef MOTE_TEST_JSON_END_H
#define MOTE_TEST_JSON_END_H

#include <math.h>

// The end of the JSON value that starts here, NULL when there is none. White space must not precede it.
static inline const char *json_end(const char *s) {
    static const char *const words[] = {"true", "false", "null"};
    char open = *s, close = open == '{' ? '}' : ']', *number;
    for (int i = 0; i < 3; i++)
        if (strncmp(s, words[i], strlen(words[i])) == 0) return s + strlen(words[i]);
    if (open == '"') {
        for (s++; (unsigned char)*s >= ' ' && *s != '"'; s++) s += *s == '\\' && s[1];
        return *s == '"' ? s + 1 : NULL;
    }
    if (open != '{' && open != '[')
        return (s[*s == '-'] >= '0' && s[*s == '-'] <= '9' && strtod(s, &number) < INFINITY) ? number : NULL;
    s += 1 + strspn(s + 1, " \n");
    if (*s == close) return s + 1;
    for (;; s++) {
        s += strspn(s, " \n");
        if (open == '{' && (*s != '"' || !(s = json_end(s)) || *s++ != ':')) return NULL;
        s += strspn(s, " \n");
        if (!(s = json_end(s))) return NULL;
        s += strspn(s, " \n");
        if (*s == close) return s + 1;
        if (*s != ',') return NULL;
    }
}

#endif
