# Builds the GPU code if a CUDA compiler is found, unless DDP_CUDA=OFF. The result is DDP_HAVE_CUDA. The target ddp_cudart is for
# files that call the CUDA run time. It is linked statically, so that the programs start on hosts without CUDA or a driver. Fuzzers
# have no GPU code. Sanitized builds have none unless DDP_SANITIZE_GPU is ON, as in the preset asan-ubsan. That build checks the
# host's part over an emulated CUDA and NCCL (docs/developers/testing.md). The bodies of the kernels are checked in every build.
set(DDP_HAVE_CUDA OFF)
if(DDP_CUDA AND NOT DDP_FUZZ AND (NOT DDP_SANITIZE OR DDP_SANITIZE_GPU))
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    # Machine code for GPUs in use, and PTX for later ones. CUDA 13 begins with 75 (Turing).
    if(DDP_SANITIZE AND NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 75-virtual)  # no GPU runs this code; it compiles fastest
    elseif(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 75-real 80-real 86-real 89-real 90)
      set(of_blackwell 100-real 120-real)
    endif()
    enable_language(CUDA)
    if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.8)
      list(APPEND CMAKE_CUDA_ARCHITECTURES ${of_blackwell})
    endif()
    find_package(CUDAToolkit REQUIRED)
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_EXTENSIONS OFF)
    if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")  # nvcc has it since 12.0, but CMake 3.25 does not know that
    endif()
    set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
    set(DDP_HAVE_CUDA ON)
    add_library(ddp_cudart INTERFACE)
    target_link_libraries(ddp_cudart INTERFACE CUDA::cudart_static)
    # The programs load cuBLASLt at run time. Its header is in a package of its own.
    set(DDP_HAVE_CUBLASLT OFF)
    if(EXISTS ${CUDAToolkit_INCLUDE_DIRS}/cublasLt.h)
      set(DDP_HAVE_CUBLASLT ON)
    else()
      message(STATUS "products of cuBLASLt not built: there is no cublasLt.h")
    endif()
  endif()
endif()
if(NOT DDP_HAVE_CUDA)
  message(STATUS "GPU code not built")
endif()
