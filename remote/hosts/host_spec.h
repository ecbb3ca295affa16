#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddp::remote {

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

}  // namespace ddp::remote
