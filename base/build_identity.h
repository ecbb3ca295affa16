#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace ddp {

/// "0.1.0": what --version prints, and what the agents on the nodes must match.
std::string_view version();

/// What a program file says of itself: for which machine, and which build. The build id is a hash that the
/// linker made of all that counts of the program; strip leaves it as it is.
struct ElfIdentity {
  std::string machine;   ///< as `uname -m` has it: "x86_64", "aarch64"; "" when it is another
  std::string build_id;  ///< hex
};

inline constexpr std::size_t kElfHead = 64 * 1024;  ///< so much of a file's start is enough

/// From the first bytes of a file; unset: no 64-bit little-endian ELF file, or one without a build id. Any
/// bytes may come.
std::optional<ElfIdentity> elf_identity(std::string_view head);

/// The same of a file. Blocks. kSystem: it cannot be read, kAgentMissing: it is no such program.
Result<ElfIdentity> read_elf_identity(const std::string& path);

}  // namespace ddp
