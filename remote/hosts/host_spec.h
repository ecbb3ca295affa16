#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "remote/hosts/host_range.h"

namespace ddp::remote {

inline constexpr int kMaxSlots = 65'535;

/// The first word of an entry, `[user@]name[:slots]`. Without errors `names` has at least one entry.
struct HostSpec {
  std::string user;
  std::vector<std::string> names;  ///< ranges expanded; an IPv6 address without its brackets
  std::optional<int> slots;
  bool user_given = false;
  bool slots_given = false;
  std::vector<RangeError> errors;
};
HostSpec parse_host_spec(std::string_view word);

/// Where a name ends that may be an address in brackets: behind ']' or at the next ':'.
std::size_t name_length(std::string_view word);

/// A host's name or IPv4 address: letters, digits, '-', '_' and '.', not beginning with '-', which ssh would
/// take for an option.
bool is_host_name(std::string_view text);
/// What OpenSSH takes as a user name on its command line.
bool is_user_name(std::string_view user);

/// What is wrong with the value of jump=, `[user@]host[:port],…` as `ssh -J` takes it, or nothing.
std::string jump_error(std::string_view value);

/// 1 to kMaxSlots, or nothing.
std::optional<int> parse_slots(std::string_view text);
/// What to say when there was nothing.
std::string bad_slots(std::string_view text);

}  // namespace ddp::remote
