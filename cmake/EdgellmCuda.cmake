# Finds nvcc and decides whether this build has GPU support. Sets EDGELLM_HAVE_CUDA.
set(EDGELLM_HAVE_CUDA OFF)
if(NOT EDGELLM_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    # Named explicitly: machine code for T4 and Hopper, and PTX of the newest for what comes after.
    if(NOT CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 75-real 90)
    endif()
    enable_language(CUDA)
    if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12)
      message(FATAL_ERROR "nvcc ${CMAKE_CUDA_COMPILER_VERSION} is too old: CUDA 12 or newer is "
                          "needed. Install NVIDIA's toolkit, or configure with -DEDGELLM_CUDA=OFF.")
    endif()
    set(CMAKE_CUDA_STANDARD 17)  # CMake 3.25 knows no CUDA C++20
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    set(EDGELLM_HAVE_CUDA ON)
  elseif(EDGELLM_CUDA STREQUAL "ON")
    message(FATAL_ERROR "EDGELLM_CUDA=ON, but no nvcc was found. Put it on PATH or set "
                        "CMAKE_CUDA_COMPILER, or configure with -DEDGELLM_CUDA=OFF.")
  endif()
endif()
message(STATUS "GPU support: ${EDGELLM_HAVE_CUDA}")
