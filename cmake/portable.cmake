# The toolchain of the preset "portable" (docs/decisions/0027-packages.md).
set(CMAKE_CXX_COMPILER ${CMAKE_CURRENT_LIST_DIR}/zig-c++)
# zig does not name the directories of the distribution's libraries.
execute_process(COMMAND gcc -print-multiarch OUTPUT_VARIABLE CMAKE_LIBRARY_ARCHITECTURE OUTPUT_STRIP_TRAILING_WHITESPACE)
# The headers that train includes, and no others of /usr/include.
set(headers ${CMAKE_CURRENT_LIST_DIR}/../build/portable/headers)
file(MAKE_DIRECTORY ${headers})
foreach(folder /usr/include /usr/include/${CMAKE_LIBRARY_ARCHITECTURE})
  foreach(name boost nlohmann zlib.h zconf.h)
    if(EXISTS ${folder}/${name})
      file(CREATE_LINK ${folder}/${name} ${headers}/${name} SYMBOLIC)
    endif()
  endforeach()
endforeach()
