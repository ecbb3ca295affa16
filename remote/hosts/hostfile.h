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

/// Reads the text of a hostfile (grammar: docs/users/hostfile.md): one entry per line, ranges expanded, order
/// kept. `file` is the name in messages and locations. A byte order mark and CR LF are accepted. The error
/// holds all errors of the file in its order. A file without a host is an error.
Validated<std::vector<Host>> parse_hostfile(std::string_view text, const std::string& file);

/// Reads the same grammar with commas for line ends: "a:4,b:4,c[1-3]:2". Locations carry `option` ("--host")
/// and a column, but no line.
Validated<std::vector<Host>> parse_host_list(std::string_view text, const std::string& option);

}  // namespace ddp::remote
