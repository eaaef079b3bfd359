# The two commands that do everything: `make demo` and `make test`. CMake does the work; see
# CMakePresets.json for other ways to build.

PRESET ?= release
PREFIX ?= /usr/local
PROGRAM := build/$(PRESET)/edgellm
DEMO_MODEL := model/demo/storyteller.tmac2
# What the last `make install` brought. CMake's own list is overwritten by `make package` and tests.
INSTALLED ?= build/$(PRESET)/installed.txt

# A preset for another processor than this machine's, and what runs its programs here.
FOREIGN := $(filter arm64,$(PRESET))
EMULATOR := $(if $(FOREIGN),qemu-aarch64 -L build/arm64-sysroot)

# Where NVIDIA's installer puts nvcc without telling the shell.
export PATH := $(PATH):/usr/local/cuda/bin

.PHONY: build demo test test-programs test-clients install uninstall package clean

# The program alone: no package and no file that only tests need.
build:
	@tools/setup.sh $(FOREIGN)
	cmake --preset $(PRESET)
	cmake --build --preset $(PRESET) --target edgellm

demo: build
	@echo
	@$(EMULATOR) $(PROGRAM) run $(DEMO_MODEL) -p "One day the fox said to the lion," --print-prompt --sample \
	  -n 160 --verbose </dev/null 2>build/demo.log || { cat build/demo.log; exit 1; }
	@awk -F': *' '/^eval rate:/ { rate = $$2 } /^device:/ { print "\n(" rate ", " $$2 ")" }' build/demo.log
	@echo "Now try:  $(PROGRAM) chat $(DEMO_MODEL)"
	@echo '     or:  make install PREFIX=$$HOME/.local, then: edgellm run storyteller "Once upon a time" --sample'

test: test-programs
	ctest --preset $(PRESET) --parallel $$(nproc)

test-programs:
	@tools/setup.sh $(or $(FOREIGN),test)
	cmake --preset $(PRESET) -DEDGELLM_TESTS=ON
	cmake --build --preset $(PRESET)

# Clients and judges from PyPI against `edgellm serve`, then routers and Ray Data in front of two
# servers, in environments of their own (docs/testing.md).
CLIENTS := build/clients
CLUSTER := build/cluster
test-clients: build
	@tools/setup.sh clients
	@tools/python_environment.sh $(CLIENTS) tests/clients/requirements.txt
	$(CLIENTS)/bin/python tests/clients/clients_test.py $(PROGRAM) $(DEMO_MODEL)
	@tools/python_environment.sh $(CLUSTER) tests/clients/cluster_requirements.txt
	$(CLUSTER)/bin/python tests/clients/cluster_test.py $(PROGRAM) $(DEMO_MODEL)

# DESTDIR is honoured.
install: build
	cmake --build --preset $(PRESET) --target edgellm_c
	cmake --install build/$(PRESET) --prefix $(PREFIX)
	@sed 's|^|$(DESTDIR)|' build/$(PRESET)/install_manifest.txt > $(INSTALLED)

uninstall:
	@test -e $(INSTALLED) || \
	  { echo "uninstall: nothing was installed from build/$(PRESET)" >&2; exit 2; }
	xargs -d '\n' rm -f < $(INSTALLED)
	@rm $(INSTALLED)

# build/PRESET/edgellm_VERSION_ARCHITECTURE.deb
package: build
	@tools/setup.sh $(or $(FOREIGN),package)
	cmake --build --preset $(PRESET) --target edgellm_c
	cd build/$(PRESET) && cpack -G DEB

clean:
	rm -rf build
