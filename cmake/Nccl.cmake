# NCCL's communicators (train --comm nccl): built where the GPU code is and NCCL's header is found. The library itself is loaded
# when the program runs. Afterwards DDP_HAVE_NCCL says whether, and ddp_nccl has the header.
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
