# The GPU code: built where a CUDA compiler is found (DDP_CUDA=OFF: nowhere). Afterwards DDP_HAVE_CUDA says whether, and the
# target ddp_cudart has what a file needs that calls the CUDA run time: linked statically, so that the programs start on hosts
# without CUDA or a driver. Fuzzers go without; sanitizers too unless DDP_SANITIZE_GPU is ON, as the preset asan-ubsan has it: then
# what the host does for a GPU is checked, over the CUDA and NCCL that are played (docs/developers/testing.md). The bodies of the kernels are
# checked in every build.
set(DDP_HAVE_CUDA OFF)
if(DDP_CUDA AND NOT DDP_FUZZ AND (NOT DDP_SANITIZE OR DDP_SANITIZE_GPU))
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    # Machine code for what is in use, and PTX for what comes after. CUDA 13 begins with 75 (Turing).
    if(DDP_SANITIZE AND NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 75-virtual)  # no GPU runs it: what is translated fastest
    elseif(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 75-real 80-real 86-real 89-real 90)
    endif()
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_EXTENSIONS OFF)
    if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")  # nvcc has it since 12.0, CMake 3.25 does not know
    endif()
    set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
    set(DDP_HAVE_CUDA ON)
    add_library(ddp_cudart INTERFACE)
    target_link_libraries(ddp_cudart INTERFACE CUDA::cudart_static)
  endif()
endif()
if(NOT DDP_HAVE_CUDA)
  message(STATUS "GPU code not built")
endif()
