# The two commands that do everything: `make demo` and `make test`. CMake does the work; see
# CMakePresets.json for other ways to build.

PRESET ?= release
PREFIX ?= /usr/local
PROGRAM := build/$(PRESET)/edgellm
DEMO_MODEL := model/demo/storyteller.tmac2

# Where NVIDIA's installer puts nvcc without telling the shell.
export PATH := $(PATH):/usr/local/cuda/bin

.PHONY: build demo test test-programs install package clean

# The program alone: no package and no file that only tests need.
build:
	@tools/setup.sh
	cmake --preset $(PRESET)
	cmake --build --preset $(PRESET) --target edgellm

demo: build
	$(PROGRAM) run $(DEMO_MODEL) -p "One day the fox said to the lion," --sample -n 160 --verbose </dev/null

test: test-programs
	ctest --preset $(PRESET) --parallel $$(nproc)

test-programs:
	@tools/setup.sh test
	cmake --preset $(PRESET) -DEDGELLM_TESTS=ON
	cmake --build --preset $(PRESET)

# DESTDIR is honoured.
install: build
	cmake --build --preset $(PRESET) --target edgellm_c
	cmake --install build/$(PRESET) --prefix $(PREFIX)

# build/PRESET/edgellm_VERSION_ARCHITECTURE.deb
package: build
	@tools/setup.sh package
	cd build/$(PRESET) && cpack -G DEB

clean:
	rm -rf build
