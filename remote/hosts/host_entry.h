#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "remote/hosts/host.h"

namespace ddp::remote {

/// A mistake at a byte of the entry's text.
struct EntryDiagnostic {
  std::size_t offset = 0;
  std::string message;
};

/// One entry, ranges expanded. Places of the hosts are left to the caller, who knows line and file.
struct HostEntry {
  std::vector<Host> hosts;      ///< empty for a blank line or a comment, and when there are mistakes
  std::size_t host_offset = 0;  ///< where the host's word starts
  std::vector<EntryDiagnostic> diagnostics;
  std::string open_key;  ///< of the last pair when its value has no quotes: a comma behind it is its, maybe
};

/// Reads `[user@]name[:slots] key=value … # comment`, the grammar of docs/hostfile.md. Goes on behind a
/// mistake, so that all of an entry are found.
HostEntry parse_entry(std::string_view text);

/// Where the comment of a line starts, or its size: a '#' outside of quotes.
std::size_t comment_start(std::string_view text);

}  // namespace ddp::remote
