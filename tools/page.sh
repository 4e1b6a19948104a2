#!/bin/sh
# Prints the page of mote serve as one HTML file: the style sheet and the scripts that serve/page/page.html names are put in their places.
# Usage: tools/page.sh, from the top of the repository
set -eu

awk -F'"' '
function inline(name,    line, status) {
    while ((status = (getline line < ("serve/page/" name))) > 0) print line
    if (status < 0) {
        print "page: cannot read serve/page/" name > "/dev/stderr"
        exit 1
    }
    close("serve/page/" name)
}
/^<link rel="stylesheet" href=/ {
    print "<style>"
    inline($4)
    print "</style>"
    next
}
/^<script src=/ {
    print "<script>"
    inline($2)
    print "</script>"
    next
}
{ print }' serve/page/page.html
