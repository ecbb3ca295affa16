#include "remote/hosts/host_spec.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <utility>

#include "base/format_text.h"
#include "base/parse_text.h"

namespace ddp::remote {

namespace {

// Formats a character for a message: a visible one as it is, any other as a number.
std::string shown(char c) {
  const auto byte = static_cast<unsigned char>(c);
  if (byte > ' ' && byte < 0x7f) return std::string("'") + c + "'";
  constexpr std::string_view kHex = "0123456789abcdef";
  return std::string("byte 0x") + kHex[byte >> 4] + kHex[byte & 15];
}

bool is_name_character(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.';
}

bool starts_with_address(std::string_view word) {
  const std::size_t close = word.find(']');
  return word.starts_with('[') && close != std::string_view::npos &&
         word.substr(0, close).find(':') != std::string_view::npos;
}

// Returns the first invalid character of a name with ranges.
std::optional<RangeError> unusual_character(std::string_view name) {
  if (name.empty()) return RangeError{0, "the host's name is missing"};
  if (name.front() == '-') return RangeError{0, "a host name cannot begin with '-'"};
  bool in_range = false;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const char c = name[i];
    if (c == '[') in_range = true;
    if (c == ']') in_range = false;
    if (c == '=') return RangeError{0, "the host's name is missing before " + quote(name)};
    // No launcher reads a,b as two hosts of one line.
    if (c == ',' && !in_range)
      return RangeError{
          i, "',' is not allowed in a host name; write one host per line, or a range like gpu[01,03]"};
    if (!is_name_character(c) && c != '[' && c != ']' && c != ',') {
      return RangeError{i, shown(c) + " is not allowed in a host name"};
    }
  }
  return std::nullopt;
}

class WordReader {
 public:
  HostSpec read(std::string_view word);

 private:
  void read_address(std::string_view word);
  void read_names(std::string_view word);
  void read_slots(std::string_view number, std::size_t offset);
  void fail(std::size_t offset, std::string message) {
    result_.errors.push_back({base_ + offset, std::move(message)});
  }

  std::size_t base_ = 0;  ///< offset of the part behind user@
  HostSpec result_;
};

HostSpec WordReader::read(std::string_view word) {
  if (word.find("://") != std::string_view::npos) {
    fail(0, quote(word) + " is a URL; write user@host, and the port as port=2222 after it");
    return std::move(result_);
  }
  if (const std::size_t sign = word.rfind('@'); sign != std::string_view::npos) {
    result_.user_given = true;
    result_.user = word.substr(0, sign);
    if (!is_user_name(result_.user)) fail(0, quote(result_.user) + " is not a user name");
    base_ = sign + 1;
    word.remove_prefix(sign + 1);
  }
  if (is_ipv6(word)) {
    result_.names = {std::string(word)};
  } else if (starts_with_address(word)) {
    read_address(word);
  } else {
    read_names(word);
  }
  return std::move(result_);
}

// [address] or [address]:slots
void WordReader::read_address(std::string_view word) {
  const std::size_t close = word.find(']');
  const std::string address(word.substr(1, close - 1));
  const std::string_view rest = word.substr(close + 1);
  if (!is_ipv6(address)) {
    fail(1, quote(address) + " is not an IPv6 address");
  } else if (!rest.empty() && rest.front() != ':') {
    fail(close + 1, "unexpected " + quote(rest) + " after the address; write slots as [" + address + "]:8");
  } else {
    result_.names = {address};
    if (!rest.empty()) read_slots(rest.substr(1), close + 2);
  }
}

void WordReader::read_names(std::string_view word) {
  const std::size_t colon = name_length(word);
  if (colon < word.size() && word.find(':', colon + 1) != std::string_view::npos) {
    fail(0, quote(word) + " is neither host:slots nor an IPv6 address; with slots write [::1]:8");
    return;
  }
  const std::string_view name = word.substr(0, colon);
  std::optional<RangeError> error = unusual_character(name);
  if (!error) {
    Expansion names = expand_ranges(name);
    error = std::move(names.error);
    result_.names = std::move(names.words);
  }
  if (error) fail(error->offset, std::move(error->message));
  if (colon < word.size()) read_slots(word.substr(colon + 1), colon + 1);
}

void WordReader::read_slots(std::string_view number, std::size_t offset) {
  result_.slots_given = true;
  result_.slots = parse_slots(number);
  if (!result_.slots) fail(offset, bad_slots(number));
}

}  // namespace

HostSpec parse_host_spec(std::string_view word) {
  return WordReader().read(word);
}

std::size_t name_length(std::string_view word) {
  if (starts_with_address(word)) return word.find(']') + 1;
  return std::min(word.find(':'), word.size());
}

bool is_host_name(std::string_view text) {
  return !text.empty() && text.front() != '-' && std::all_of(text.begin(), text.end(), is_name_character);
}

bool is_user_name(std::string_view user) {
  return !user.empty() && user.front() != '-' && user.back() != '\\' &&
         std::all_of(user.begin(), user.end(), [](unsigned char c) {
           constexpr std::string_view kRefused = "'`\";&<>|(){}";
           return c > ' ' && c != 0x7f && kRefused.find(static_cast<char>(c)) == std::string_view::npos;
         });
}

namespace {

bool is_jump(std::string_view hop) {
  if (hop.starts_with("ssh://")) hop.remove_prefix(6);
  if (const std::size_t sign = hop.rfind('@'); sign != std::string_view::npos) {
    if (!is_user_name(hop.substr(0, sign))) return false;
    hop.remove_prefix(sign + 1);
  }
  const std::size_t end = name_length(hop);
  std::string_view host = hop.substr(0, end);
  const bool address = host.starts_with('[');
  if (address) host = host.substr(1, host.size() - 2);
  if (address ? !is_ipv6(host) : !is_host_name(host)) return false;
  if (end == hop.size()) return true;
  const auto port = whole_number(hop.substr(end + 1), 65'535);
  return hop[end] == ':' && port && *port > 0;
}

}  // namespace

std::string jump_error(std::string_view value) {
  if (value == "none") return {};
  for (std::string_view rest = value;;) {
    const std::size_t comma = rest.find(',');
    const std::string_view hop = rest.substr(0, comma);
    if (hop == "none")
      return "jump=" + std::string(value) + ": none cannot be combined with hosts; give jump hosts or none";
    if (!is_jump(hop)) {
      return "jump=" + std::string(value) + ": " + quote(hop) +
             " is not a jump host; write [user@]host[:port], separated by commas";
    }
    if (comma == std::string_view::npos) return {};
    rest.remove_prefix(comma + 1);
  }
}

std::optional<int> parse_slots(std::string_view text) {
  const auto number = whole_number(text, kMaxSlots);
  if (!number || *number == 0) return std::nullopt;
  return static_cast<int>(*number);
}

std::string bad_slots(std::string_view text) {
  return quote(text) + " is not a number of slots (a whole number from 1 to " + std::to_string(kMaxSlots) +
         ")";
}

}  // namespace ddp::remote
