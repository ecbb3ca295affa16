#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "remote/hosts/host_range.h"

namespace ddp::remote {

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

}  // namespace ddp::remote
