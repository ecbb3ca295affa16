#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace ddp {

/// "0.1.0": printed by --version; the agents on the nodes must have the same version.
std::string_view version();

/// Machine and build of a program file. The build id is the linker's hash over the contents of the program;
/// strip does not change it.
struct ElfIdentity {
  std::string machine;   ///< as `uname -m` prints it: "x86_64", "aarch64"; "" for any other machine
  std::string build_id;  ///< hex
};

inline constexpr std::size_t kElfHead = 64 * 1024;  ///< bytes at the start of a file that suffice for
                                                    ///< elf_identity

/// Parses the first bytes of a file. Returns nothing for anything but a 64-bit little-endian ELF file with a
/// build id. The bytes need not be trusted.
std::optional<ElfIdentity> elf_identity(std::string_view head);

/// Reads the identity of a file. Blocks. Errors: kSystem, the file cannot be read; kAgentMissing, it is no
/// such program.
Result<ElfIdentity> read_elf_identity(const std::string& path);

}  // namespace ddp
