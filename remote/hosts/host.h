#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
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

/// No job has more hosts; a longer range is a typing error.
inline constexpr std::size_t kMaxHosts = 100'000;

/// An error in a word, at a byte offset.
struct RangeError {
  std::size_t offset = 0;
  std::string message;
};

struct Expansion {
  std::vector<std::string> words;   ///< in the order written; one entry for a word without brackets
  std::optional<RangeError> error;  ///< set: `words` is empty
};

/// Expands gpu[01-03,20] to gpu01 gpu02 gpu03 gpu20. Several brackets multiply, and the last one varies
/// fastest. Numbers keep the width of a first bound with leading zeros ([08-10] gives 08 09 10). A range that
/// is reversed, empty, not closed, or longer than `limit` words is an error. Text outside brackets is not
/// checked.
Expansion expand_ranges(std::string_view word, std::size_t limit = kMaxHosts);

/// The reverse, for messages: gpu01 gpu02 gpu03 login gives "gpu[01-03],login". The order stays within one
/// bracket; expand_ranges of each part gives the words back.
std::string fold_ranges(const std::vector<std::string>& words);

/// The order of hosts for people: numbers inside names count as numbers. gpu2 < gpu10, 10.0.0.2 < 10.0.0.10.
struct HostOrder {
  bool operator()(std::string_view a, std::string_view b) const;
};

/// Expands 0,2 or 0-3,7 or MIG-5c89… to device ids in the order written. Whole numbers lose leading zeros. An
/// empty id, a reversed range and unexpected characters are errors. A repeated id is an error, or counts once
/// if `repeats`.
Expansion expand_ids(std::string_view list, bool repeats = false);

/// Returns whether all of `text` is an IPv4 address in four decimal numbers.
bool is_ipv4(std::string_view text);
/// Returns whether all of `text` is an IPv6 address, with an optional zone (fe80::1%eth0).
bool is_ipv6(std::string_view text);

inline constexpr int kMaxSlots = 65'535;

/// The first word of an entry, `[user@]name[:slots]`. `names` has at least one entry if there are no errors.
struct HostSpec {
  std::string user;
  std::vector<std::string> names;  ///< ranges expanded; an IPv6 address without its brackets
  std::optional<int> slots;
  bool user_given = false;
  bool slots_given = false;
  std::vector<RangeError> errors;
};
HostSpec parse_host_spec(std::string_view word);

/// Returns the length of a name that may be an address in brackets: up to ']' or the next ':'.
std::size_t name_length(std::string_view word);

/// Returns whether `text` is a host name or an IPv4 address: letters, digits, '-', '_' and '.'. A leading '-'
/// is refused, because ssh would take the name for an option.
bool is_host_name(std::string_view text);
/// Returns whether OpenSSH accepts `user` on its command line.
bool is_user_name(std::string_view user);

/// Returns the error in a value of jump=, `[user@]host[:port],…` as `ssh -J` takes it, or an empty text.
std::string jump_error(std::string_view value);

/// Returns a number from 1 to kMaxSlots, or nullopt.
std::optional<int> parse_slots(std::string_view text);
/// Returns the message for a text that parse_slots() refuses.
std::string bad_slots(std::string_view text);

/// Applies DeepSpeed's --include and --exclude: `host:0,2@host2`, with ranges in names (gpu[01-04]) and slots
/// (0-3). An empty text means that the option is not given. The order of the hosts stays. A host that keeps
/// some of its slots has `slots` = their number and `devices` = their devices. Slot i is gpus[i] when the
/// hostfile gives gpus=, else device i. Entries for one host add up. A host named without slots means the
/// whole host. Errors, all at once: both options given, a host that is not in `hosts`, a slot that it does
/// not have, no host left.
Validated<std::vector<Host>> filter_hosts(std::vector<Host> hosts, std::string_view include,
                                          std::string_view exclude);

}  // namespace ddp::remote
