# The presets of the tests compile several files as one (CMAKE_UNITY_BUILD). That halves the time of a full build, since most of it
# goes into Asio's templates, once for each file. The files of this list are exceptions: they define names in an unnamed
# namespace that a neighbor also defines.
set(DDP_ALONE
  tests/net/store_server_test.cc
  tests/unit/apps/train/checkpoint/model_file_test.cc)

# ddp_keep_alone(FILE…): compiles those of the files separately that are in the list.
function(ddp_keep_alone)
  foreach(file ${ARGN})
    cmake_path(ABSOLUTE_PATH file BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} OUTPUT_VARIABLE path)
    cmake_path(RELATIVE_PATH path BASE_DIRECTORY ${PROJECT_SOURCE_DIR})
    if(path IN_LIST DDP_ALONE)
      set_source_files_properties(${file} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    endif()
  endforeach()
endfunction()
