#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <boost/system/result.hpp>

namespace ddp::remote {

/// A place in a file that the user wrote. Line and column count from 1; 0 means not from a file.
struct SourceLocation {
  std::string file;
  int line = 0;
  int column = 0;
};

/// One entry of the hostfile or of --host, ranges already expanded. Empty text and unset options mean "not
/// given".
struct Host {
  std::string name;              ///< as the user wrote it, for labels and messages
  std::optional<int> slots;      ///< unset: no limit
  std::optional<int> max_slots;  ///< Open MPI's max_slots: a limit that --oversubscribe keeps as well
  std::string user;
  std::uint16_t port = 0;                                ///< 0: from the SSH configuration
  std::string address;                                   ///< address to connect to, if not the name
  std::string identity;                                  ///< private key file
  std::string jump;                                      ///< as in `ssh -J`: user@one:2222,two
  std::string chdir;                                     ///< working directory of the workers on this host
  std::vector<std::string> devices;                      ///< gpus=0,2 or --include host:0,2; empty: all
  std::vector<std::pair<std::string, std::string>> env;  ///< env:NAME=VALUE
  std::vector<std::string> wrapper;  ///< words before the agent's command: docker exec -i NAME; or none
  std::string setup;  ///< shell script that runs before the workers on this host, after the script of --setup
  SourceLocation location;
};

/// Returns the workers that the host runs without further options: its slots, at most one for each listed
/// device. Unset: the entry does not say it.
inline std::optional<int> usable_slots(const Host& host) {
  if (host.devices.empty()) return host.slots;
  const int devices = static_cast<int>(host.devices.size());
  return std::min(host.slots.value_or(devices), devices);
}

/// Returns whether the entry means this machine, whose agent is a plain child unless --ssh-localhost is
/// given. An entry with its own user, port, key or jump host is meant for SSH: a tunnel, a container's sshd,
/// another account.
inline bool is_localhost(const Host& host) {
  if (!host.user.empty() || host.port != 0 || !host.identity.empty() || !host.jump.empty()) return false;
  const std::string& target = host.address.empty() ? host.name : host.address;
  return target == "localhost" || target == "127.0.0.1" || target == "::1";
}

/// One error in the user's input, and its place.
struct Diagnostic {
  SourceLocation location;
  std::string message;
};

/// All errors of one input, in the order of the input, so that the user fixes a file in one pass.
struct DiagnosticList {
  std::vector<Diagnostic> list;
};

/// A reader stops after this many errors: a file that is no hostfile at all is not reported line by line.
inline constexpr std::size_t kMaxDiagnostics = 100;

/// The value, or all errors.
template <class T>
using Validated = boost::system::result<T, DiagnosticList>;

/// Formats "hosts:3:7: message". Parts of the place that are 0 or empty are left out ("--host, column 5:
/// message").
inline std::string to_text(const Diagnostic& diagnostic) {
  const SourceLocation& location = diagnostic.location;
  std::string text = location.file;
  if (location.line > 0) {
    text += ':' + std::to_string(location.line);
    if (location.column > 0) text += ':' + std::to_string(location.column);
  } else if (location.column > 0) {
    text += ", column " + std::to_string(location.column);
  }
  return text.empty() ? diagnostic.message : text + ": " + diagnostic.message;
}

/// Called by boost::system::result: value() of a failed result is a broken invariant.
[[noreturn]] inline void throw_exception_from_error(const DiagnosticList& diagnostics,
                                                    const boost::source_location&) {
  throw std::logic_error("internal error: unchecked diagnostics (please report): " +
                         std::to_string(diagnostics.list.size()));
}

}  // namespace ddp::remote
