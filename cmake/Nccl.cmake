# Builds NCCL's communicators (train --comm nccl) if there is GPU code and NCCL's header is found. The program loads the library at
# run time. The result is DDP_HAVE_NCCL; the target ddp_nccl has the header.
set(DDP_HAVE_NCCL OFF)
if(DDP_HAVE_CUDA)
  find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  if(NCCL_INCLUDE_DIR)
    set(DDP_HAVE_NCCL ON)
    add_library(ddp_nccl INTERFACE)
    target_include_directories(ddp_nccl SYSTEM INTERFACE ${NCCL_INCLUDE_DIR})
  else()
    message(STATUS "train --comm nccl not built: there is no nccl.h")
  endif()
endif()
