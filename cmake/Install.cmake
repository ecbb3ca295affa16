# The installed tree, which is the same in each package (docs/decisions/0027-packages.md). It can be moved: programs find each other by
# relative paths. `train` is in libexec, since its name is too common for PATH.
install(TARGETS ddplaunch ddplaunchd RUNTIME DESTINATION bin)
install(TARGETS ddplaunch-listen ddplaunch-nvml train RUNTIME DESTINATION libexec/ddplaunch)
# The agent for aarch64 nodes is of another build (the preset "aarch64"), so it is installed only on request.
install(PROGRAMS build/aarch64/bin/ddplaunchd DESTINATION libexec/ddplaunch RENAME ddplaunchd-aarch64
  COMPONENT aarch64 EXCLUDE_FROM_ALL)
install(FILES docs/man/ddplaunch.1 docs/man/ddplaunchd.1 DESTINATION share/man/man1)
install(FILES docs/man/train.1 DESTINATION share/man/man1 RENAME ddplaunch-train.1)
# Shells find a command's completion by the name of the file.
foreach(command ddplaunch ddplaunchd)
  install(FILES configs/completion/ddplaunch.bash DESTINATION share/bash-completion/completions RENAME ${command})
  install(FILES configs/completion/ddplaunch.fish DESTINATION share/fish/vendor_completions.d RENAME ${command}.fish)
endforeach()
install(FILES configs/completion/_ddplaunch DESTINATION share/zsh/site-functions)
install(FILES configs/ddplaunchd.service DESTINATION lib/systemd/user)
# As in the sources, so that the links between the pages work.
install(FILES README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md LICENSE DESTINATION share/doc/ddplaunch)
install(DIRECTORY docs/users docs/developers docs/decisions docs/examples docs/man docs/skills DESTINATION share/doc/ddplaunch/docs)
install(FILES docs/README.md docs/llms.txt docs/third_party.md DESTINATION share/doc/ddplaunch/docs)
install(DIRECTORY configs DESTINATION share/doc/ddplaunch PATTERN completion EXCLUDE)
# The distribution's statement for each linked library, and the texts of the licences to which they refer.
foreach(package libssh-dev libssl-dev libyaml-cpp-dev zlib1g-dev libzstd-dev libspdlog-dev libfmt-dev libcli11-dev nlohmann-json3-dev
    libboost1.81-dev libboost-dev libc6-dev libstdc++-12-dev libstdc++-13-dev libstdc++-14-dev)
  if(EXISTS /usr/share/doc/${package}/copyright)
    # Without the names of the sources' files, which are nine tenths of Boost's statement. No package has these files.
    file(READ /usr/share/doc/${package}/copyright statement)
    string(REGEX REPLACE "\nFiles:[^\n]*(\n[ \t][^\n]*)*" "" statement "${statement}")
    file(WRITE ${PROJECT_BINARY_DIR}/licenses/${package} "${statement}")
    install(FILES ${PROJECT_BINARY_DIR}/licenses/${package} DESTINATION share/doc/ddplaunch/licenses)
  endif()
endforeach()
foreach(licence LGPL-2.1 GPL-3 Apache-2.0)
  install(FILES /usr/share/common-licenses/${licence} DESTINATION share/doc/ddplaunch/licenses OPTIONAL)
endforeach()

# The .deb is made by CPack. Its parts of Debian's policy are in no other package (cmake/package.py).
set(CPACK_GENERATOR DEB)
# NAME <ADDRESS> of who publishes the package.
set(CPACK_PACKAGE_CONTACT "$ENV{DDP_PACKAGE_CONTACT}")
if(NOT CPACK_PACKAGE_CONTACT)
  set(CPACK_PACKAGE_CONTACT "The ddplaunch developers <ddplaunch@example.org>")
endif()
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "multi-node launcher for distributed training")
set(CPACK_PACKAGE_DESCRIPTION "ddplaunch starts a distributed training job on many Linux machines over SSH.
Workers get the environment that PyTorch, NCCL and Gloo expect. When one rank
fails, the whole job stops, and the report names host, rank and cause.")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "openssh-client")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_THREADS 0)
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/cmake/DebianFiles.cmake)
include(CPack)
