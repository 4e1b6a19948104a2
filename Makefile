# mote: build, test and chat. GNU make. `make help` lists the targets; CC, CFLAGS, BUILD and NVCC may be set.

CC     = cc
CXX    = c++
CFLAGS = -O3
BUILD  = build
# The CUDA compiler, if there is one. `make NVCC=` never looks for it. The program itself is built by CC.
NVCC   = $(shell command -v nvcc 2>/dev/null)

WARN    = -std=c11 -D_GNU_SOURCE -Wall -Wextra
LIBRARY = engine.cu kernels.cu tokenizer.c engine.h
LIBS    = -lm -lpthread
MOTE    = $(if $(filter build,$(BUILD)),mote,$(BUILD)/mote)
TESTS   = $(patsubst tests/%.c,$(BUILD)/%,$(sort $(wildcard tests/test_*.c)))
FUZZERS = $(patsubst tests/%.c,build/fuzz/%,$(sort $(wildcard tests/fuzz_*.c)))

# History and arrow keys in the chat come from libedit, if a small program with it links. `make LIBEDIT=` leaves it out.
PROBE   = \#include <stdio.h>\n\#include <editline/readline.h>\nint main(void) { return !readline(""); }\n
LIBEDIT = $(shell printf '$(PROBE)' | $(CC) -x c - -o $(BUILD)/probe -ledit 2>/dev/null && \
            echo -DMOTE_LIBEDIT -ledit)

# The test data archive is not part of the repository: tests that need it are skipped, and counted, without it.
ARCHIVE = $(wildcard ../shared/data.tar.xz)
DATA    = $(if $(ARCHIVE),build/data/.unpacked)

$(MOTE): main.c engine.h $(BUILD)/engine.o            # make: the program, ./mote
	$(CC) $(WARN) $(CFLAGS) main.c $(BUILD)/engine.o -o $@ $(LIBS) $(LIBEDIT)

$(BUILD)/engine.o: $(LIBRARY) | $(BUILD)
	$(CC) $(WARN) $(CFLAGS) -ffp-contract=fast -x c -c engine.cu -o $@

$(BUILD):
	mkdir -p $@

chat: $(MOTE)                 # make chat: build it and talk with the bundled model
	./$(MOTE)

# make test: every tests/test_*.c, and one line with the sum
# SUITE: which of the tests. RUN: put before each, and before the program they try (valgrind, qemu).
SUITE = $(TESTS)
test: $(MOTE) $(SUITE) $(DATA)
	@rm -f $(BUILD)/results; for t in $(SUITE); do \
	    $(RUN) ./$$t $(if $(DATA),build/data) >$$t.log 2>&1; code=$$?; cat $$t.log; \
	    grep -E '[0-9]+ passed, [0-9]+ failed' $$t.log | tail -n 1 >>$(BUILD)/results; \
	    if [ $$code -ne 0 ] && ! grep -qE '[1-9][0-9]* failed' $$t.log; then \
	        echo "$$t: ended with code $$code"; echo '0 passed, 1 failed, 0 skipped' >>$(BUILD)/results; fi; \
	done; awk '{ for (i = 2; i <= NF; i++) { if ($$i ~ /^passed/) p += $$(i-1); if ($$i ~ /^failed/) f += $$(i-1); \
	             if ($$i ~ /^skipped/) s += $$(i-1) } } \
	           END { printf "%d passed, %d failed, %d skipped\n", p, f, s; exit f > 0 || p == 0 }' $(BUILD)/results

# A test includes the parts of the library it looks into.
$(BUILD)/test_%: tests/test_%.c tests/test.h $(LIBRARY) | $(BUILD)
	$(CC) $(WARN) -Wno-unused-function $(CFLAGS) -ffp-contract=fast -I. -DMOTE_PROGRAM='"$(strip $(RUN) ./$(MOTE))"' $< -o $@ $(LIBS)

build/data/.unpacked: $(ARCHIVE)
	mkdir -p build
	tar -C build -xJf $<
	touch $@

# make sanitize: the tests again, with every memory error and undefined operation caught
sanitize:
	$(MAKE) --no-print-directory test BUILD=build/sanitize LIBEDIT= \
	    CFLAGS='-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer'

# make valgrind: the tests again under valgrind (uninitialised memory), without the large data and the 40 answers
valgrind:
	$(MAKE) --no-print-directory test BUILD=build/valgrind LIBEDIT= ARCHIVE= CFLAGS='-O1 -g' \
	    SUITE='$$(filter-out %/test_demo,$$(TESTS))' \
	    RUN='valgrind -q --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite'

# make aarch64: cross-compile for 64-bit Arm and run the tests in an emulator (qemu-user)
aarch64:
	$(MAKE) --no-print-directory test BUILD=build/aarch64 LIBEDIT= ARCHIVE= \
	    CC=aarch64-linux-gnu-gcc CFLAGS='-O2 -static' RUN=qemu-aarch64

# make fuzz: random input to the readers of files and text, FUZZ_SECONDS for each target (needs clang)
FUZZ_SECONDS = 60
fuzz: $(FUZZERS)
	@for f in $(FUZZERS); do mkdir -p $$f.corpus; echo "$$f"; \
	    ./$$f -max_total_time=$(FUZZ_SECONDS) -len_control=0 -max_len=512 -timeout=10 -verbosity=0 -artifact_prefix=$$f- $$f.corpus || exit 1; done

build/fuzz/fuzz_%: tests/fuzz_%.c $(LIBRARY)
	@mkdir -p build/fuzz
	clang $(WARN) -Wno-unused-function -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -I. \
	    $< -o $@ $(LIBS)

# make amalgamation: the library as two files, dist/engine.h and dist/engine.cu
amalgamation: dist/engine.cu
dist/engine.cu: $(LIBRARY) tools/amalgamate.sh
	tools/amalgamate.sh dist

# make cuda: the library as CUDA, for GPUs of compute capability 8.9, 9.0 and 12.x
GPUS = -gencode arch=compute_89,code=sm_89 -gencode arch=compute_90a,code=sm_90a \
       -gencode arch=compute_120f,code=sm_120f
cuda: build/engine_cuda.o
build/engine_cuda.o: $(LIBRARY)
	mkdir -p build
	$(or $(NVCC),$(error make cuda needs nvcc)) -std=c++17 -O3 $(GPUS) -Xcompiler -Wall -c engine.cu -o $@

clean:                        # make clean: remove all that make made
	rm -rf build dist mote

help:                         # make help: this list
	@sed -n 's/^.*# make\([a-z0-9 ]*\): /make\1: /p' Makefile | sort -u

.PHONY: chat test sanitize valgrind aarch64 fuzz amalgamation cuda clean help
.DELETE_ON_ERROR:
