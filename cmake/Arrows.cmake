# ddp_module(NAME SOURCES … LINK …): makes one static library, with the include root, warnings and sanitizers.
function(ddp_module name)
  cmake_parse_arguments(arg "" "" "SOURCES;LINK;LINK_PRIVATE" ${ARGN})
  add_library(${name} STATIC ${arg_SOURCES})
  ddp_keep_alone(${arg_SOURCES})
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PUBLIC ${arg_LINK} PRIVATE ${arg_LINK_PRIVATE} ddp_warnings ddp_sanitizers)
endfunction()

# Checks the arrows of the modules (docs/developers/architecture.md): a forbidden include fails the build.
find_package(Python3 COMPONENTS Interpreter REQUIRED)
add_custom_target(check_arrows ALL
  COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/cmake/check_arrows.py ${PROJECT_SOURCE_DIR}
  COMMENT "Checking that includes follow the modules' arrows")
