# The programs are static, so that they run on any distribution (docs/decisions/0026-static-programs.md). DDP_STATIC says whether
# ddplaunch is: the distribution has all static libraries that it links. The agent links none of them and is static anyway. A
# sanitizer's run time cannot be static.
set(DDP_STATIC OFF)
if(NOT DDP_SANITIZE)
  set(missing_archives "")
  set(archives ssh ssl crypto yaml-cpp z)
  # OpenSSL 3.2 and later may be compiled with zstd (Debian 13's is).
  find_library(DDP_ARCHIVE_crypto libcrypto.a)
  set(needs_zstd "")
  if(DDP_ARCHIVE_crypto)
    file(STRINGS ${DDP_ARCHIVE_crypto} needs_zstd REGEX "ZSTD_createCStream" LIMIT_COUNT 1)
  endif()
  if(needs_zstd)
    list(APPEND archives zstd)
  endif()
  foreach(name IN LISTS archives)
    find_library(DDP_ARCHIVE_${name} lib${name}.a)
    mark_as_advanced(DDP_ARCHIVE_${name})
    if(NOT DDP_ARCHIVE_${name})
      string(APPEND missing_archives " lib${name}.a")
    endif()
  endforeach()
  if(missing_archives STREQUAL "")
    set(DDP_STATIC ON)
  else()
    message(STATUS "ddplaunch and ddplaunch-listen are linked dynamically and fit only this distribution, since it lacks${missing_archives}")
  endif()
endif()

# Each function has a section of its own, so that the linker leaves out those that a program does not call. This makes the packages
# smaller (docs/decisions/0027-packages.md).
add_compile_options("$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-ffunction-sections;-fdata-sections>")

# ddp_static_program(NAME): links a program without any shared library, and without the parts of glibc that load some.
function(ddp_static_program name)
  target_sources(${name} PRIVATE ${PROJECT_SOURCE_DIR}/apps/static_program/no_shared_libraries.cc)
  target_link_options(${name} PRIVATE -static LINKER:--gc-sections)
endfunction()
