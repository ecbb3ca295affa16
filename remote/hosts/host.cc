// Ranges and their folding; the order of names; ids of devices; addresses; the word that names a host; jump
// hosts; and last the filters --include and --exclude.
#include "remote/hosts/host.h"

#include <arpa/inet.h>  // inet_pton: text to bytes, no socket

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/text.h"

namespace ddp::remote {
namespace {

constexpr unsigned long long kMaxRangeNumber = 999'999'999'999'999'999ULL;
constexpr std::size_t kMaxIds = 65'535;

Expansion failed(std::size_t offset, std::string message) {
  return {{}, RangeError{offset, std::move(message)}};
}

std::string padded(unsigned long long number, std::size_t width) {
  std::string digits = std::to_string(number);
  if (digits.size() < width) digits.insert(0, width - digits.size(), '0');
  return digits;
}

// A word split at one of its numbers.
struct NumberedName {
  std::string before;
  std::string digits;
  std::string behind;
};

// Splits at the last number or at the first one. An IPv6 address is not split.
std::optional<NumberedName> cut_at_number(const std::string& word, bool last) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (word.find_first_of(":[]") != std::string::npos) return std::nullopt;
  std::size_t begin = 0;
  std::size_t end = 0;
  if (last) {
    end = word.find_last_of("0123456789");
    if (end == std::string::npos) return std::nullopt;
    begin = end++;
    while (begin > 0 && is_digit(word[begin - 1]))
      --begin;
  } else {
    begin = word.find_first_of("0123456789");
    if (begin == std::string::npos) return std::nullopt;
    end = begin;
    while (end < word.size() && is_digit(word[end]))
      ++end;
  }
  // 18 digits always fit into 64 bits. A longer number stays a part of the name.
  if (end - begin > 18) return std::nullopt;
  return NumberedName{word.substr(0, begin), word.substr(begin, end - begin), word.substr(end)};
}

// Returns whether a range can continue from `a` to `b`.
bool follows(const std::string& a, const std::string& b) {
  const auto low = whole_number(a, kMaxRangeNumber);
  const auto high = whole_number(b, kMaxRangeNumber);
  if (!low || !high || *high != *low + 1) return false;
  // 09 and 10 are one range of width 2; 9 and 010 are not.
  return a.size() == b.size() || (a.front() != '0' && b.front() != '0');
}

std::string fold_numbers(const std::vector<std::string>& numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t end = i + 1;
    while (end < numbers.size() && follows(numbers[end - 1], numbers[end]))
      ++end;
    text += (text.empty() ? "" : ",") + numbers[i];
    if (end - i > 1) text += '-' + numbers[end - 1];
    i = end;
  }
  return text;
}

std::vector<std::string> folded_parts(const std::vector<std::string>& words, bool last) {
  struct NumberedPart {
    NumberedName shape;
    std::vector<std::string> numbers;  // empty: the word itself
  };
  std::vector<NumberedPart> parts;
  std::unordered_map<std::string, std::size_t> known;
  for (const std::string& word : words) {
    auto cut = cut_at_number(word, last);
    if (!cut) {
      parts.push_back({{word, "", ""}, {}});
      continue;
    }
    // '[' stands in no name, so it separates the two parts without doubt.
    const auto [at, is_new] = known.emplace(cut->before + '[' + cut->behind, parts.size());
    if (is_new) parts.push_back({*cut, {}});
    parts[at->second].numbers.push_back(std::move(cut->digits));
  }
  std::vector<std::string> texts;
  for (const NumberedPart& part : parts) {
    const std::string bracket =
        part.numbers.size() > 1 ? '[' + fold_numbers(part.numbers) + ']' : part.shape.digits;
    texts.push_back(part.shape.before + bracket + part.shape.behind);
  }
  return texts;
}

// Expands one item between the commas of a bracket: 20 or 01-16.
Expansion expand_item(std::string_view item, std::size_t limit) {
  const std::size_t dash = item.find('-');
  const std::string_view low_text = item.substr(0, dash);
  const std::string_view high_text = dash == std::string_view::npos ? low_text : item.substr(dash + 1);
  if (!is_digits(low_text) || !is_digits(high_text)) {
    return failed(0, quote(item) + " is not a number or a range like 01-16");
  }
  const auto low = whole_number(low_text, kMaxRangeNumber);
  const auto high = whole_number(high_text, kMaxRangeNumber);
  if (!low || !high) return failed(0, "the numbers in " + quote(item) + " are too large");
  if (*low > *high) {
    return failed(0, "range " + std::string(item) + " is reversed; write " + std::string(high_text) + "-" +
                         std::string(low_text));
  }
  // [01-016] has no width that both bounds agree on.
  if (high_text.size() != low_text.size() && high_text.front() == '0') {
    return failed(0, "the bounds of " + std::string(item) + " are padded with zeros to different widths");
  }
  if (*high - *low >= limit) {
    return failed(0, "range " + std::string(item) + " has more than " + std::to_string(limit) + " entries");
  }
  const std::size_t width = low_text.front() == '0' ? low_text.size() : 0;
  Expansion result;
  for (unsigned long long n = *low; n <= *high; ++n)
    result.words.push_back(padded(n, width));
  return result;
}

// Expands the inside of one bracket. Offsets count from its first character.
Expansion expand_bracket(std::string_view inside, std::size_t limit) {
  if (inside.empty()) return failed(0, "empty brackets; write a range like [01-16]");
  Expansion result;
  std::size_t begin = 0;
  for (const std::string_view part : split(inside, ',')) {
    Expansion item = expand_item(part, limit);
    if (item.error) return failed(begin + item.error->offset, std::move(item.error->message));
    if (result.words.size() + item.words.size() > limit) {
      return failed(begin, "the range has more than " + std::to_string(limit) + " entries");
    }
    std::move(item.words.begin(), item.words.end(), std::back_inserter(result.words));
    begin += part.size() + 1;
  }
  return result;
}

// Returns every head with every tail; the tail varies fastest.
std::vector<std::string> product(const std::vector<std::string>& heads,
                                 const std::vector<std::string>& tails) {
  std::vector<std::string> words;
  words.reserve(heads.size() * tails.size());
  for (const std::string& head : heads) {
    for (const std::string& tail : tails)
      words.push_back(head + tail);
  }
  return words;
}

// Expands 3 to 3, and 0-3 to 0 1 2 3. Any other text of device-name characters stays as it is.
Expansion expand_id(std::string_view item) {
  if (item.empty()) return failed(0, "empty entry in a list of devices");
  const std::size_t dash = item.find('-');
  if (dash != std::string_view::npos && is_digits(item.substr(0, dash)) && is_digits(item.substr(dash + 1))) {
    return expand_item(item, kMaxIds);
  }
  if (is_digits(item)) {
    const auto number = whole_number(item, kMaxIds);
    if (!number) return failed(0, quote(item) + " is too large for a device number");
    return {{std::to_string(*number)}, {}};
  }
  const bool named =
      std::isalpha(static_cast<unsigned char>(item.front())) != 0 &&
      std::all_of(item.begin(), item.end(), [](unsigned char c) {
        return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '/' || c == '.' || c == ':';
      });
  if (!named) return failed(0, quote(item) + " is not a device number, a range like 0-3, or a device's UUID");
  return {{std::string(item)}, {}};
}

// inet_pton takes a C string, so it would accept an address with a NUL and anything behind it.
bool parses(int family, std::string_view text) {
  in6_addr bytes;  // large enough for both families
  return text.find('\0') == std::string_view::npos &&
         ::inet_pton(family, std::string(text).c_str(), &bytes) == 1;
}

}  // namespace

Expansion expand_ranges(std::string_view word, std::size_t limit) {
  Expansion result{{std::string()}, {}};
  std::size_t at = 0;
  while (at < word.size()) {
    const std::size_t open = std::min(word.find_first_of("[]", at), word.size());
    for (std::string& head : result.words)
      head += word.substr(at, open - at);
    if (open == word.size()) break;
    if (word[open] == ']') return failed(open, "\"]\" has no \"[\"");
    const std::size_t close = word.find_first_of("[]", open + 1);
    if (close == std::string_view::npos) return failed(open, "\"[\" has no \"]\"");
    if (word[close] == '[') return failed(close, "\"[\" inside a range");
    Expansion inside = expand_bracket(word.substr(open + 1, close - open - 1), limit);
    if (inside.error) return failed(open + 1 + inside.error->offset, std::move(inside.error->message));
    // Before the product is made: two ranges of 100,000 would be 10 billion names.
    if (result.words.size() > limit / inside.words.size()) {
      return failed(open, "the ranges give more than " + std::to_string(limit) + " entries");
    }
    result.words = product(result.words, inside.words);
    at = close + 1;
  }
  return result;
}

std::string fold_ranges(const std::vector<std::string>& words) {
  std::vector<std::string> parts = folded_parts(words, true);
  // A name may count in either of its numbers (rack1-node01, gpu01-cluster2). The shorter text wins.
  if (std::vector<std::string> other = folded_parts(words, false); other.size() < parts.size())
    parts = std::move(other);
  return join(parts, ",");
}

bool HostOrder::operator()(std::string_view a, std::string_view b) const {
  const std::pair whole(a, b);
  const auto take_number = [](std::string_view& text) {
    const std::size_t size = std::min(text.find_first_not_of("0123456789"), text.size());
    const std::string_view digits = text.substr(0, size);
    text.remove_prefix(size);
    // Without leading zeros the longer number is the larger one, however long it is.
    return digits.substr(std::min(digits.find_first_not_of('0'), digits.size()));
  };
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  while (!a.empty() && !b.empty()) {
    if (is_digit(a.front()) && is_digit(b.front())) {
      const std::string_view left = take_number(a), right = take_number(b);
      if (left != right) return left.size() != right.size() ? left.size() < right.size() : left < right;
    } else {
      if (a.front() != b.front()) return a.front() < b.front();
      a.remove_prefix(1);
      b.remove_prefix(1);
    }
  }
  if (a.empty() != b.empty()) return a.empty();
  return whole.first < whole.second;  // they differ in leading zeros
}

Expansion expand_ids(std::string_view list, bool repeats) {
  Expansion result;
  std::unordered_set<std::string> seen;
  std::size_t begin = 0;
  for (const std::string_view part : split(list, ',')) {
    Expansion item = expand_id(part);
    if (item.error) return failed(begin + item.error->offset, std::move(item.error->message));
    if (result.words.size() + item.words.size() > kMaxIds) {
      return failed(begin, "more than " + std::to_string(kMaxIds) + " devices");
    }
    for (std::string& word : item.words) {
      if (seen.insert(word).second) {
        result.words.push_back(std::move(word));
      } else if (!repeats) {
        return failed(begin, word + " is given twice");
      }
    }
    begin += part.size() + 1;
  }
  return result;
}

bool is_ipv4(std::string_view text) {
  return parses(AF_INET, text);
}

bool is_ipv6(std::string_view text) {
  if (const std::size_t zone = text.find('%'); zone != std::string_view::npos) {
    const std::string_view name = text.substr(zone + 1);
    // A zone is the name of an interface: at most 15 bytes (IFNAMSIZ).
    if (name.empty() || name.size() > 15 || name.find_first_of("%:[]@ ") != std::string_view::npos)
      return false;
    text = text.substr(0, zone);
  }
  return parses(AF_INET6, text);
}

namespace {

// Formats a character for a message: a visible one as it is, any other as a number.
std::string shown(char c) {
  const auto byte = static_cast<unsigned char>(c);
  if (byte > ' ' && byte < 0x7f) return std::string("'") + c + "'";
  return format_text("byte 0x%02x", byte);
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
  // The last @, since a user name may contain one (ann@domain@gpu01).
  if (const std::size_t sign = word.rfind('@'); sign != std::string_view::npos) {
    result_.user_given = true;
    result_.user = word.substr(0, sign);
    if (!is_user_name(result_.user)) fail(0, quote(result_.user) + " is not a user name");
    base_ = sign + 1;
    word.remove_prefix(sign + 1);
  }
  // Before names: the colons of an address are no slots.
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
           // OpenSSH refuses the same characters in user names (valid_ruser).
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
  const auto place = split_endpoint(hop);
  if (!place || (hop.starts_with('[') ? !is_ipv6(place->host) : !is_host_name(place->host))) return false;
  if (!place->port) return true;
  const auto port = whole_number(*place->port, 65'535);
  return port && *port > 0;
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

namespace {

/// The selection of one host by one option.
struct Selection {
  bool whole = false;
  std::set<int> slots;
};

std::string where_listed(const Host& host) {
  std::string text = host.location.file;
  if (host.location.line > 0) text += ':' + std::to_string(host.location.line);
  return text.empty() ? "the list of hosts" : text;
}

// Reads one option into selections, by the host's index.
class FilterReader {
 public:
  FilterReader(const std::vector<Host>& hosts, std::string option)
      : hosts_(hosts), option_(std::move(option)) {
    for (std::size_t i = 0; i < hosts.size(); ++i)
      index_.emplace(lower_case(hosts[i].name), i);
  }

  void read(std::string_view text);
  std::map<std::size_t, Selection> selections;
  std::vector<Diagnostic> diagnostics;

 private:
  bool is_user(std::string_view part, std::string_view rest) const;
  void read_part(std::string_view part, std::size_t offset);
  std::optional<std::vector<int>> read_slots(std::string_view text, std::size_t offset);
  void select(const std::string& name, std::size_t offset, const std::vector<int>* slots);
  void fail(std::size_t offset, std::string message) {
    diagnostics.push_back({SourceLocation{option_, 0, static_cast<int>(offset) + 1}, std::move(message)});
  }

  const std::vector<Host>& hosts_;
  std::string option_;
  std::unordered_map<std::string, std::size_t> index_;
};

void FilterReader::read(std::string_view text) {
  std::size_t begin = 0;
  while (diagnostics.size() < kMaxDiagnostics) {
    const std::size_t end = std::min(text.find('@', begin), text.size());
    const std::string_view part = text.substr(begin, end - begin);
    if (!is_user(part, text.substr(std::min(end + 1, text.size())))) read_part(part, begin);
    if (end == text.size()) return;
    begin = end + 1;
  }
}

// Returns whether `part` is the user of the host that begins `rest`, in root@gpu01 as the hostfile has it.
// The name of a listed host is that host.
bool FilterReader::is_user(std::string_view part, std::string_view rest) const {
  if (index_.contains(lower_case(part))) return false;
  const std::string_view next = rest.substr(0, rest.find('@'));
  const HostSpec spec = parse_host_spec(is_ipv6(next) ? next : next.substr(0, name_length(next)));
  return !spec.names.empty() &&
         std::all_of(spec.names.begin(), spec.names.end(), [&](const std::string& name) {
           const auto found = index_.find(lower_case(name));
           return found != index_.end() && hosts_[found->second].user == part;
         });
}

void FilterReader::read_part(std::string_view part, std::size_t offset) {
  const std::size_t end = is_ipv6(part) ? part.size() : name_length(part);
  const std::string_view name = part.substr(0, end);
  if (name.empty()) return fail(offset, "a host is missing; the form is gpu01:0,2@gpu02");
  std::optional<std::vector<int>> slots;
  if (end < part.size()) {
    if (part[end] != ':') return fail(offset + end, "expected ':' and slots after the host, as in gpu01:0,2");
    slots = read_slots(part.substr(end + 1), offset + end + 1);
    if (!slots) return;
  }
  HostSpec word = parse_host_spec(name);
  for (RangeError& error : word.errors) {
    const bool comma = error.message.starts_with("','");
    fail(offset + error.offset, comma ? "',' separates the slots of one host; hosts are separated by '@': "
                                        "gpu01@gpu02 or gpu01:0,2@gpu02"
                                      : std::move(error.message));
  }
  if (!word.errors.empty()) return;
  for (const std::string& host : word.names) {
    if (diagnostics.size() >= kMaxDiagnostics) return;
    select(host, offset, slots ? &*slots : nullptr);
  }
}

std::optional<std::vector<int>> FilterReader::read_slots(std::string_view text, std::size_t offset) {
  Expansion ids = expand_ids(text, true);
  if (ids.error) {
    fail(offset + ids.error->offset, std::move(ids.error->message));
    return std::nullopt;
  }
  std::vector<int> slots;
  for (const std::string& id : ids.words) {
    const auto number = whole_number(id, kMaxSlots);
    if (!number) {
      fail(offset, '"' + id +
                       "\" is not a slot number; slots are numbered from 0, and hosts are separated by '@': "
                       "gpu01:0,2@gpu02");
      return std::nullopt;
    }
    slots.push_back(static_cast<int>(*number));
  }
  return slots;
}

void FilterReader::select(const std::string& name, std::size_t offset, const std::vector<int>* slots) {
  const auto found = index_.find(lower_case(name));
  if (found == index_.end()) {
    std::vector<std::string_view> names;
    for (const Host& host : hosts_)
      names.push_back(host.name);
    const std::string_view near = nearest_word(name, names);
    const std::string file = hosts_.empty() ? "the list of hosts" : hosts_.front().location.file;
    fail(offset, "host " + name + " is not in " + (file.empty() ? "the list of hosts" : file) +
                     (near.empty() ? std::string() : "; did you mean " + std::string(near) + "?"));
    return;
  }
  const Host& host = hosts_[found->second];
  Selection& selection = selections[found->second];
  if (slots == nullptr) {
    selection.whole = true;
    return;
  }
  for (const int slot : *slots) {
    // Without slots= in the file any slot may be chosen (docs/users/hostfile.md).
    if (host.slots && slot >= *host.slots) {
      fail(offset, host.name + " has no slot " + std::to_string(slot) +
                       ": slots=" + std::to_string(*host.slots) + " in " + where_listed(host) + " makes 0" +
                       (*host.slots > 1 ? " to " + std::to_string(*host.slots - 1) : std::string()));
    }
    selection.slots.insert(slot);
  }
}

// Reduces the host to `slots`.
void keep_slots(Host& host, const std::set<int>& slots) {
  std::vector<std::string> devices;
  for (const int slot : slots) {
    const auto i = static_cast<std::size_t>(slot);
    // Slot i is the i-th device of gpus=, or device i (docs/users/hostfile.md).
    devices.push_back(i < host.devices.size() ? host.devices[i] : std::to_string(slot));
  }
  host.slots = static_cast<int>(slots.size());
  host.devices = std::move(devices);
}

std::vector<Host> included(std::vector<Host> hosts, const std::map<std::size_t, Selection>& selections) {
  std::vector<Host> kept;
  // By index, so that the order stays that of the file, as in DeepSpeed.
  for (const auto& [index, selection] : selections) {
    Host& host = hosts[index];
    if (!selection.whole) keep_slots(host, selection.slots);
    kept.push_back(std::move(host));
  }
  return kept;
}

std::vector<Host> excluded(std::vector<Host> hosts, FilterReader& reader) {
  std::vector<Host> kept;
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    Host& host = hosts[i];
    const auto found = reader.selections.find(i);
    if (found != reader.selections.end()) {
      if (found->second.whole) continue;
      if (!host.slots) {
        reader.diagnostics.push_back({SourceLocation{"--exclude"},
                                      "slots of " + host.name + " cannot be excluded: " + where_listed(host) +
                                          " does not say how many it has; add slots=N there"});
        continue;
      }
      std::set<int> rest;
      for (int slot = 0; slot < *host.slots; ++slot) {
        if (!found->second.slots.contains(slot)) rest.insert(slot);
      }
      // All slots are excluded: the host goes as a whole.
      if (rest.empty()) continue;
      keep_slots(host, rest);
    }
    kept.push_back(std::move(host));
  }
  return kept;
}

}  // namespace

Validated<std::vector<Host>> filter_hosts(std::vector<Host> hosts, std::string_view include,
                                          std::string_view exclude) {
  if (include.empty() && exclude.empty()) return hosts;
  if (!include.empty() && !exclude.empty()) {
    return DiagnosticList{
        {{SourceLocation{}, "--include and --exclude cannot be used together; use one of them"}}};
  }
  const bool is_include = !include.empty();
  const std::string option = is_include ? "--include" : "--exclude";
  FilterReader reader(hosts, option);
  reader.read(is_include ? include : exclude);
  if (!reader.diagnostics.empty()) return DiagnosticList{std::move(reader.diagnostics)};
  std::vector<Host> kept = is_include ? included(hosts, reader.selections) : excluded(hosts, reader);
  if (!reader.diagnostics.empty()) return DiagnosticList{std::move(reader.diagnostics)};
  if (kept.empty()) return DiagnosticList{{{SourceLocation{option, 0, 0}, "no host is left to run on"}}};
  return kept;
}

}  // namespace ddp::remote
