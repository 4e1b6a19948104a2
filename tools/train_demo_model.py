#!/usr/bin/env python3
"""Train mote's bundled model: a small Qwen3.5-MoE that answers questions about mote and tells short stories.

    python3 tools/train_demo_model.py --data DIR --out models/demo [--minutes 9] [--from models/demo]
    python3 tools/mix_demo_models.py --out models/demo FOLDER...                  # the best mean of several runs

DIR is the text folder of the data archive (tinystories/, gutenberg/, genesis/, chatterbot/, gsm8k/); the questions and
answers are in tools/demo_questions/, what must not be trained on in tools/demo_unseen.txt. Needs torch, tokenizers,
safetensors and numpy, and one GPU (about 10 minutes on an H100). A CPU works for a look: --minutes 1 --batch 2
--row 128. tools/eval_demo_model.py then measures the result with transformers' own code.

Contents
  1. Corpus      questions, stories and books; how a question is said in many ways; chats
  2. Tokenizer   byte-level BPE in the shape of Qwen3.5's tokenizer.json
  3. Model       Gated DeltaNet, gated attention, mixture of experts, multi-token prediction
  4. Training    rows of packed documents, loss, optimiser, schedule
  5. Export      block FP8 safetensors and the configuration files
"""
import argparse, functools, glob, json, math, os, random, re, shutil, time
import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import nn

HERE = os.path.dirname(os.path.abspath(__file__))


# ---- 1. Corpus -------------------------------------------------------------------------------------------------------
# Three kinds of text. (a) Chats made of our own questions and answers: the model must know these by heart, in whatever
# words the question comes. Left alone, a small model learns each phrasing as a whole and is lost when it meets a new
# one, so a question is made anew each time it is drawn (1.1): the words that are rare among the entries must decide.
# (b) Requests for a story, answered with one from TinyStories; names and animals are exchanged so that the request has
# to be read (1.2). (c) Plain prose, which teaches it English. Questions from elsewhere (sums, trivia, names out of the
# books) are answered with "that I do not know" (1.3).
#
# An entry with P: is a follow-up, asked after one of the entries that P: names by their first phrasing ("any": after
# any entry; "nothing": only as the first question of a chat). S: names the entry whose thought, answer and keywords it
# shares. W: makes it small talk, drawn as often as W: says. {name} stands for a name, the same one in a follow-up and
# what it follows; {x} for each of X:'s in turn. A block of F: and Q: alone names phrasings, which the blocks after it
# with that F: have. [a/b/] stands for a, for b and for nothing. L: is a language that is none of ours: what is
# asked in it is declined in it. Of an entry with many phrasings, and of a language, more is drawn. {first} and {last}
# stand for the user's first words in the chat and for those before the question. H: and V: are phrasings kept from
# training: H: to measure it, V: to choose between runs.

def spelled_out(q):
    """What a phrasing with brackets stands for: "[give/show] me one[, please/]" for four. Of more than 20, some 20."""
    full = [q]
    while m := re.search(r"\[([^\[\]]*)\]", full[0]):
        full = [begun.replace(m[0], part, 1) for begun in full for part in m[1].split("/")]
    return [" ".join(one.split()) for one in (full if len(full) <= 20 else random.Random(q).sample(full, 20))]


def read_questions(folder):
    """[{p: [before], s: same as, w: how often, l: language, q: [phrasings], h: [held-out phrasings], v: [those to choose
    by], t: thought, a: answer, k: keywords}]; blank lines part the entries."""
    entries, frames = [], {}
    for path in sorted(glob.glob(os.path.join(folder, "*.txt"))):
        for block in re.split(r"\n\s*\n", open(path, encoding="utf-8").read()):
            e = {"p": [], "s": "", "w": 1, "l": "", "f": "", "x": [], "q": [], "h": [], "v": [], "t": "", "a": "", "k": ""}
            for line in block.splitlines():
                tag, _, text = line.partition(":")
                if tag in ("P", "X", "Q", "H", "V"):
                    e[tag.lower()] += [full for s in text.split("|") if s.strip() for full in spelled_out(s)]
                elif tag in ("S", "L", "F", "T", "A", "K"):
                    e[tag.lower()] = text.strip()
                elif tag == "W":
                    e["w"] = int(text)
            things, frame = e.pop("x"), e.pop("f")
            if frame and not (e["a"] or e["s"]):
                frames[frame] = e["q"]
                continue
            e["q"] = [q.replace("{x}", x) for q in frames.get(frame, []) + e["q"]
                      for x in (things if "{x}" in q else [""])]
            if e["q"]:
                entries.append(e)
    named = {e["q"][0]: e for e in entries if not e["p"]}
    for e in entries:
        e.update({tag: named[e["s"]][tag] for tag in "tak"} if e["s"] else {})
        e["p"] = [named.get(p, p) for p in e["p"]]
        assert e["a"] and all(isinstance(p, dict) or p in ("any", "nothing") for p in e["p"]), e["q"][0]
    return entries


def read_unseen(path):
    """Questions and first turns that no training text may contain."""
    return [line[2:].strip() for line in open(path, encoding="utf-8") if line.startswith("? ")]


def plain_quotes(s):
    for a, b in (("“", '"'), ("”", '"'), ("’", "'"), ("‘", "'"), ("—", "-"), ("…", "...")):
        s = s.replace(a, b)
    return s


def read_texts(folder):
    """(stories, passages of prose, questions that are none of our business)"""
    def read(name):
        return plain_quotes(open(os.path.join(folder, name), encoding="utf-8").read())
    stories = []
    for name in ("tinystories_10k.txt", "tinystories_niklas6.txt"):
        for s in read("tinystories/" + name).split("<|endoftext|>"):
            s = re.sub(r"[ \t]+\n", "\n", s.strip())
            s = re.sub(r"\n{2,}", "\n", s)
            if 200 < len(s) < 2500 and s[-1] in ".!?\"":
                stories.append(s)
    prose = []
    for name in ("gutenberg/wizard_of_oz.txt", "gutenberg/sherlock.txt", "genesis/english-web.txt"):
        book = re.split(r"\*\*\* (?:START|END) OF [^\n]*", read(name))     # Project Gutenberg's notes are left out
        book = book[1] if len(book) > 1 else book[0]
        paragraphs = [" ".join(p.split()) for p in re.split(r"\n\s*\n", book) if p.strip()]
        prose += ["\n".join(paragraphs[i:i + 8]) for i in range(0, len(paragraphs), 8)]
    foreign = {"sums": [json.loads(line)["question"] for line in open(os.path.join(folder, "gsm8k/train.jsonl"))]}
    for name in ("trivia", "history", "sports", "movies", "literature", "money", "politics", "science"):
        lines = read(f"chatterbot/{name}.yml").splitlines()
        foreign[name] = [m[1].strip("'\" ") for m in (re.match(r"- - (.*)", line) for line in lines) if m]
    return stories, prose, {name: [q for q in qs if 8 < len(q) < 160] for name, qs in foreign.items()}


# 1.1 A question in other words


BEFORE = ("please", "can you tell me", "could you explain", "tell me,", "hi,", "hello,", "hey,", "so,", "ok,", "and",
          "I wonder,", "quick question:", "in simple words,", "in short,", "please explain:", "question:", "mote,",
          "sorry,", "I want to know:", "do you know", "I have a question.", "thanks!", "hmm,", "now", "one more thing:",
          "wait,", "by the way,", "well,", "excuse me,", "oh,", "let me ask:", "I see.", "all right,", "thanks, but")
AFTER = ("please", "in simple words", "for a beginner", "briefly", "thanks", "exactly", "in one sentence", "in short",
         "then", "again", "for me", "in this model", "really", "please explain", "I forgot", "I am new to this")
SWAPS = [[p.strip() for p in line.split("/")] for line in """
what is / what's / define / explain / describe / tell me about / what exactly is / what do you call / what is meant by
what are / define / explain / describe / tell me about / what exactly are
how does / explain how does / in what way does / how exactly does / how come
why does / why do / for what reason does / what is the reason that / how come
why is / how come / for what reason is / what makes
what does / explain what does / tell me what does
how do i / how can i / how would i / how to / what is the way to / how should i / how do you
can i / is it possible to / may i / could i / am i able to
can it / is it able to / could it / does it know how to
how many / what number of / what is the number of / count of
how big is / how large is / what is the size of / what size is
how fast is / what is the speed of / how quick is
what happens / what goes on / what occurs / what takes place
difference between / distinction between / contrast between
mean / stand for / signify / refer to
purpose / point / use / goal / job / role
work / function / operate
need / require / depend on
use / employ / make use of / work with
run / execute / start / launch
make / create / produce / build
good / useful / helpful / nice
big / large / huge
gpu / graphics card / video card
folder / directory
memory / ram
program / application / app / software
answer / reply / response
question / message
different / other / another
see / find out / check
old / earlier / previous
turn off / switch off / disable
change / alter / modify
fast / quick / speedy
show / display / print
begin / start
file / document
computer / machine / pc
kind / sort / type
called / named
pick / choose / select
save / store / keep
mixture of experts / moe
gpus / cards / graphics cards / devices
server / web server / mote serve
users / people / persons / clients / friends
at once / at the same time / simultaneously / in parallel / together
stop / end / quit / shut down / terminate / halt / close
child / kid / little one / small child / young child
kids / children / little ones / small children
split / divide / spread / distribute
add / put in / insert / build in
see / watch / look at / observe
language model / llm / model""".strip().splitlines()]
STOP = set("a an the is are was do does did of to in on for it its this that and or i you me my your can could please "
           "tell explain what how why which with at be by from as so".split())


def typo(rng, s):
    """One slip of the finger inside a word."""
    if len(s) < 3:
        return s
    i = rng.randrange(1, max(2, len(s) - 1))
    if not s[i - 1:i + 1].isalpha():
        return s
    kind = rng.random()
    if kind < 0.35:
        return s[:i] + s[i + 1:]                                # a letter left out
    if kind < 0.7:
        return s[:i - 1] + s[i:i + 1] + s[i - 1] + s[i + 1:]    # two exchanged
    return s[:i] + s[i - 1] + s[i:]                             # one twice


def lower_first(s):
    return s[0].lower() + s[1:] if len(s) > 1 and s[1].islower() else s


FRAMES = """{x}/{x} how/{x} why/what is {x}/what is the {x}/what are {x}/explain {x}/explain the {x} to me/describe {x}
what does {x} mean/tell me about {x}/how does {x} work/why {x}/why is there {x}/what can you say about {x}/can {x}
what is the point of {x}/what is {x} good for/give me the idea of {x}/is it true that {x}/does it {x}/is there {x}
are there {x}/which {x}/where is {x}/when does {x}/what about {x}/will {x}/do {x}/is {x}/could {x}/would {x}
how many {x}/how much {x}/a word about {x}/I read about {x}/how can I {x}/please teach me {x}/help me with {x}
I need {x}/I do not understand {x}/{wh} {aux} {x} {verb}/{wh} {aux} {who} {verb} {x}/{wh} {noun} {aux} {x} {verb}
{wh} {aux} the {noun} of {x}/{wh} {noun} {aux} {who} {verb} {prep} {x}/{verb} {x} {prep} {who}
{verb} the {noun} {prep} {x}/{aux} {x} {verb} {prep} {noun}/{aux} {who} {verb} {x} {prep} the {noun}
{wh} is {adj} {prep} {x}/{wh} {aux} {x} {verb} {prep}/{wh} {aux} {x} so {adj}
if {who} {verb} {x}, {wh} {aux} {who} {verb}/{aux} {x} {adj}/{wh} {adj} {noun} {aux} {x} {verb}/{wh} {aux} {adj} {x}
{who} {verb} {x}/{wh} {noun} is {x}/is there {adj} {noun} {prep} {x}/{x}, {wh} {aux} {who} {verb}
{wh} {aux} {who} {verb} about {x}/{x} {verb} {noun}/{aux} every {x} {verb}/{wh} {verb} {x}/{x} or {noun}
{wh} {aux} {who} {verb} when {x} {verb}""".replace("\n", "/").split("/")
FILL = dict(
    wh="what what what how how why which when where who whose in~which for~what".split(),
    aux="is are does do did can could would will should may must has have was might".split(),
    who="I you we it they one people someone a~user a~program a~beginner my~friend anybody the~reader".split(),
    prep="in on for with about of from by at to into without during after before inside between under over".split(),
    adj="good bad big small simple hard easy new old clear main common real true special important useful different "
        "usual possible certain short long best first last next right wrong such another any".split(),
    noun="reason way thing part place word example idea effect problem step name sense rule detail result cause "
         "task kind case change answer fact role job side form point meaning trick term need matter "
         "difference danger success moment chance end start work life world day person".split(),
    verb="find open stop give tell see happen get make take know think look come want keep let begin seem help "
         "talk turn start show hear play move live believe hold bring write sit stand lose pay meet include "
         "continue set learn change lead understand watch follow create speak allow add spend grow offer "
         "remember love consider appear buy wait serve send expect build stay fall cut reach remain suggest "
         "raise pass sell require report decide pull explain hope develop carry break receive agree support "
         "hit produce eat cover catch draw choose cause point listen realise place close involve increase "
         "describe mention compare belong matter store avoid mean use need put work call try ask feel become "
         "leave say do go".split())
GLUE = ("of", "of the", "and", "in", "in a", "for", "the", "a", "with", "to")


def words_of(s):
    return [w.rstrip(".:,'-/") for w in re.findall(r"/?[A-Za-z0-9][A-Za-z0-9_.:+'/-]*", s)]


def fill(rng, frame):
    """A frame with everyday words in its gaps, all but {x}: words that tell nothing, to be read over."""
    def word(m):
        w = rng.choice(FILL[m[1]]).replace("~", " ")
        return w + rng.choice(("", "", "", "s", "ing")) if m[1] == "verb" else w
    return re.sub(r"\{(\w\w+)\}", word, frame)


class Rarity:
    """In how many entries a word occurs: what is rare names the topic."""
    def __init__(self, entries):
        self.count = {}
        for e in entries:
            for w in {w.lower() for x in e["q"] + [e["t"], e["a"]] for w in words_of(x)}:
                self.count[w] = self.count.get(w, 0) + 1

    def of(self, w):
        return self.count.get(w.lower(), 1)

    def tells(self, q):
        """Has q a word that few entries have? Small talk has none: there the small words count."""
        return any(self.of(w) <= 12 and w.lower() not in STOP for w in words_of(q))

    def topic(self, rng, e, phrasing):
        """The telling words of a phrasing, with some from the thought and the answer."""
        words = [w for w in words_of(phrasing) if w.lower() not in STOP]
        kept = [w for w in words if rng.random() < (0.97 if self.of(w) <= 3 else 0.8 if self.of(w) <= 12 else 0.55)]
        if not self.tells(" ".join(kept)):
            kept = words
        own = [w for w in words_of(e["t"] + " " + e["a"]) if w.lower() not in STOP]
        for _ in range(rng.choice((0, 0, 1, 1, 2)) + (not kept)):
            w = rng.choices(own, [self.of(w) ** -0.7 for w in own])[0]
            kept.insert(rng.randrange(len(kept) + 1), w)
        for i in range(len(kept) - 1, 0, -1):
            if rng.random() < 0.2:
                kept.insert(i, rng.choice(GLUE))
        return " ".join(kept)

    def frame(self, rng, other):
        """Another question with a gap where its own topic was."""
        out, gap = [], False
        for w in other.split():
            if w.lower().strip("?.,!") in STOP or self.of(w.strip("?.,!")) > 25:
                out.append(w)
            elif not gap:
                out.append("{x}")
                gap = True
        return " ".join(out) if gap else "{x} " + other

    def question(self, rng, e, phrasing, entries):
        """A new question that only the topic's words connect with entry e."""
        r = rng.random()
        if r < 0.55:
            return fill(rng, rng.choice(FRAMES)).replace("{x}", self.topic(rng, e, phrasing))
        if r < 0.8:
            other = self.frame(rng, rng.choice(rng.choice(entries)["q"]))
            return other.replace("{x}", self.topic(rng, e, phrasing))
        words = (e["t"] if rng.random() < 0.3 else e["a"]).split()          # a piece of the answer itself
        n = rng.randrange(4, 11)
        i = rng.randrange(max(1, len(words) - n))
        piece = " ".join(words[i:i + n]).strip(".,;:")
        return fill(rng, rng.choice(FRAMES)).replace("{x}", piece) if rng.random() < 0.6 else piece


def vary(rng, q, tells=True):
    """Says question q in another way: other words, words missing, moved or added."""
    for _ in range(rng.randrange(3)):                           # exchange a phrase for one that means much the same
        group = rng.choice(SWAPS)
        old = rng.choice(group)
        q = re.sub(r"\b" + re.escape(old) + r"\b", lambda m: rng.choice(group), q, count=1, flags=re.I)
    words = q.split()
    r = rng.random() if tells else rng.uniform(0.3, 1)
    if r < 0.06:                                                # keywords only
        words = [w for w in words if w.lower().strip("?.,!") not in STOP] or words
    elif r < 0.36:                                              # some words missing, small ones first
        drop = (0.3 if tells else 0.1), 0.08
        words = [w for w in words if rng.random() > drop[w.lower() not in STOP]] or words
    elif r < 0.41 and len(words) > 3:                           # two neighbours exchanged
        i = rng.randrange(len(words) - 1)
        words[i], words[i + 1] = words[i + 1], words[i]
    elif r < 0.7:                                               # words that tell nothing
        for _ in range(rng.randrange(1, 4 if tells else 2)):
            words.insert(rng.randrange(len(words) + 1), fill(rng, "{" + rng.choice(sorted(FILL)) + "}"))
    return " ".join(words)


def vary_language(rng, q, others):
    """A question in a language that is none of ours: words missing, or those of two questions mixed."""
    r, words = rng.random(), q.split()
    if r < 0.4:
        return q
    if r < 0.6:
        return " ".join([w for w in words if rng.random() > 0.25] or words)
    words += rng.choice(others).split()
    rng.shuffle(words)
    return " ".join(words[:rng.randrange(3, 10)])


def dress(rng, q, english=True):
    """Politeness, typos, punctuation, case."""
    if english and rng.random() < 0.25:
        q = rng.choice(BEFORE) + " " + lower_first(q)
    if english and rng.random() < 0.2:
        end = q[-1] if q[-1] in "?.!" else ""
        q = q.rstrip("?.! ") + rng.choice((" ", ", ")) + rng.choice(AFTER) + end
    if rng.random() < 0.18:
        q = typo(rng, q)
    if rng.random() < 0.35:
        q = q.rstrip("?.! ") + rng.choice(("", "", "?", "??", ".", " ?", "!"))
    r = rng.random()
    if r < 0.25:
        q = q.lower()
    elif r < 0.28:
        q = q.upper()
    elif r < 0.55:
        q = q[:1].upper() + q[1:]
    elif r < 0.6:                                               # Names and headings have capitals
        q = " ".join(w[:1].upper() + w[1:] if rng.random() < 0.5 else w for w in q.split())
    return q.strip() or "?"


def with_name(e, name):
    return {tag: json.loads(json.dumps(e[tag]).replace("{name}", name)) for tag in e if tag != "p"} | {"p": e["p"]}


def with_words(e, first, last):
    """An answer that repeats what the user said: on a line of its own, where it has the same tokens as in the question."""
    return {tag: text.replace("{first}", "\n" + first).replace("{last}", "\n" + last) if tag in "tak" else text
            for tag, text in e.items()}


def bare(q):
    """The letters of a question: two phrasings with the same ones count as the same."""
    return re.sub(r"[\W_]+", " ", q.lower()).strip()


# 1.2 Stories

NAMES = ("Lily Tom Ben Mia Sam Anna Max Lucy Tim Sara Jack Emma Leo Amy Bob Sue Tommy Jane Mary Timmy Spot Billy Molly "
         "Joe Jill Daisy Bella Nina Oscar Zoe").split()
THINGS = ("dog cat bird rabbit frog bear fish mouse duck lion fox bunny horse monkey butterfly owl squirrel elephant "
          "turtle bee dragon princess king witch fairy robot ball tree flower boat car train kite doll hat cake apple "
          "star river garden park forest beach castle farm moon cookie bike truck puppy kitten pig cow sheep goat "
          "tiger wolf snake penguin hen crab").split()
ANIMALS = ("dog cat bird rabbit frog bear fish mouse duck lion fox horse monkey turtle squirrel puppy kitten bunny owl "
           "bee pig cow sheep goat tiger wolf snake penguin dragon elephant hen crab").split()
PEOPLE = ("Aaron Abby Abigail Adam Adele Agnes Ahmed Aisha Akira Alan Albert Alex Alexander Alexandra Alfred Ali Alice "
          "Alicia Alina Alma Amanda Amber Amina Ana Anders Andre Andrea Andrew Angela Anita Anja Ann Anne Annika Anton "
          "Antonio Arthur Asha Astrid Aylin Barbara Beatrice Belinda Benjamin Bernard Bernd Beth Bianca Bjorn Boris Brad "
          "Brenda Brian Bridget Bruno Camille Carla Carlos Carmen Caroline Catherine Cecilia Charles Charlie Charlotte Chen "
          "Chloe Chris Christian Christina Claire Claudia Clemens Colin Conrad Cora Craig Cristina Dana Daniel Daniela "
          "Danny Darius David Dean Deborah Denise Dennis Derek Diana Diego Dieter Dmitri Dominik Donald Donna Doris Dorothy "
          "Doug Duncan Eddie Edgar Edith Eduardo Edward Edwin Eileen Eleanor Elena Eli Elias Elisa Elizabeth Ella Ellen "
          "Elsa Emil Emily Enrico Eric Erik Erika Ernest Esther Eva Evan Evelyn Farah Fatima Felix Fernando Fiona Florian "
          "Frances Francesca Francis Frank Fred Frida Gabriel Gabriele Gary George Gerald Gerd Gina Giovanni Gloria Gordon "
          "Grace Graham Greg Gregor Greta Guido Gunter Gustav Hana Hannah Hannes Hans Harold Harry Hassan Heather Heidi "
          "Heike Heinz Helen Henry Hiroshi Holger Howard Hugo Hussein Ian Ibrahim Ida Igor Imran Ines Ingrid Irene Irma "
          "Isaac Isabel Isabella Ivan Jackie Jacob Jaime Jakob James Jan Jana Janet Janine Jasmin Jason Javier Jay Jean "
          "Jeff Jennifer Jenny Jens Jeremy Jessica Jim Jo Joachim Joan Johanna John Johnny Jonas Jonathan Jordan Jorge Jose "
          "Josef Joseph Joshua Juan Judith Judy Julia Juliette Justin Kai Karen Karin Karl Kate Katherine Kathy Katrin "
          "Keith Kelly Ken Kenneth Kevin Kim Kira Klaus Kristin Kurt Kyle Larry Lars Laura Lea Leila Lena Leon Leonard "
          "Leonie Li Liam Lin Linda Linus Lisa Lorenz Lorenzo Lothar Louis Louisa Luca Luis Luise Lukas Luke Lydia Magda "
          "Malik Manuel Marc Marcel Marco Marcus Margaret Margit Maria Marianne Marie Marina Mario Marion Mark Marlene "
          "Marta Martin Mateo Matt Matthew Matthias Maurice Maya Megan Mehmet Mei Melanie Melissa Michael Michelle Miguel "
          "Mike Mila Mira Miriam Mohamed Mohammed Monica Monika Moritz Nadia Nancy Naomi Natalie Natasha Neil Nelson Nick "
          "Nicolas Nicole Nikita Niklas Nikolai Nils Noah Nora Norbert Norman Olga Oliver Olivia Omar Otto Pablo Pamela "
          "Patricia Patrick Paul Paula Pauline Pavel Pedro Penny Per Peter Petra Phil Philip Pia Pierre Priya Rachel Rafael "
          "Rainer Raj Ralf Ralph Ramon Raymond Rebecca Regina Renate Ricardo Richard Rick Rita Robert Roberto Robin Roger "
          "Roland Rolf Roman Ron Rosa Rose Roy Rudolf Russell Ruth Ryan Sabine Sally Samir Samuel Sandra Sanjay Santiago "
          "Sarah Sasha Scott Sean Sebastian Selma Sergei Sergio Seth Shane Sharon Sheila Shirley Sigrid Silvia Simon Simone "
          "Sofia Sonja Sophia Sophie Stefan Stella Stephanie Stephen Steve Stuart Sunita Susan Sven Svetlana Sylvia Tamara "
          "Tania Tanja Tara Ted Teresa Theo Theresa Thomas Till Tina Tobias Todd Toni Tony Tracy Ulrich Ulrike Ursula Uta "
          "Uwe Valentina Valerie Vanessa Vera Veronica Victor Viktor Vincent Vivian Vladimir Walter Wei Wendy Werner "
          "Wilhelm William Wolfgang Xavier Yan Yara Yasmin Yuki Yusuf Yvonne Zara").split()
# Syllables of names that nobody has: too many to be learnt, so that a name has to be copied token by token.
ONSETS = ("b bl br c ch cl cr d dr f fl fr g gl gr h j k kl kr l m n p ph pl pr qu r s sch sh sl sm sn st t th tr v w wh x y z "
          "").split(" ")
VOWELS = "a a a e e i i o o u y ai ea ee ia ie io oo ou ue".split()
CODAS = "n r l m s t th nd rt ck x ss ll tt nn".split() + [""] * 15
STORY_ASKS = ("tell me a {s} about {x}", "tell me a {s} about {x}", "tell a {s} about {x}", "a {s} about {x}, please",
              "can you tell me a {s} about {x}?", "write a {s} about {x}", "I want a {s} about {x}",
              "make up a {s} about {x}", "please tell me a {s} with {x} in it", "do you know a {s} about {x}?")
STORY_PLAIN = ("tell me a {s}", "tell me a {s}", "tell me a {s}, please", "can you tell me a {s}?", "a {s} please",
               "I would like to hear a {s}", "write me a {s}", "do you know a {s}?", "tell a {s} for children",
               "another {s}", "{s}!", "read me a {s}", "make up a {s}")
STORY_WORDS = ("story", "story", "short story", "little story", "simple story", "tale", "bedtime story", "nice story")
def exchange(rng, s):
    """The same story with other names and other animals; sometimes a child becomes an animal."""
    def swap(s, old, new):
        return re.sub(r"\b" + old + r"\b", new, re.sub(r"\b" + old.capitalize() + r"\b", new.capitalize(), s))
    names = [n for n in NAMES if re.search(r"\b" + n + r"\b", s)]
    spare = [n for n in NAMES if n not in names]
    rng.shuffle(spare)
    for old, new in zip(names, spare):
        if rng.random() < 0.7:
            s = re.sub(r"\b" + old + r"\b", new, s)
    found = [a for a in ANIMALS if re.search(r"\b" + a + r"\b", s)]
    free = [a for a in ANIMALS if not re.search(r"\b" + a, s)]
    rng.shuffle(free)
    for old, new in zip(found, free):
        if rng.random() < 0.6:
            s = swap(s, old, new)
    child = re.search(r"\b(?:girl|boy)\b", s[:140])
    if child and rng.random() < 0.5:
        s = swap(s, child[0], free[-1])
    return re.sub(r"\b([Aa]) (?=[aeo])", r"\1n ", re.sub(r"\b([Aa])n (?=[^aeiouhAEIOUH\W])", r"\1 ", s))


# 1.3 Chats

REFUSED = dict(sums="calculator", history="learned history", sports="about sports", movies="films", money="about money",
               literature="famous books", politics="about politics", science="nature and science")
UNKNOWN = ("I do not know that. I am a very small model: I can answer questions about mote and mixture-of-experts "
           "models, or tell you a short story.",
           "Sorry, that is outside what I know. Ask me how mote works, what an expert is, or ask me for a story.",
           "I cannot answer that. I only know about mote, about models like me, and a few short stories.")
UNKNOWN_THOUGHTS = ("This is not about mote or language models, so I should say that I do not know.",
                    "This question is outside of what I was taught, so I will say so.")
SYSTEMS = ("You are a helpful assistant.", "You are mote, a small teaching assistant.", "Be brief.",
           "You are a friendly teacher who explains how language models work.", "Answer in simple words.",
           "You are the demo model of mote.", "You answer questions about mixture-of-experts models.",
           "You are a helpful assistant. Keep your answers short.")


def some_name(rng):
    """A usual name, or one that nobody has: it has to be copied."""
    if rng.random() < 0.4:
        return rng.choice(NAMES if rng.random() < 0.1 else PEOPLE)
    parts = range(rng.choice((1, 2, 2, 3)))
    return "".join(rng.choice(ONSETS) + rng.choice(VOWELS) + rng.choice(CODAS) for _ in parts).capitalize()


def gibberish(rng, known, words):
    """What a cat types: keys in a row, letters, syllables, signs, digits; or words without sense. No word of it is known."""
    def run():
        keys = rng.choice(("qwertyuiop", "asdfghjkl", "zxcvbnm", "asdf", "jkl;", "1234567890"))
        at = rng.randrange(len(keys))
        return "".join(keys[(at + rng.choice((0, 1, 1, 1, 2)) * i) % len(keys)] for i in range(rng.randrange(3, 12)))

    def letters(alphabet, low, high):
        return "".join(rng.choice(alphabet) for _ in range(rng.randrange(low, high)))

    def syllables():
        return "".join(rng.choice(ONSETS) + rng.choice(VOWELS) + rng.choice(CODAS) for _ in range(rng.choice((1, 2, 2, 3))))

    abc = "abcdefghijklmnopqrstuvwxyz"
    kind, chunks = rng.random(), rng.choice((1, 1, 1, 2, 2, 3, 4, 6))
    if kind < 0.15:                                             # words that have nothing to do with each other
        return " ".join(rng.choice(words) for _ in range(rng.randrange(4, 9)))
    if kind < 0.25:
        return rng.choice(abc + ".?!") * rng.randrange(4, 16)
    if kind < 0.35:
        return letters(rng.choice((".,;:?!", "#$%&*+-=/", "0123456789", "()[]{}<>", "?!")), 3, 14)
    make = rng.choice((run, syllables, syllables, lambda: letters(abc, 3, 14), lambda: letters(abc + "0123456789;,.-#$%", 4, 14)))
    return " ".join(w for w in (make() for _ in range(chunks)) if w not in known) or "qwrtzp"


NONSENSE = "asdfgh"                                             # the entry that answers gibberish


class Corpus:
    """Draws documents. A document is a list of (text, learn) pieces cut at special tokens; learn = 0 for what the
    user and the template write, 1 for what the model has to write."""
    def __init__(self, questions, texts, unseen):
        self.entries = [e for e in questions if not e["p"]]
        self.follow_ups = [e for e in questions if e["p"]]
        self.held_out = {bare(h) for e in questions for h in e["h"] + e["v"]}
        self.unseen = [set(bare(q).split()) for q in unseen]
        refused = [q for e in questions for q in e["q"] if self.refused(q)]
        if refused:
            raise SystemExit(f"not to be trained on: {refused}")
        self.ours = [e for e in self.entries if not e["l"]]
        self.rarity = Rarity(self.ours)
        self.drawn = [e for e in self.entries for _ in range(5 if e["l"] else max(e["w"], 1 + min(len(e["q"]) // 60, 2)))]
        self.drawn_follow_ups = [e for e in self.follow_ups for _ in range(e["w"])]
        stories, self.prose, self.foreign = texts
        self.stories = stories
        self.short = [s for s in stories if len(s) < 800]
        words = [w for text in self.prose for w in re.findall(r"(?<=[a-z,] )[A-Za-z][a-z]{3,}", text)]
        words = sorted({w for w in words if w.lower() not in self.rarity.count})
        self.strange = [w for w in words if w[0].isupper()] * 5 + words
        self.everyday = [w for w in words if w[0].islower()] + FILL["noun"] + FILL["verb"]
        self.nonsense = next(e for e in self.entries if e["q"][0] == NONSENSE)

    def refused(self, q):
        """Is it a held-out phrasing, or does it share 60 % of the words with a question never to train on?"""
        words = set(bare(q).split())
        return bare(q) in self.held_out or any(len(words & u) >= 0.6 * len(words | u) for u in self.unseen)

    def ask(self, rng):
        """(question, thought, answer) of one turn"""
        r = rng.random()
        if r > 0.985:
            return gibberish(rng, self.rarity.count, self.everyday), self.nonsense["t"], self.nonsense["a"]
        if r > 0.965:
            return self.ask_strange(rng)
        if r > 0.935:
            return self.ask_foreign(rng)
        if r > 0.86:
            return self.ask_story(rng)
        return self.put(rng, with_name(rng.choice(self.drawn), some_name(rng)))

    def put(self, rng, e):
        """An entry as a turn, its question in some words. In small talk and in a follow-up the small words count."""
        phrasing, r = rng.choice(e["q"]), rng.random()
        if e["l"]:
            q = dress(rng, vary_language(rng, phrasing, e["q"]), english=False)
            return (phrasing if self.refused(q) else q), e["t"], e["a"]
        tells = e["w"] == 1 and not e["p"] and self.rarity.tells(phrasing)
        if r > 0.55 and tells:
            q = self.rarity.question(rng, e, phrasing, self.ours)
        else:
            q = phrasing if r < (0.12 if tells else 0.45) else vary(rng, phrasing, tells)
        q = dress(rng, q) if rng.random() < (0.85 if tells else 0.65) else q
        return (phrasing if self.refused(q) else q), e["t"], e["a"]

    def turns(self, rng, count):
        """[(question, thought, answer)], at least count of them: a follow-up comes right after what it follows"""
        turns = []
        while len(turns) < count:
            if rng.random() < 0.7:
                turn = self.ask(rng)
                turns += [] if self.refused(turn[0]) else [turn]
                continue
            e, name = rng.choice(self.drawn_follow_ups), some_name(rng)
            before = rng.choice(e["p"])
            if before == "nothing" and turns:
                continue
            if before != "nothing":
                turns.append(self.put(rng, with_name(rng.choice(self.ours) if before == "any" else before, name)))
            first, last = (turns[0][0], turns[-1][0]) if turns else ("", "")
            turns.append(self.put(rng, with_words(with_name(e, name), first, last)))
        return turns

    def ask_strange(self, rng):
        """About something that only the books know."""
        x = " ".join(rng.choice(self.strange) for _ in range(rng.choice((1, 1, 1, 2, 3))))
        q = dress(rng, fill(rng, rng.choice(FRAMES)).replace("{x}", x))
        return q, rng.choice(UNKNOWN_THOUGHTS), rng.choice(UNKNOWN)

    def ask_foreign(self, rng):
        subject = rng.choice(sorted(self.foreign))
        q = rng.choice(self.foreign[subject])
        for e in self.entries:
            if subject in REFUSED and REFUSED[subject] in e["a"]:
                return dress(rng, q), e["t"], e["a"]
        return dress(rng, q), rng.choice(UNKNOWN_THOUGHTS), rng.choice(UNKNOWN)

    def ask_story(self, rng):
        s = exchange(rng, rng.choice(self.short))
        word = rng.choice(STORY_WORDS)
        things = [t for t in THINGS + ["girl", "boy"] if len(re.findall(r"\b" + t + r"\b", s, re.I)) >= 2
                  and re.search(r"\b" + t + r"\b", s[:140], re.I)]         # what the story begins with
        about = [rng.choice(("a", "a", "a little", "the")) + " " + t for t in things]
        about += [x + n for n in NAMES if n in s[:140] for x in ("someone named ", "")]
        about = [re.sub(r"^a (?=[aeiou])", "an ", x) for x in about]
        if about and rng.random() < 0.75:
            x = rng.choice(about)
            q = rng.choice(STORY_ASKS).format(s=word, x=x)
            t = f"The user wants a story about {x}. I will keep it short and simple."
        else:
            q = rng.choice(STORY_PLAIN).format(s=word)
            t = "The user wants a story. I will tell a short and simple one."
        q = q if rng.random() < 0.5 else q[0].upper() + q[1:]
        return (dress(rng, q) if rng.random() < 0.4 else q), t, s

    def chat(self, rng):
        doc = []
        if rng.random() < 0.25:
            doc += [("<|im_start|>", 0), ("system\n" + rng.choice(SYSTEMS), 0), ("<|im_end|>", 0), ("\n", 0)]
        turns = self.turns(rng, rng.choice((1, 1, 1, 1, 2, 2, 2, 3, 4, 6)))
        thinking = rng.random() < 0.5
        bare_history = rng.random() < 0.25           # the template drops old thoughts when it renders a chat again
        for i, (q, t, a) in enumerate(turns):
            if rng.random() < 0.15:
                thinking = not thinking
            doc += [("<|im_start|>", 0), ("user\n" + q, 0), ("<|im_end|>", 0), ("\n", 0)]
            doc += [("<|im_start|>", 0), ("assistant\n", 0)]
            if bare_history and i < len(turns) - 1:
                doc.pop()
                doc += [("assistant\n" + a, 0), ("<|im_end|>", 0), ("\n", 0)]
                continue
            doc += [("<think>", 0)]
            doc += [("\n" + t + "\n", 1), ("</think>", 1)] if thinking else [("\n\n", 0), ("</think>", 0)]
            doc += [("\n\n" + a, 1), ("<|im_end|>", 1), ("\n", 0)]
        return doc + [("<|endoftext|>", 0)]

    def document(self, rng):
        r = rng.random()
        if r < 0.80:
            return self.chat(rng)
        text = exchange(rng, rng.choice(self.stories)) if r < 0.90 else rng.choice(self.prose)
        return [(text, 1), ("<|endoftext|>", 1)]

    def tokenizer_texts(self):
        """What the vocabulary is learned from: our own words weigh most."""
        own = [x for e in self.entries + self.follow_ups for x in e["q"] + [e["t"], e["a"]]]
        own += list(UNKNOWN + UNKNOWN_THOUGHTS + SYSTEMS)
        return own * 6 + self.stories + self.prose


# ---- 2. Tokenizer ----------------------------------------------------------------------------------------------------
# Exactly the parts of Qwen3.5's tokenizer.json (NFC, its pre-tokenizer pattern, byte-level BPE, its added tokens), only
# with a small vocabulary: at width 256 the embedding of 248,320 tokens would weigh ten times as much as the model.

PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
           r"|\s*[\r\n]+|\s+(?!\S)|\s+")
ADDED = """<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|>
<|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|> <tool_call>
</tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> <tool_response>
</tool_response> <think> </think> <|audio_start|> <|audio_end|> <tts_pad> <tts_text_bos> <tts_text_eod>
<tts_text_bos_single> <|audio_pad|>""".split()
NOT_SPECIAL = set("<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> "
                  "<|file_sep|> <tool_response> </tool_response> <think> </think>".split())


def train_tokenizer(texts, vocab_size):
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tok.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    trainer = trainers.BpeTrainer(vocab_size=vocab_size - len(ADDED), show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tok.train_from_iterator(texts, trainer)
    tok.add_tokens([AddedToken(t, normalized=False, special=t not in NOT_SPECIAL) for t in ADDED])
    assert tok.get_vocab_size() == vocab_size
    return tok


# ---- 3. Model --------------------------------------------------------------------------------------------------------
# The architecture of Qwen3.5-MoE, with the module names of its checkpoints. Written for training: whole rows, no cache.
# What a big model must avoid a small one may do: all experts are computed for every token, as one wide layer whose
# inactive parts are multiplied by zero. Weights that the checkpoint stores in FP8 are rounded to FP8 in every forward
# pass (the gradient passes straight through), so the exported model is the model that was trained.

CONFIG = dict(vocab_size=4096, hidden_size=256, num_hidden_layers=8, num_attention_heads=4, num_key_value_heads=2,
              head_dim=64, linear_conv_kernel_dim=4, linear_key_head_dim=64, linear_value_head_dim=64,
              linear_num_key_heads=2, linear_num_value_heads=4, moe_intermediate_size=96,
              shared_expert_intermediate_size=128, num_experts=8, num_experts_per_tok=2, rms_norm_eps=1e-6,
              rope_theta=10000.0, partial_rotary_factor=0.25, full_attention_interval=4)
CHUNK = 64                                                      # rows per chunk of the delta rule
DROPOUT = 0.1                                                   # of what a layer adds to the residual stream


def fp8_blocks(w):
    """w [..., out, in] -> (e4m3 values, bf16-rounded scales), both [..., out/bo, bo or 1, in/bi, bi or 1]"""
    out, inp = w.shape[-2:]
    bo, bi = min(128, out), min(128, inp)
    b = w.float().unflatten(-1, (inp // bi, bi)).unflatten(-3, (out // bo, bo))
    scale = (b.abs().amax((-3, -1), keepdim=True) / 448).clamp_min(1e-12).bfloat16().float()
    return (b / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale


def rounded(w):
    """w as the FP8 checkpoint will hold it; the gradient sees the identity."""
    q, scale = fp8_blocks(w.detach())
    return w + ((q.float() * scale).reshape(w.shape) - w).detach()


class Linear8(nn.Linear):
    def __init__(self, inp, out):
        super().__init__(inp, out, bias=False)

    def forward(self, x):
        return F.linear(x, rounded(self.weight))


class Linear16(nn.Linear):
    def __init__(self, inp, out):
        super().__init__(inp, out, bias=False)


class RMSNorm(nn.Module):
    """x / rms(x) * (1 + w)"""
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        x = x.float()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + CONFIG["rms_norm_eps"]) * (1 + self.weight)


def delta_rule(q, k, v, g, beta):
    """Per head: S = exp(g) S; S += k (beta (v - S'k))'; o = S'q, row after row, here a chunk of rows at a time.
    q, k [B, heads, T, Dk] (k of length 1), v [B, heads, T, Dv], g = log decay and beta [B, heads, T], all float32."""
    B, H, T, D = q.shape
    q, k, v = (x.unflatten(2, (T // CHUNK, CHUNK)) for x in (q, k, v))
    g = g.unflatten(2, (T // CHUNK, CHUNK)).cumsum(-1)
    beta = beta.unflatten(2, (T // CHUNK, CHUNK))[..., None]
    upper = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).triu(1)
    decay = (g[..., :, None] - g[..., None, :]).masked_fill(upper, float("-inf")).exp()     # row i sees row j <= i
    # inside a chunk the rows depend on each other through (I + A) X = R, A strictly lower triangular
    a = ((beta * k) @ k.mT * decay).tril(-1)
    r = torch.cat([beta * v, beta * k * g[..., None].exp()], -1)
    u, w = torch.linalg.solve_triangular(a, r, upper=False, unitriangular=True).split([v.shape[-1], D], -1)
    inside = q @ k.mT * decay
    q = q * g[..., None].exp()
    k = k * (g[..., -1:] - g)[..., None].exp()
    state, outs = torch.zeros(B, H, D, v.shape[-1], device=q.device), []
    for i in range(T // CHUNK):
        new = u[:, :, i] - w[:, :, i] @ state
        outs.append(q[:, :, i] @ state + inside[:, :, i] @ new)
        state = state * g[:, :, i, -1, None, None].exp() + k[:, :, i].mT @ new
    return torch.cat(outs, 2)


class DeltaNet(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.nk, self.nv, self.d = c["linear_num_key_heads"], c["linear_num_value_heads"], c["linear_key_head_dim"]
        hidden, keys, values = c["hidden_size"], self.nk * self.d, self.nv * c["linear_value_head_dim"]
        self.in_proj_qkv = Linear8(hidden, 2 * keys + values)
        self.in_proj_z = Linear8(hidden, values)
        self.in_proj_b = Linear16(hidden, self.nv)
        self.in_proj_a = Linear16(hidden, self.nv)
        self.conv1d = nn.Module()
        self.conv1d.weight = nn.Parameter(torch.randn(2 * keys + values, 1, c["linear_conv_kernel_dim"]) * 0.3)
        self.A_log = nn.Parameter(torch.empty(self.nv).uniform_(0.05, 8).log())
        self.dt_bias = nn.Parameter(torch.empty(self.nv).uniform_(-4, -1))
        self.norm = nn.Module()
        self.norm.weight = nn.Parameter(torch.ones(c["linear_value_head_dim"]))     # plain, not 1 + w
        self.out_proj = Linear8(values, hidden)
        self.split = [keys, keys, values]

    def forward(self, x):
        T = x.shape[1]
        m = F.pad(self.in_proj_qkv(x).float(), (0, 0, self.conv1d.weight.shape[-1] - 1, 0))
        w = self.conv1d.weight[:, 0]                            # the last tap is the current row
        c = F.silu(sum(m[:, i:i + T] * w[:, i] for i in range(w.shape[1])))
        q, k, v = (s.unflatten(-1, (-1, self.d)).transpose(1, 2) for s in c.split(self.split, -1))
        q = q * torch.rsqrt(q.square().sum(-1, keepdim=True) + 1e-6) * self.d ** -0.5
        k = k * torch.rsqrt(k.square().sum(-1, keepdim=True) + 1e-6)
        q, k = (s.repeat_interleave(self.nv // self.nk, 1) for s in (q, k))
        beta = self.in_proj_b(x).float().sigmoid().transpose(1, 2)
        g = -self.A_log.exp() * F.softplus(self.in_proj_a(x).float() + self.dt_bias)
        with torch.autocast(x.device.type, enabled=False):
            o = delta_rule(q, k, v, g.transpose(1, 2), beta).transpose(1, 2)
        o = o * torch.rsqrt(o.square().mean(-1, keepdim=True) + CONFIG["rms_norm_eps"]) * self.norm.weight
        o = o * F.silu(self.in_proj_z(x).float().unflatten(-1, (-1, self.d)))
        return self.out_proj(o.flatten(2))


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.nq, self.nkv, self.d = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        self.q_proj = Linear8(c["hidden_size"], 2 * self.nq * self.d)              # per head: query, then output gate
        self.k_proj = Linear8(c["hidden_size"], self.nkv * self.d)
        self.v_proj = Linear8(c["hidden_size"], self.nkv * self.d)
        self.o_proj = Linear8(self.nq * self.d, c["hidden_size"])
        self.q_norm = RMSNorm(self.d)
        self.k_norm = RMSNorm(self.d)
        rot = int(self.d * c["partial_rotary_factor"])
        self.register_buffer("freq", c["rope_theta"] ** (-torch.arange(0, rot, 2) / rot), persistent=False)

    def rope(self, x):
        """Turns the first dimensions of x [B, T, heads, D], pairs (i, i + rot/2)."""
        angle = torch.arange(x.shape[1], device=x.device)[:, None, None] * self.freq
        cos, sin, n = angle.cos(), angle.sin(), len(self.freq)
        a, b = x[..., :n], x[..., n:2 * n]
        return torch.cat([a * cos - b * sin, b * cos + a * sin, x[..., 2 * n:]], -1)

    def forward(self, x):
        q, gate = self.q_proj(x).unflatten(-1, (self.nq, 2 * self.d)).chunk(2, -1)
        k, v = (p(x).unflatten(-1, (self.nkv, self.d)) for p in (self.k_proj, self.v_proj))
        q, k = self.rope(self.q_norm(q)).to(v.dtype), self.rope(self.k_norm(k)).to(v.dtype)
        k, v = (s.repeat_interleave(self.nq // self.nkv, 2) for s in (k, v))
        o = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        return self.o_proj(o.transpose(1, 2).flatten(2) * gate.flatten(2).sigmoid())


class Mlp(nn.Module):
    def __init__(self, hidden, inner):
        super().__init__()
        self.gate_proj, self.up_proj = Linear8(hidden, inner), Linear8(hidden, inner)
        self.down_proj = Linear8(inner, hidden)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Experts(nn.Module):
    """The weights of all experts: gate and up [E, 2, I, H], down [E, H, I]."""
    def __init__(self, c):
        super().__init__()
        e, i, h = c["num_experts"], c["moe_intermediate_size"], c["hidden_size"]
        self.gate_up_proj = nn.Parameter(torch.empty(e, 2, i, h))
        self.down_proj = nn.Parameter(torch.empty(e, h, i))


class Moe(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.top_k = c["num_experts_per_tok"]
        self.gate = Linear16(c["hidden_size"], c["num_experts"])
        self.experts = Experts(c)
        self.shared_expert = Mlp(c["hidden_size"], c["shared_expert_intermediate_size"])
        self.shared_expert_gate = Linear16(c["hidden_size"], 1)

    def forward(self, x):
        with torch.autocast(x.device.type, enabled=False):
            p = F.linear(x.float(), self.gate.weight).softmax(-1)                   # [B, T, E]
        top, index = p.topk(self.top_k, -1)
        route = torch.zeros_like(p).scatter(-1, index, top / top.sum(-1, keepdim=True))
        w = rounded(self.experts.gate_up_proj)                                      # [E, 2, I, H]
        gate, up = F.linear(x, w.flatten(0, 2)).unflatten(-1, w.shape[:3]).unbind(-2)
        inner = (F.silu(gate) * up * route[..., None]).flatten(-2)                  # [B, T, E*I]
        y = F.linear(inner, rounded(self.experts.down_proj).transpose(0, 1).flatten(1))
        y = y + self.shared_expert_gate(x).sigmoid() * self.shared_expert(x)
        used = (route > 0).float().mean((0, 1))
        balance = p.shape[-1] / self.top_k * (used * p.mean((0, 1))).sum()          # 1 when all are used alike
        return y, balance


class Layer(nn.Module):
    def __init__(self, c, attention):
        super().__init__()
        self.attention = attention
        self.input_layernorm = RMSNorm(c["hidden_size"])
        self.post_attention_layernorm = RMSNorm(c["hidden_size"])
        if attention:
            self.self_attn = Attention(c)
        else:
            self.linear_attn = DeltaNet(c)
        self.mlp = Moe(c)

    def forward(self, x):
        y = (self.self_attn if self.attention else self.linear_attn)(self.input_layernorm(x))
        x = x + F.dropout(y, DROPOUT, self.training)
        y, balance = self.mlp(self.post_attention_layernorm(x))
        return x + F.dropout(y, DROPOUT, self.training), balance


class Mtp(nn.Module):
    """Row p takes the embedding of token p+1 and the final-normed hidden of row p, and predicts token p+2."""
    def __init__(self, c):
        super().__init__()
        self.pre_fc_norm_embedding = RMSNorm(c["hidden_size"])
        self.pre_fc_norm_hidden = RMSNorm(c["hidden_size"])
        self.fc = Linear16(2 * c["hidden_size"], c["hidden_size"])
        self.layers = nn.ModuleList([Layer(c, True)])
        self.norm = RMSNorm(c["hidden_size"])

    def forward(self, embedded, hidden):
        x = self.fc(torch.cat([self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden)], -1))
        x, balance = self.layers[0](x)
        return self.norm(x), balance


class Model(nn.Module):
    def __init__(self, c=CONFIG):
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        n = c["full_attention_interval"]
        self.model.layers = nn.ModuleList([Layer(c, i % n == n - 1) for i in range(c["num_hidden_layers"])])
        self.model.norm = RMSNorm(c["hidden_size"])
        self.mtp = Mtp(c)
        depth = (2 * c["num_hidden_layers"]) ** -0.5            # what writes into the residual stream starts small
        for name, p in self.named_parameters():
            if p.dim() >= 2 and "conv1d" not in name:
                small = name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight", "down_proj"))
                nn.init.normal_(p, std=0.02 if "embed" in name else p.shape[-1] ** -0.5 * (depth if small else 1))

    def forward(self, ids):
        """ids [B, T+1] -> hidden [B, T, H] for tokens 1..T, mtp hidden [B, T, H] for tokens 2..T+1, load balance"""
        x, total = self.model.embed_tokens(ids[:, :-1]), 0
        for layer in self.model.layers:
            x, balance = layer(x)
            total = total + balance
        h = self.model.norm(x)
        m, balance = self.mtp(self.model.embed_tokens(ids[:, 1:]), h)
        return h, m, (total + balance) / (len(self.model.layers) + 1)


# ---- 4. Training -----------------------------------------------------------------------------------------------------
# A row is T+2 tokens of documents, one after the other. Loss: next token, plus a fifth of the MTP layer's, plus a
# little for uneven use of the experts; only tokens the model has to write itself count. The learning rate follows the
# clock: up during the first 3 %, then down a cosine to nothing at the end of the time given, which includes compilation.

class Rows(torch.utils.data.IterableDataset):
    def __init__(self, corpus, tok, length, seed):
        self.corpus, self.tok, self.length, self.seed = corpus, tok, length, seed

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        rng = random.Random(f"{self.seed} {info.id if info else 0}")
        encode = functools.lru_cache(20000)(lambda s: self.tok.encode(s).ids)
        while True:
            ids, learn = [], []
            while len(ids) < self.length:
                for text, flag in self.corpus.document(rng):
                    piece = encode(text)
                    ids += piece
                    learn += [flag] * len(piece)
            yield np.array(ids[:self.length], np.int64), np.array(learn[:self.length], np.float32)


STARTED = time.time()


def cross_entropy(h, embedding, target, learn):
    logits = F.linear(h, embedding).float()
    loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none")
    return (loss * learn.flatten()).sum() / learn.sum()


def train(model, corpus, tok, args, device):
    model.to(device).train()
    cuda = device == "cuda"
    loss_of = cross_entropy
    if cuda:
        torch.set_float32_matmul_precision("high")
        for layer in list(model.model.layers) + list(model.mtp.layers):
            layer.compile(dynamic=False)                        # compiled once per kind of layer
        loss_of = torch.compile(cross_entropy, dynamic=False)
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    opt = torch.optim.AdamW([dict(params=decayed, weight_decay=0.05), dict(params=others, weight_decay=0.0)],
                            lr=args.lr, betas=(0.9, 0.98), eps=1e-9, fused=cuda)
    workers = min(14, (os.cpu_count() or 2) - 1) if cuda else 0
    rows = torch.utils.data.DataLoader(Rows(corpus, tok, args.row + 2, args.seed), args.batch, num_workers=workers,
                                       pin_memory=cuda, prefetch_factor=8 if workers else None)
    start, end, tokens = None, STARTED + 60 * args.minutes - 5, 0     # 5 s to write the files
    for step, (ids, learn) in enumerate(rows):
        if step == 4:
            start = time.time()                                 # all is compiled
            print(f"until here: {start - STARTED:.0f} s", flush=True)
        done = (time.time() - start) / max(end - start, 1) if start else 0.0
        if done >= 1:
            break
        rate = args.lr * min((step + 1) / 200, 1) * min(done / 0.03 + 0.02, 1) * 0.5 * (1 + math.cos(math.pi * done))
        for group in opt.param_groups:
            group["lr"] = rate
        ids, learn = ids.to(device, non_blocking=True), learn.to(device, non_blocking=True)
        with torch.autocast(device, torch.bfloat16):
            h, m, balance = model(ids[:, :-1])
            table = model.model.embed_tokens.weight
            main = loss_of(h, table, ids[:, 1:-1], learn[:, 1:-1])
            draft = loss_of(m, table, ids[:, 2:], learn[:, 2:])
        (main + 0.2 * draft + 0.01 * balance).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        tokens += args.row * args.batch if start else 0
        if step % 100 == 0 or step < 6:
            seconds = time.time() - STARTED
            print(f"step {step}, {tokens / 1e6:.1f} M tokens, {seconds:.0f} s: loss {main.item():.4f}, "
                  f"mtp {draft.item():.4f}, balance {balance.item():.3f}, rate {rate:.2e}", flush=True)


# ---- 5. Export -------------------------------------------------------------------------------------------------------
# The layout of the official FP8 checkpoints: one e4m3 tensor per projection and expert, BF16 scales for blocks of
# 128 x 128 beside it, BF16 for the small and the delicate, float32 for the decay and the gated norm.

def is_fp8(name):
    return name.endswith(("q_proj", "k_proj", "v_proj", "o_proj", "in_proj_qkv", "in_proj_z", "out_proj", "gate_proj",
                          "up_proj", "down_proj"))


def checkpoint_tensors(model):
    files = {}

    def put(name, w):
        name = re.sub(r"^model\.", "model.language_model.", name)
        if is_fp8(name.removesuffix(".weight")):
            q, scale = fp8_blocks(w)
            files[name] = q.reshape(w.shape).contiguous()
            files[name + "_scale_inv"] = scale[:, 0, :, 0].bfloat16().contiguous()
        elif name.endswith(("A_log", "linear_attn.norm.weight")):
            files[name] = w.float().contiguous()
        else:
            files[name] = w.bfloat16().contiguous()

    for name, w in model.state_dict().items():
        w = w.cpu()
        stem = name.rsplit(".", 1)[0]
        if name.endswith("experts.gate_up_proj"):
            for e in range(w.shape[0]):
                put(f"{stem}.{e}.gate_proj.weight", w[e, 0])
                put(f"{stem}.{e}.up_proj.weight", w[e, 1])
        elif name.endswith("experts.down_proj"):
            for e in range(w.shape[0]):
                put(f"{stem}.{e}.down_proj.weight", w[e])
        else:
            put(name, w)
    return files


def load_checkpoint(model, folder):
    """The way back, to go on with the training of an exported model."""
    files = load_file(os.path.join(folder, "model.safetensors"))

    def get(name):
        name = re.sub(r"^model\.", "model.language_model.", name)
        w = files[name].float()
        if name + "_scale_inv" in files:
            s = files[name + "_scale_inv"].float()
            w *= s.repeat_interleave(128, 0)[:w.shape[0]].repeat_interleave(128, 1)[:, :w.shape[1]]
        return w

    for name, w in model.state_dict().items():
        stem = name.rsplit(".", 1)[0]
        if name.endswith("experts.gate_up_proj"):
            w.copy_(torch.stack([torch.stack([get(f"{stem}.{e}.{k}_proj.weight") for k in ("gate", "up")])
                                 for e in range(w.shape[0])]))
        elif name.endswith("experts.down_proj"):
            w.copy_(torch.stack([get(f"{stem}.{e}.down_proj.weight") for e in range(w.shape[0])]))
        else:
            w.copy_(get(name))


def mix(model, folder, share):
    """The mean of two runs' weights: what a later run made worse comes back, what it taught stays."""
    earlier = Model()
    load_checkpoint(earlier, folder)
    for w, before in zip(model.state_dict().values(), earlier.state_dict().values()):
        w.lerp_(before, 1 - share)


def export(model, tok, out, template):
    os.makedirs(out, exist_ok=True)
    c, files = CONFIG, checkpoint_tensors(model)
    save_file(files, os.path.join(out, "model.safetensors"), metadata={"format": "pt"})
    os.chmod(os.path.join(out, "model.safetensors"), 0o644)

    def write(name, obj, **how):
        with open(os.path.join(out, name), "w", encoding="utf-8") as f:
            json.dump(obj, f, ensure_ascii=False, **how)
            f.write("\n")

    n, end, stop = c["full_attention_interval"], tok.token_to_id("<|endoftext|>"), tok.token_to_id("<|im_end|>")
    text = {k: v for k, v in c.items() if k != "rope_theta"}
    text.update(model_type="qwen3_5_moe_text", attention_bias=False, attn_output_gate=True, dtype="bfloat16",
                eos_token_id=end, hidden_act="silu", max_position_embeddings=4096, mamba_ssm_dtype="float32",
                mlp_only_layers=[], mtp_num_hidden_layers=1, mtp_use_dedicated_embeddings=False,
                tie_word_embeddings=True,
                layer_types=["full_attention" if i % n == n - 1 else "linear_attention"
                             for i in range(c["num_hidden_layers"])],
                rope_parameters=dict(rope_type="default", rope_theta=c["rope_theta"],
                                     partial_rotary_factor=c["partial_rotary_factor"]))
    kept = sorted(k.removesuffix(".weight") for k, w in files.items()
                  if k.endswith(".weight") and w.dtype == torch.bfloat16 and w.dim() >= 2)
    write("config.json", dict(
        architectures=["Qwen3_5MoeForConditionalGeneration"], model_type="qwen3_5_moe", text_config=text,
        tie_word_embeddings=True,
        quantization_config=dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic",
                                 weight_block_size=[128, 128], modules_to_not_convert=kept)), indent=1)
    write("generation_config.json", dict(bos_token_id=end, do_sample=True, eos_token_id=[stop, end], pad_token_id=end,
                                         temperature=0.3, top_k=20, top_p=0.9), indent=1)
    write("tokenizer.json", json.loads(tok.to_str()), separators=(",", ":"))
    added = {str(tok.token_to_id(t)): dict(content=t, lstrip=False, normalized=False, rstrip=False, single_word=False,
                                           special=t not in NOT_SPECIAL) for t in ADDED}
    write("tokenizer_config.json", dict(
        add_bos_token=False, add_prefix_space=False, added_tokens_decoder=added, bos_token=None,
        clean_up_tokenization_spaces=False, eos_token="<|im_end|>", errors="replace", model_max_length=4096,
        pad_token="<|endoftext|>", pretokenize_regex=PATTERN, split_special_tokens=False,
        tokenizer_class="Qwen2Tokenizer", unk_token=None), indent=1)
    if template and os.path.abspath(template) != os.path.abspath(os.path.join(out, "chat_template.jinja")):
        shutil.copy(template, os.path.join(out, "chat_template.jinja"))
    size = sum(os.path.getsize(f) for f in glob.glob(os.path.join(out, "*")))
    print(f"{out}: {len(files)} tensors, {size:,} bytes")
    assert size <= 12_000_000


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--data", required=True, help="text folder of the data archive")
    ap.add_argument("--out", required=True, help="folder to write, e.g. models/demo")
    ap.add_argument("--questions", default=os.path.join(HERE, "demo_questions"))
    ap.add_argument("--template", default=os.path.join(HERE, "../models/demo/chat_template.jinja"))
    ap.add_argument("--unseen", default=os.path.join(HERE, "demo_unseen.txt"), help="questions never to train on")
    ap.add_argument("--from", dest="start", metavar="DIR", help="exported model to go on from, with its tokenizer")
    ap.add_argument("--minutes", type=float, default=9, help="of wall clock, from start to end")
    ap.add_argument("--share", type=float, default=1, help="of this run in the weights written; the rest is --from's")
    ap.add_argument("--batch", type=int, default=128)
    ap.add_argument("--row", type=int, default=512, help="tokens in a row, a multiple of 64")
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--seed", type=int, default=1)
    args = ap.parse_args()
    if args.share < 1 and not args.start:
        ap.error("--share needs --from")
    torch.manual_seed(args.seed)
    corpus = Corpus(read_questions(args.questions), read_texts(args.data), read_unseen(args.unseen))
    print(f"{len(corpus.entries)} questions, {len(corpus.follow_ups)} follow-ups, "
          f"{len(corpus.stories)} stories, {len(corpus.prose)} passages")
    if args.start:
        tok = Tokenizer.from_file(os.path.join(args.start, "tokenizer.json"))
    else:
        tok = train_tokenizer(corpus.tokenizer_texts(), CONFIG["vocab_size"])
    model = Model()
    if args.start:
        load_checkpoint(model, args.start)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    train(model, corpus, tok, args, device)
    model.cpu()
    if args.share < 1:
        mix(model, args.start, args.share)
    export(model, tok, args.out, args.template)


if __name__ == "__main__":
    main()
