#!/bin/sh
# Prints a page as one HTML file: the style sheet and the scripts that FOLDER/page.html names are put in their places.
# Usage: tools/page.sh FOLDER, from the top of the repository
set -eu

awk -F'"' -v folder="$1" '
function inline(name,    line, status) {
    while ((status = (getline line < (folder "/" name))) > 0) print line
    if (status < 0) {
        print "page: cannot read " folder "/" name > "/dev/stderr"
        exit 1
    }
    close(folder "/" name)
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
{ print }' "$1/page.html"
