#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "remote/hosts/host.h"

namespace ddp::remote {

/// An error at a byte of the entry's text.
struct EntryDiagnostic {
  std::size_t offset = 0;
  std::string message;
};

/// One entry with its ranges expanded. The caller, who knows file and line, fills the hosts' locations.
struct HostEntry {
  std::vector<Host> hosts;      ///< empty for a blank line or a comment, and after an error
  std::size_t host_offset = 0;  ///< start of the host's word
  std::vector<EntryDiagnostic> diagnostics;
  std::string open_key;  ///< key of the last pair if its value has no quotes: a comma behind it may belong to
                         ///< the value
};

/// Reads `[user@]name[:slots] key=value … # comment`, the grammar of docs/users/hostfile.md. It continues
/// after an error, so that all errors of an entry are found.
HostEntry parse_entry(std::string_view text);

/// Returns the start of the line's comment (a '#' outside of quotes), or the line's size.
std::size_t comment_start(std::string_view text);

}  // namespace ddp::remote
