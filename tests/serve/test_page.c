// The page of mote serve without a browser: its renderer in node, where there is one. tools/test_page.py tries all of the page.

#include "test.h"

int main(int argc, char **argv) {
    static char said[1 << 16];
    test_main_begin("test_page", argc, argv);
    if (system("command -v node >/dev/null 2>&1")) {
        test_skip("no node: the page's renderer");
        return test_main_end();
    }
    FILE *in = popen("node tests/serve/page.js serve/page 100000 1000 2>&1", "r");
    size_t size = in ? fread(said, 1, sizeof said - 1, in) : 0;
    said[size] = 0;
    CHECK(in && pclose(in) == 0 && size == 0, "hostile answers: %s", said);
    return test_main_end();
}
