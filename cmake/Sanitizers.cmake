# Sanitizers for our own code only: link ddp_sanitizers PRIVATE. Chosen by DDP_SANITIZE (see CMakePresets.json).
add_library(ddp_sanitizers INTERFACE)
if(DDP_SANITIZE)
  target_compile_options(ddp_sanitizers INTERFACE -fsanitize=${DDP_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=all)
  # GCC documents that sanitizers make this warning lie.
  target_compile_options(ddp_sanitizers INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  target_link_options(ddp_sanitizers INTERFACE -fsanitize=${DDP_SANITIZE})
  # Index and iterator checks of the standard library; they change no layout.
  target_compile_definitions(ddp_sanitizers INTERFACE _GLIBCXX_ASSERTIONS)
endif()
if(DDP_FUZZ)
  # Coverage in all our code; the fuzzers themselves link libFuzzer's main (tests/fuzz).
  target_compile_options(ddp_sanitizers INTERFACE -fsanitize=fuzzer-no-link)
endif()
