# Warnings for our own code only: link ddp_warnings PRIVATE.
add_library(ddp_warnings INTERFACE)
target_compile_options(ddp_warnings INTERFACE -Wall -Wextra -Wpedantic -Wnon-virtual-dtor
  -Woverloaded-virtual -Wimplicit-fallthrough -Werror=return-type -Werror=switch
  $<$<CXX_COMPILER_ID:GNU>:-Wshadow=local>
  # GCC 12 sees overlapping copies in "text" + std::string (GCC bug 105651, mended in 13).
  $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>
  # GCC sees new and delete of a coroutine's frame as different when one of both is inlined (GCC bug 109224).
  $<$<CXX_COMPILER_ID:GNU>:-Wno-mismatched-new-delete>)
if(CMAKE_UNITY_BUILD)
  # A file that is included into another is no header for that.
  target_compile_options(ddp_warnings INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
endif()
