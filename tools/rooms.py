#!/usr/bin/env python3
"""make rooms: does every room use only what the table of docs/design.md, "Who may use whom", lets it use?

One translation unit sees everything, so nothing else checks it. The spines are preprocessed (cc -E, without the system's headers), so that
what macros make is seen where they make it; then each definition and declaration at file scope is taken apart: what it defines (functions,
types, constants of enums, variables), which names are its own (parameters, variables, members), and which it takes from elsewhere. A name
belongs to the file that defines it, wherever it is declared ahead. Names of macros are looked for in the sources as they are.

It prints one line for each name of a file that its room may not use, and for each entry of the table that nothing needs.
Usage: tools/rooms.py, from the top of the repository. CC: the C compiler."""

import collections
import fnmatch
import os
import re
import subprocess
import sys

TABLE, HEADING = 'docs/design.md', '### Who may use whom'
SPINES = ('engine.cu', 'kernels.cu', 'tokenizer.c', 'reference.c', 'main.c')
BUILDS = (('engine.cu', '-D__CUDACC__', '-D__x86_64__'), ('engine.cu', '-D__aarch64__'), ('reference.c',), ('main.c',))
ONCE = ('engine.h', 'diagnose/diagnose.h')     # headers that guard themselves

# ---- The table --------------------------------------------------------------------------------------------------------------------


class Table:
    """Rows of rooms: (patterns of files, what they may use), in the order in which the rooms stand."""

    def __init__(self, text):
        self.rows = []
        for line in text.split(HEADING + '\n', 1)[1].split('\n\n    ', 1)[1].split('\n\n')[0].split('\n')[1:]:
            rooms, _, uses = line.partition(':')
            self.rows.append((rooms.split(), uses.split()))
        self.used, self.row_of = set(), {}

    def row(self, file):
        """The number of a file's row, and which of its rooms it is: the longest pattern that fits."""
        if file not in self.row_of:
            fits = [(len(room), i, room) for i, (rooms, _) in enumerate(self.rows) for room in rooms if is_of(file, room)]
            self.row_of[file] = max(fits)[1:] if fits else (None, None)
        return self.row_of[file]

    def allows(self, file, name, homes):
        """May the file use this name, which these files define?"""
        i, room = self.row(file)
        if any(self.row(home) == (i, room) or home in SPINES for home in homes): return True
        above = [home for home in homes if self.row(home)[0] is not None and self.row(home)[0] <= i]
        for entry in self.rows[i][1]:
            if entry == name or any(entry == 'all' or is_of(home, entry) for home in above):
                self.used.add((i, entry))
                return True
        return False

    def complaints(self):
        """What a room may use is used, and stands above it."""
        for i, (rooms, uses) in enumerate(self.rows):
            for entry in uses:
                if (i, entry) not in self.used: yield '%s: %s uses nothing of %s that stands above it' % (TABLE, ' '.join(rooms), entry)


def is_of(file, room):
    """A folder stands for the files in it, without those of its folders."""
    pattern = room + '*' if room.endswith('/') else room
    return file.count('/') == pattern.count('/') and fnmatch.fnmatchcase(file, pattern)


# ---- Tokens -----------------------------------------------------------------------------------------------------------------------

Token = collections.namedtuple('Token', 'text file line tight is_name')     # tight: no white space before it
TOKEN = re.compile(r'''"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|(?P<name>[A-Za-z_]\w*)|\.?\d(?:[eEpP][+-]|[\w.'])*|->|::|\#\#|\S''')
COMMENT = re.compile(r'/\*.*?\*/|//[^\n]*|("(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\')', re.S)


def tokens_of_line(line, file, number):
    for m in TOKEN.finditer(line):
        yield Token(m[0], file, number, m.start() > 0 and not line[m.start() - 1].isspace(), m.lastgroup == 'name')


def expand(name, out, seen):
    """Appends a file with what it includes in quotes, in place; files that are made by the build, and the system's, are left out."""
    out.append('#line 1 "%s"\n' % name)
    for number, line in enumerate(open(name), 1):
        m = re.match(r'\s*#\s*include\s*(["<])([^">]*)', line)
        if not m:
            out.append(line)
        elif m[1] == '"' and os.path.exists(m[2]) and not (m[2] in ONCE and m[2] in seen):
            seen[m[2]] = len(seen)
            expand(m[2], out, seen)
            out.append('#line %d "%s"\n' % (number + 1, name))
        else:
            out.append('\n')


def preprocessed(spine, flags, seen):
    """The tokens of a build, each with its file and line; seen: the files, in the order in which they are included."""
    source = []
    expand(spine, source, seen)
    command = [os.environ.get('CC', 'cc'), '-E', '-x', 'c', '-undef', *flags, '-']
    text = subprocess.run(command, input=''.join(source), capture_output=True, text=True, check=True).stdout
    file, number = spine, 0
    for line in text.split('\n'):
        m = re.match(r'#\s*(\d+)\s+"([^"]*)"', line)
        if m:
            file, number = m[2], int(m[1])
            continue
        if not line.startswith('#'): yield from tokens_of_line(line, file, number)
        number += 1


# ---- Definitions and declarations -------------------------------------------------------------------------------------------------

OPEN, CLOSE, TAGS = set('([{'), set(')]}'), {'struct', 'union', 'enum'}
WORDS = set('''auto bool break case char class const constexpr continue decltype default delete do double else enum extern false float
    for goto if inline int long namespace new noexcept nullptr operator private public register return short signed sizeof static
    static_assert struct switch template this true typedef typename union unsigned using void volatile while'''.split())
NOT_TYPES = {'return', 'else', 'case', 'goto', 'do', 'sizeof', 'throw', 'new', 'delete', 'operator', 'typename'}
QUALIFIERS = set('''const static inline volatile extern register typedef constexpr restrict __restrict __inline__ _Thread_local __shared__
    __device__ __host__ __global__ __constant__ __forceinline__ __grid_constant__'''.split())
ATTRIBUTES = {'__attribute__', '__launch_bounds__', '__align__', 'alignas', 'static_assert', 'asm', 'decltype'}


def without(item, words):
    """Without these words and their arguments."""
    out, i = [], 0
    while i < len(item):
        if item[i].text in words and i + 1 < len(item) and item[i + 1].text == '(':
            i, depth = i + 2, 1
            while depth and i < len(item):
                depth += (item[i].text == '(') - (item[i].text == ')')
                i += 1
        else:
            out.append(item[i])
            i += 1
    return out


def items(tokens):
    """Splits what stands at file scope: each function with its body, all else up to its semicolon."""
    item, depth, is_function = [], 0, False
    for t in tokens:
        if t.text == '{' and not depth:
            before = without(item, ATTRIBUTES)
            is_function = bool(before) and before[-1].text in (')', 'const')
        item.append(t)
        depth += (t.text in OPEN) - (t.text in CLOSE)
        if not depth and (t.text == ';' or (t.text == '}' and is_function)):
            yield item
            item, is_function = [], False
    if item: yield item


class Names:
    """The names that an item declares: pairs of a position in it and the brackets that are open there."""

    def __init__(self, item):
        self.item, self.found, open_at = item, [], []
        for i, t in enumerate(item):
            if t.text in OPEN: open_at.append(i)
            elif t.text in CLOSE and open_at: open_at.pop()
            if not t.is_name or t.text in WORDS or t.text in QUALIFIERS or not self.is_declared(i, open_at): continue
            self.add(i, open_at)
            if not open_at or self.at(open_at[-1]) == '{' or self.at(open_at[-1] - 1) == 'for': self.add_others(i, open_at)

    def at(self, i):
        return self.item[i].text if 0 <= i < len(self.item) else ''

    def is_name(self, i):
        return 0 <= i < len(self.item) and self.item[i].is_name

    def add(self, i, open_at):
        if self.is_name(i) and self.at(i) not in WORDS: self.found.append((self.at(i), list(open_at)))

    def is_declared(self, i, open_at):
        """After its type: `block b`, `float *x`, `char *const x`, `int (*f)(`. The house writes products with spaces: `a * b`."""
        before = self.at(i - 1)
        if self.is_name(i - 1):
            if before in QUALIFIERS: return self.at(i - 2) in ('*', '&')
            return before in ('typename', 'class') or (before not in NOT_TYPES and before not in TAGS)
        if before not in ('*', '&') or not self.item[i].tight: return before == '}' and not open_at
        k = i - 1
        while self.at(k) in ('*', '&'): k -= 1
        if self.at(k) == '(': return self.at(i + 1) == ')' and self.at(i + 2) in ('(', '[')
        return not self.item[k + 1].tight and (self.at(k) in ('>', '}') or (self.is_name(k) and self.at(k) not in NOT_TYPES))

    def add_others(self, i, open_at):
        """Those that follow with commas: `int a = 1, *b;`."""
        depth = 0
        for k in range(i + 1, len(self.item)):
            text = self.at(k)
            depth += (text in OPEN) - (text in CLOSE)
            if depth < 0 or (text == ';' and not depth): return
            if text == '}' and not depth and self.at(k + 1) not in (',', ';', '[', ')'): return
            if text != ',' or depth: continue
            k += 1
            while self.at(k) in ('*', '&', 'const', '__restrict'): k += 1
            self.add(k, open_at)


def constants(item):
    """Those of all enums in it."""
    found, i = set(), 0
    while i < len(item):
        k = i + 1
        while item[i].text == 'enum' and k < len(item) and (item[k].is_name or item[k].text == ':'): k += 1
        if item[i].text == 'enum' and k < len(item) and item[k].text == '{':
            depth, expected, k = 1, True, k + 1
            while depth:
                depth += (item[k].text in OPEN) - (item[k].text in CLOSE)
                if item[k].text == ',' and depth == 1: expected = True
                elif expected and item[k].is_name:
                    found.add(item[k].text)
                    expected = False
                k += 1
        i = max(i + 1, k - 1)
    return found


def is_cpp_struct(item):
    """Its constants are its own."""
    before = [t.text for t in item[:[t.text for t in item].index('{')]] if any(t.text == '{' for t in item) else []
    return item[0].file.endswith('.cu') and ('struct' in before or 'union' in before)


def template_end(item):
    """Where the parameters of a template end; 0: it is none."""
    if not item or item[0].text != 'template': return 0
    i, depth = 2, 1
    while depth and i < len(item):
        depth += (item[i].text == '<') - (item[i].text == '>')
        i += 1
    return i


def function_of(item):
    """The name of the function that an item defines or declares; None: it is none."""
    if item and item[0].text == 'typedef': return None
    for k in range(template_end(item), len(item)):
        if item[k].text in ('=', '{'): return None
        if item[k].text == '(': return item[k - 1].text if k and item[k - 1].is_name else None
    return None


def typedefs(item):
    found, depth = set(), 0
    for i, t in enumerate(item):
        depth += (t.text in OPEN) - (t.text in CLOSE)
        after = item[i + 1].text if i + 1 < len(item) else ''
        if t.is_name and not depth and after in (';', '[', ','): found.add(t.text)
        if t.is_name and depth == 1 and item[i - 1].text == '*' and item[i - 2].text == '(' and after == ')': found.add(t.text)
    return found


def analyse(item):
    """What an item defines, what it declares ahead, and the tokens with which it uses what others define."""
    item = without(item, {'__attribute__'})
    plain = without(item, ATTRIBUTES)
    parameters, function = {t.text for t in plain[:template_end(plain)]}, function_of(plain)
    names = Names(item).found
    tagged = {plain[i + 1].text for i in range(len(plain) - 2) if plain[i].text in TAGS and plain[i + 2].text == '{'}
    defined, ahead, own = tagged, set(), {name for name, _ in names} | parameters
    if function or is_cpp_struct(item): own |= constants(item)
    else: defined |= constants(item)
    if function:
        own = (own | defined) - {function}
        defined, ahead = ({function}, set()) if item[-1].text == '}' else (set(), {function})
    elif plain and plain[0].text == 'typedef':
        defined |= typedefs(plain)
    elif plain and plain[0].text == 'using':
        defined.add(plain[1].text)
    else:
        defined |= {name for name, open_at in names if not open_at} - parameters
    if item[0].file.endswith('.h'): own |= ahead
    uses = []
    for i, t in enumerate(item):
        if not t.is_name or t.text in WORDS or t.text in own or t.text in defined: continue
        before, after = (item[i - 1].text if i else ''), (item[i + 1].text if i + 1 < len(item) else '')
        if before in ('.', '->', '::') or (before == 'struct' and after in ('*', ';')): continue        # a member; an opaque pointer
        uses.append(t)
    return defined, ahead, uses


# ---- The check --------------------------------------------------------------------------------------------------------------------


def study(tokens):
    """Where each name is defined, and uses after its definition or declaration: what stands before is another's, as the system's."""
    homes, known, uses = collections.defaultdict(set), {}, []
    declared = collections.defaultdict(set)
    for number, item in enumerate(items(tokens)):
        defined, ahead, used = analyse(item)
        for name in defined: homes[name].add(item[0].file)
        for name in ahead: declared[name].add(item[0].file)
        for name in defined | ahead: known.setdefault(name, number)
        uses += [(number, t) for t in used]
        uses += [(number, item[0]._replace(text=name)) for name in ahead if not item[0].file.endswith('.h')]
    for name, files in declared.items():
        if name not in homes: homes[name] = files
    return homes, [t for number, t in uses if known.get(t.text, number + 1) <= number]


def macros(files):
    """The same of macros that a file leaves defined."""
    homes, uses, with_arguments, order = collections.defaultdict(set), [], set(), {file: i for i, file in enumerate(files)}
    text = {file: COMMENT.sub(lambda m: m[1] and '""' or re.sub(r'[^\n]', '', m[0]), open(file).read()) for file in files}
    for file in files:
        gone = set(re.findall(r'^\s*#\s*undef\s+(\w+)', text[file], re.M))
        for name, bracket in re.findall(r'^\s*#\s*define\s+(\w+)(\(?)', text[file], re.M):
            if name in gone: continue
            homes[name].add(file)
            if bracket: with_arguments.add(name)
    for file in files:
        defines = False
        for number, line in enumerate(text[file].split('\n'), 1):
            row = list(tokens_of_line(line, file, number))
            defines = defines or re.match(r'\s*#\s*define', line) is not None          # what a macro names may be defined after it
            for t, after in zip(row, row[1:] + [None]):
                if t.text not in homes or not (defines or any(order[home] < order[file] for home in homes[t.text])): continue
                if t.text not in with_arguments or (after and after.text == '('): uses.append(t)
            defines = defines and line.endswith('\\')
    return homes, uses


def main():
    table, wrong, seen = Table(open(TABLE).read()), {}, {}
    for spine, *flags in BUILDS:
        files = {spine: 0}
        results = [study(preprocessed(spine, flags, files)), macros(list(files))]
        seen.update(files)
        for file in files:
            if file not in SPINES and table.row(file)[0] is None: wrong[file, 0, ''] = '%s: %s has no row for it' % (file, TABLE)
        for homes, uses in results:
            for t in uses:
                if t.text not in homes or t.file in SPINES or table.row(t.file)[0] is None or t.file in homes[t.text]: continue
                if (t.file, t.text) in wrong or table.allows(t.file, t.text, homes[t.text]): continue
                wrong[t.file, t.text] = '%s:%d: %s is of %s, which %s may not use' % (
                    t.file, t.line, t.text, ' and '.join(sorted(homes[t.text])), table.row(t.file)[1])
    complaints = sorted(wrong.values()) + list(table.complaints())
    print('\n'.join(complaints) if complaints else 'rooms: %d files use what they may' % (len(seen) - len(SPINES)))
    return bool(complaints)


if __name__ == '__main__':
    sys.exit(main())
