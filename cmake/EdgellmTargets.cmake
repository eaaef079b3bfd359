# One function that every folder uses, so that all our code is compiled under the same rules.

# -ffp-contract=off: the canonical arithmetic (docs/numerics.md) says where a product and a sum may
# be fused; the compiler must not choose. GCC would otherwise contract intrinsics too.
set(EDGELLM_CXX_FLAGS -ffp-contract=off -fno-fast-math -Wall -Wextra -Wshadow -Wconversion
                      -Wno-sign-conversion -Wnon-virtual-dtor -Wold-style-cast)
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
if(EDGELLM_SANITIZE)
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
endif()

function(edgellm_compile_rules target)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${EDGELLM_CXX_FLAGS}>)
endfunction()

# edgellm_library(NAME sources...): a static library of one folder.
function(edgellm_library name)
  add_library(${name} STATIC ${ARGN})
  target_link_libraries(${name} PUBLIC edgellm_base)
  edgellm_compile_rules(${name})
endfunction()
