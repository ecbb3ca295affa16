# Sanitizers for our own code only: link ddp_sanitizers PRIVATE. DDP_SANITIZE chooses them (see CMakePresets.json).
add_library(ddp_sanitizers INTERFACE)
if(DDP_SANITIZE)
  target_compile_options(ddp_sanitizers INTERFACE -fsanitize=${DDP_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  # GCC documents false positives of this warning under sanitizers.
  target_compile_options(ddp_sanitizers INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  target_link_options(ddp_sanitizers INTERFACE -fsanitize=${DDP_SANITIZE})
  # Enables index and iterator checks of the standard library, which change no layout.
  target_compile_definitions(ddp_sanitizers INTERFACE _GLIBCXX_ASSERTIONS)
endif()
# GCC takes a quarter of its time for the checks of every pointer for null, alignment and size. AddressSanitizer finds the use of a
# null pointer without them, and the fuzzers of `./dev fuzz`, which clang compiles, check the alignment in every decoder.
if(DDP_SANITIZE MATCHES undefined AND NOT DDP_FUZZ)
  target_compile_options(ddp_sanitizers INTERFACE -fno-sanitize=null,alignment,object-size)
endif()
# A call instead of each check of an access: GCC compiles a file in five sixths of the time. Code that computes keeps the checks
# inline, since there calls would take most of a test's time.
if(DDP_SANITIZE MATCHES address)
  target_compile_options(ddp_sanitizers INTERFACE
    $<$<AND:$<CXX_COMPILER_ID:GNU>,$<NOT:$<BOOL:$<TARGET_PROPERTY:DDP_COMPUTES>>>>:--param=asan-instrumentation-with-call-threshold=0>)
endif()
# The same for one source file (COMPILE_OPTIONS). The value is GCC's default.
set(DDP_INLINE_CHECKS $<$<CXX_COMPILER_ID:GNU>:--param=asan-instrumentation-with-call-threshold=7000>)
# Tests are a hundred programs with the same libraries, and sanitized ones contain all their debug information. lld links them in
# less than half of GNU ld's time. The programs of a release are linked by the distribution's linker.
find_program(DDP_LLD ld.lld)
mark_as_advanced(DDP_LLD)
add_library(ddp_fast_link INTERFACE)
if(DDP_LLD)
  target_link_options(ddp_fast_link INTERFACE -fuse-ld=lld)
endif()
if(DDP_SANITIZE)
  target_link_libraries(ddp_sanitizers INTERFACE ddp_fast_link)
endif()
if(DDP_FUZZ)
  # All our code records coverage; only the fuzzers link libFuzzer's main (tests/fuzz).
  target_compile_options(ddp_sanitizers INTERFACE -fsanitize=fuzzer-no-link)
endif()
# ddp_computes(NAME): keeps -O1 for a target whose loops take most of a test's time. Other targets of debug builds have -Og, which
# compiles in two thirds of the time of -O1 under AddressSanitizer (Asio's coroutines, CLI11, json).
function(ddp_computes name)
  set_target_properties(${name} PROPERTIES DDP_COMPUTES TRUE)
  target_compile_options(${name} PRIVATE $<$<CONFIG:Debug>:-O1>)
endfunction()
