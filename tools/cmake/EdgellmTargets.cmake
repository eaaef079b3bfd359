# One function that every folder uses, so that all our code is compiled under the same rules.

# -ffp-contract=off: the canonical arithmetic (docs/numerics.md) says where a product and a sum may
# be fused; the compiler must not choose. GCC would otherwise contract intrinsics too.
set(EDGELLM_CXX_FLAGS -ffp-contract=off -fno-fast-math -Wall -Wextra -Wshadow -Wconversion
                      -Wno-sign-conversion -Wnon-virtual-dtor -Wold-style-cast)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  list(APPEND EDGELLM_CXX_FLAGS -fsigned-char)  # as it is on x86-64
endif()
# GCC 12 sees overlapping copies in std::string's own operator+ (GCC bug 105651).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  list(APPEND EDGELLM_CXX_FLAGS -Wno-restrict)
endif()
# The same for device code: no contraction, subnormals kept, exact / and sqrt.
set(EDGELLM_CUDA_FLAGS -fmad=false -ftz=false -prec-div=true -prec-sqrt=true
                       -Xcompiler=-ffp-contract=off -lineinfo)
if(EDGELLM_WERROR)
  list(APPEND EDGELLM_CXX_FLAGS -Werror)
endif()
set(edgellm_sanitizers_ADDRESS address,undefined)
set(edgellm_sanitizers_THREAD thread)
if(EDGELLM_SANITIZE)
  if(NOT DEFINED edgellm_sanitizers_${EDGELLM_SANITIZE})
    message(FATAL_ERROR "EDGELLM_SANITIZE is ${EDGELLM_SANITIZE}, expected OFF, ADDRESS or THREAD")
  endif()
  set(flags -fsanitize=${edgellm_sanitizers_${EDGELLM_SANITIZE}})
  add_compile_options(${flags} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(${flags})
endif()
if(EDGELLM_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "EDGELLM_FUZZ needs clang's libFuzzer; configure with: cmake --preset fuzz")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

# A precompiled header serves only code that is compiled alike. So programs are made of
# position-independent code, as the libraries are.
set(CMAKE_CXX_COMPILE_OPTIONS_PIE ${CMAKE_CXX_COMPILE_OPTIONS_PIC})

# Front ends wait for files, terminals and GPUs: the least optimisation halves their compile time.
set(EDGELLM_FRONT_END_FLAGS $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O1>)

function(edgellm_compile_rules target)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${EDGELLM_CXX_FLAGS}>)
  target_compile_definitions(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:_FILE_OFFSET_BITS=64>)  # files beyond 2 GiB on 32-bit machines too
endfunction()

# edgellm_library(NAME sources...): a static library of one folder.
function(edgellm_library name)
  add_library(${name} STATIC ${ARGN})
  target_link_libraries(${name} PUBLIC edgellm_base)
  edgellm_compile_rules(${name})
endfunction()

# edgellm_front_end(NAME sources...): the same of a folder of apps/.
function(edgellm_front_end name)
  edgellm_library(${name} ${ARGN})
  target_compile_options(${name} PRIVATE ${EDGELLM_FRONT_END_FLAGS})
  if(name STREQUAL "edgellm_common")
    target_precompile_headers(${name} PRIVATE
                              "${CMAKE_SOURCE_DIR}/tools/cmake/precompiled_front_end.h")
  else()
    target_precompile_headers(${name} REUSE_FROM edgellm_common)
  endif()
  target_link_libraries(${name} PUBLIC nlohmann_json::nlohmann_json)
endfunction()
