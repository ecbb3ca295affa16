# Run by CPack in the staged tree of the .deb: adds what Debian's policy wants beside the installed tree.
set(root "${CPACK_TEMPORARY_INSTALL_DIRECTORY}${CPACK_PACKAGING_INSTALL_PREFIX}")
set(doc "${root}/share/doc/ddplaunch")
file(REMOVE "${doc}/licenses/Apache-2.0" "${doc}/licenses/GPL-3" "${doc}/licenses/LGPL-2.1")
file(WRITE "${doc}/copyright" "ddplaunch\n\nCopyright: the authors of ddplaunch\n\nLicense: Apache-2.0\n"
  " On Debian systems the text is in /usr/share/common-licenses/Apache-2.0.\n"
  " docs/third_party.md and licenses/ beside this file describe the linked libraries.\n")
string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)
file(WRITE "${doc}/changelog"
  "ddplaunch (${CPACK_PACKAGE_VERSION}) unstable; urgency=medium\n\n  * See CHANGELOG.md.\n\n -- ${CPACK_PACKAGE_CONTACT}  ${date}\n")
file(WRITE "${root}/share/lintian/overrides/ddplaunch"
  "# The programs run on any distribution, so they hold their libraries.\nddplaunch: statically-linked-binary\nddplaunch: embedded-library\n")
if(EXISTS "${root}/libexec/ddplaunch/ddplaunchd-aarch64")
  file(APPEND "${root}/share/lintian/overrides/ddplaunch"
    "# ddplaunch copies this agent to nodes of that architecture.\nddplaunch: binary-from-other-architecture\n")
endif()
file(GLOB pages "${root}/share/man/man1/*.1")
foreach(file ${pages} "${doc}/changelog")
  execute_process(COMMAND gzip -9n "${file}" COMMAND_ERROR_IS_FATAL ANY)
endforeach()
execute_process(COMMAND chmod -R go=rX "${root}" COMMAND_ERROR_IS_FATAL ANY)
# The package's bytes depend on its content alone.
if(DEFINED ENV{SOURCE_DATE_EPOCH})
  execute_process(COMMAND find "${CPACK_TEMPORARY_INSTALL_DIRECTORY}" -exec touch -h -d "@$ENV{SOURCE_DATE_EPOCH}" {} + COMMAND_ERROR_IS_FATAL ANY)
endif()
