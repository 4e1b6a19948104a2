#!/usr/bin/perl
# What C++ does not have of CUDA, as C++: the simulator's (tests/simulator/simulator.h). Reads preprocessed source, writes C++. Lines keep their numbers.
#
#   k<<<grid, block>>>(a)                       sim::launch(sim::shape(grid, block), k, a)
#   __shared__ float s[8];                      s refers to memory of the block
#   extern __shared__ char m[];                 m points to the block's dynamic shared memory
#   __cluster_dims__(1, 8, 1) f(..) {           f(..) { sim::cluster(1, 8, 1);
#   f(const __grid_constant__ P p) {            f(const P p) { sim::parameter(sizeof p);
#   asm("add.s32 %0, %1, 1;" : "=r"(y) : "r"(x))    ptx_add_s32(y, x, 1): each instruction is a function of tests/simulator/ptx.h
use strict;
use warnings;

my $parens = qr{(?<parens>\((?:[^()]++|(?&parens))*+\))}s;                  # these may hold each other
my $quoted = qr/"(?:[^"\\]|\\.)*"/s;

sub newlines { my ($text) = @_; return "\n" x ($text =~ tr/\n//); }

# Splits at commas outside of brackets.
sub pieces {
    my ($text) = @_;
    my @pieces = ('');
    my $depth = 0;
    for my $c (split //, $text) {
        $depth++ if $c =~ /[(\[<{]/;
        $depth-- if $c =~ /[)\]>}]/;
        if ($c eq ',' && !$depth) { push @pieces, '' } else { $pieces[-1] .= $c }
    }
    return @pieces;
}

my $count = 0;
sub shared {
    my ($declaration) = @_;
    my $n = $count++;
    my @names = map { /(\w+)\s*(?:\[.*\])?\s*$/s ? $1 : die "__shared__ $declaration" } pieces($declaration);
    my $refer = join ' ', map { "auto &$_ = shared_$n.$_;" } @names;
    return "struct shared_type_$n { $declaration; }; static char shared_key_$n; " .
           "auto &shared_$n = sim::shared<shared_type_$n>(&shared_key_$n); $refer" ;
}

# One instruction of PTX. @of: the operands %0, %1, ..
sub instruction {
    my ($text, @of) = @_;
    $text =~ s/^\s+|\s+$//g;
    return '' if $text eq '';
    if ($text =~ /^\.reg\s+\.(\w+)\s+(.*)$/s) {
        my %types = (pred => 'bool', b8 => 'uint8_t', b16 => 'uint16_t', b32 => 'uint32_t', u32 => 'uint32_t', s32 => 'int32_t', f32 => 'float', b64 => 'uint64_t', u64 => 'uint64_t');
        return ($types{$1} // die "PTX register $1") . " $2;";
    }
    my $if = $text =~ s/^@(!?\w+)\s+// ? "if ($1) " : '';
    my ($name, $operands) = $text =~ /^([\w.:]+)\s*(.*)$/s or die "PTX: $text";
    $name =~ s/[.:]+/_/g;
    $operands =~ s/%%(\w+)\.(\w+)/special_$1_$2/g;
    $operands =~ s/%?%globaltimer\b/sim::waited()/g;
    $operands =~ s/[\[\]{}]//g;
    $operands =~ s/%(\d+)/$of[$1]/g;
    $operands =~ s/special_tid_/sim::now->thread./g;
    return "${if}ptx_$name($operands);";
}

sub assembler {
    my ($inside) = @_;
    my $template = '';
    $inside =~ s/^\s+//;
    $template .= substr $1, 1, -1 while $inside =~ s/^($quoted)\s*//;
    $template =~ s/\\[nt]/ /g;
    my @of;
    push @of, $1 while $inside =~ s/^[\s:,]*$quoted\s*($parens)//;
    $template =~ s/^\s*\{(?=\s*\.reg)|\}\s*$//g if $template =~ /\.reg/;
    return 'do { ' . join(' ', map { instruction($_, @of) } split /;/, $template) . ' } while (0)';
}

local $/;
my $text = <STDIN>;
$text =~ s/\basm\s*(?:volatile\b)?\s*($parens)/my $all = $&; my $in = substr $1, 1, -1; assembler($in) . newlines($all)/ge;
$text =~ s/\bextern\s+__shared__\s+(?:alignas\s*\(\d+\)\s*)?([^;]*?)(\w+)\s*\[\s*\]\s*;/$1*$2 = ($1*)sim::dynamic_shared();/g;
$text =~ s/\b__shared__\s+([^;]*);/my $all = $&; my $d = $1; $d =~ s,\s+, ,g; shared($d) . newlines($all)/ge;
$text =~ s/\b__cluster_dims__\s*($parens)(.*?\)\s*\{)/$3 sim::cluster$1;/gs;
$text =~ s/\b__grid_constant__\s+([^;{}()]*?)(\w+)(\s*\)\s*\{)/$1$2$3 sim::parameter(sizeof $2);/g;
$text =~ s/\b__grid_constant__\b//g;
$text =~ s/(\w+(?:<[^;{}()]*?>)?)\s*<\s*<\s*<(.*?)>\s*>\s*>\s*\(/sim::launch(sim::shape($2), $1, /gs;
print $text;
