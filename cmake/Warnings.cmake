# Warnings for our own code only: link ddp_warnings PRIVATE.
add_library(ddp_warnings INTERFACE)
target_compile_options(ddp_warnings INTERFACE -Wall -Wextra -Wpedantic -Wnon-virtual-dtor
  -Woverloaded-virtual -Wimplicit-fallthrough -Werror=return-type -Werror=switch
  $<$<CXX_COMPILER_ID:GNU>:-Wshadow=local>
  # GCC 12 sees overlapping copies in "text" + std::string (GCC bug 105651, fixed in 13).
  $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>
  # GCC reports a mismatch of new and delete for a coroutine's frame when it inlines only one of them (GCC bug 109224).
  $<$<CXX_COMPILER_ID:GNU>:-Wno-mismatched-new-delete>)
if(CMAKE_UNITY_BUILD)
  # A source file that a unity build includes is not a header.
  target_compile_options(ddp_warnings INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
endif()
