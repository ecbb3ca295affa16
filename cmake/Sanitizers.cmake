# Sanitizers for our own code only: link ddp_sanitizers PRIVATE. Chosen by DDP_SANITIZE (see CMakePresets.json).
# ddp_test_sanitizers is for the tests' own files, which are most of what such a build compiles: without the checks of every
# pointer for null, alignment and size, which take up to a third of the time of a file, in Catch2's assertions. What a null pointer
# does there is still found, by AddressSanitizer.
foreach(target ddp_sanitizers ddp_test_sanitizers)
  add_library(${target} INTERFACE)
  if(DDP_SANITIZE)
    target_compile_options(${target} INTERFACE -fsanitize=${DDP_SANITIZE} -fno-omit-frame-pointer
      -fno-sanitize-recover=all)
    # GCC documents that sanitizers make this warning lie.
    target_compile_options(${target} INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
    target_link_options(${target} INTERFACE -fsanitize=${DDP_SANITIZE})
    # Index and iterator checks of the standard library; they change no layout.
    target_compile_definitions(${target} INTERFACE _GLIBCXX_ASSERTIONS)
  endif()
endforeach()
# Tests are a hundred programs over the same libraries, sanitized ones with all their debug information: lld links them in less than
# half of GNU ld's time. The programs of a release have the distribution's linker.
find_program(DDP_LLD ld.lld)
mark_as_advanced(DDP_LLD)
add_library(ddp_fast_link INTERFACE)
if(DDP_LLD)
  target_link_options(ddp_fast_link INTERFACE -fuse-ld=lld)
endif()
if(DDP_SANITIZE)
  target_link_libraries(ddp_sanitizers INTERFACE ddp_fast_link)
endif()
if(DDP_SANITIZE MATCHES undefined)
  target_compile_options(ddp_test_sanitizers INTERFACE -fno-sanitize=null,alignment,object-size)
endif()
if(DDP_FUZZ)
  # Coverage in all our code; the fuzzers themselves link libFuzzer's main (tests/fuzz).
  target_compile_options(ddp_sanitizers INTERFACE -fsanitize=fuzzer-no-link)
endif()
# ddp_computes(NAME): its loops are most of what a test waits for. Debug builds have -Og, which compiles in two thirds of the time of
# -O1 under AddressSanitizer (Asio's coroutines, CLI11, json); such a target keeps -O1.
function(ddp_computes name)
  target_compile_options(${name} PRIVATE $<$<CONFIG:Debug>:-O1>)
endfunction()
