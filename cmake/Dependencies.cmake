# All third-party packages are found here. They come from the distribution (./dev setup installs them).
find_package(Threads REQUIRED)
if(POLICY CMP0167)
  cmake_policy(SET CMP0167 NEW)  # Boost's own BoostConfig.cmake; newer CMake has no FindBoost
endif()
find_package(Boost 1.81 REQUIRED)

# Asio is compiled once (base/asio.cc), not in each file that uses it.
add_library(ddp_asio INTERFACE)
target_link_libraries(ddp_asio INTERFACE Boost::headers Threads::Threads)
target_compile_definitions(ddp_asio INTERFACE BOOST_ASIO_SEPARATE_COMPILATION BOOST_ASIO_NO_DEPRECATED)

find_package(nlohmann_json REQUIRED)  # headers only, so the build's sanitizers cover it
if(NOT DDP_FUZZ)
  include(StaticPrograms)
  if(DDP_STATIC)
    set(OPENSSL_SSL_LIBRARY ${DDP_ARCHIVE_ssl} CACHE FILEPATH "" FORCE)
    set(OPENSSL_CRYPTO_LIBRARY ${DDP_ARCHIVE_crypto} CACHE FILEPATH "" FORCE)
    set(ZLIB_LIBRARY_RELEASE ${DDP_ARCHIVE_z} CACHE FILEPATH "" FORCE)
  endif()
  find_package(OpenSSL 3 REQUIRED)
  find_package(ZLIB REQUIRED)
  if(DDP_STATIC)
    # libcrypto.a may call these (StaticPrograms.cmake).
    target_link_libraries(OpenSSL::Crypto INTERFACE ZLIB::ZLIB ${DDP_ARCHIVE_zstd})
  endif()
  find_package(spdlog REQUIRED)
  find_package(CLI11 REQUIRED)
  find_package(yaml-cpp REQUIRED)
  # spdlog and fmt by their headers: no distribution has their static libraries. One file includes them.
  add_library(ddp_spdlog INTERFACE)
  get_target_property(spdlog_include spdlog::spdlog_header_only INTERFACE_INCLUDE_DIRECTORIES)
  target_include_directories(ddp_spdlog SYSTEM INTERFACE ${spdlog_include})
  target_compile_definitions(ddp_spdlog INTERFACE SPDLOG_FMT_EXTERNAL FMT_HEADER_ONLY)
  add_library(ddp_yaml INTERFACE)
  # Version 0.8 gives its target a namespace.
  target_link_libraries(ddp_yaml INTERFACE
    $<IF:$<BOOL:${DDP_STATIC}>,${DDP_ARCHIVE_yaml-cpp},$<IF:$<TARGET_EXISTS:yaml-cpp::yaml-cpp>,yaml-cpp::yaml-cpp,yaml-cpp>>)
  find_path(LIBSSH_INCLUDE_DIR libssh/libssh.h REQUIRED)
  find_library(LIBSSH_LIBRARY ssh REQUIRED)
  add_library(ddp_libssh INTERFACE)
  target_include_directories(ddp_libssh SYSTEM INTERFACE ${LIBSSH_INCLUDE_DIR})
  if(DDP_STATIC)
    target_compile_definitions(ddp_libssh INTERFACE LIBSSH_STATIC)
    target_link_libraries(ddp_libssh INTERFACE ${DDP_ARCHIVE_ssh} ddp_no_kerberos OpenSSL::Crypto ZLIB::ZLIB)
  else()
    target_link_libraries(ddp_libssh INTERFACE ${LIBSSH_LIBRARY})
  endif()
endif()
