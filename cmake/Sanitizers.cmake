# Sanitizers for our own code only: link ddp_sanitizers PRIVATE. Chosen by DDP_SANITIZE (see CMakePresets.json).
add_library(ddp_sanitizers INTERFACE)
if(DDP_SANITIZE)
  target_compile_options(ddp_sanitizers INTERFACE -fsanitize=${DDP_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=all)
  target_link_options(ddp_sanitizers INTERFACE -fsanitize=${DDP_SANITIZE})
endif()
