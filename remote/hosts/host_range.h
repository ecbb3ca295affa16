#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddp::remote {

/// No job has more hosts; a range that says so is a mistake in typing.
inline constexpr std::size_t kMaxHosts = 100'000;

/// What is wrong in a word, and at which byte of it.
struct RangeError {
  std::size_t offset = 0;
  std::string message;
};

struct Expansion {
  std::vector<std::string> words;   ///< in the order written; one entry for a word without brackets
  std::optional<RangeError> error;  ///< set: `words` is empty
};

/// gpu[01-03,20] → gpu01 gpu02 gpu03 gpu20; several brackets multiply, the last one runs fastest. Numbers
/// keep the width of a first bound with leading zeros ([08-10] → 08 09 10). A range that is reversed, empty,
/// not closed, or gives more than `limit` words is an error. Text outside brackets is not looked at.
Expansion expand_ranges(std::string_view word, std::size_t limit = kMaxHosts);

/// The other way, for messages: gpu01 gpu02 gpu03 login → "gpu[01-03],login". Order stays as far as one
/// bracket goes; expand_ranges of each part gives the words back.
std::string fold_ranges(const std::vector<std::string>& words);

/// 0,2 or 0-3,7 or MIG-5c89…: device ids in the order written. Whole numbers lose leading zeros. An id given
/// twice, an empty one, a reversed range and odd characters are errors.
Expansion expand_ids(std::string_view list);

/// The number, when `text` is digits only and at most `max`.
std::optional<unsigned long long> whole_number(std::string_view text, unsigned long long max);

/// Whether all of `text` is an IPv4 address in four decimal numbers.
bool is_ipv4(std::string_view text);
/// Whether all of `text` is an IPv6 address, a zone included (fe80::1%eth0).
bool is_ipv6(std::string_view text);

}  // namespace ddp::remote
