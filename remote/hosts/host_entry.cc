#include "remote/hosts/host_entry.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "base/format_text.h"
#include "base/parse_text.h"
#include "remote/hosts/host_key.h"
#include "remote/hosts/host_range.h"
#include "remote/hosts/host_spec.h"
#include "remote/hosts/shell_command.h"

namespace ddp::remote {

namespace {

using Key = HostKey::Key;

constexpr std::string_view kEnvPrefix = "env:";

bool is_blank(char c) {
  return c == ' ' || c == '\t';
}

// Reads one entry. Each step reports its errors and continues.
class EntryReader {
 public:
  explicit EntryReader(std::string_view text) : text_(text) {}

  HostEntry read() {
    skip_blanks();
    if (at_end()) return {};
    entry_.host_offset = at_;
    read_host_spec();
    while (skip_blanks(), !at_end())
      read_attribute();
    finish();
    return std::move(entry_);
  }

 private:
  bool at_end() const { return at_ >= text_.size() || text_[at_] == '#'; }

  void skip_blanks() {
    while (at_ < text_.size() && is_blank(text_[at_]))
      ++at_;
  }

  void fail(std::size_t offset, std::string message) {
    entry_.diagnostics.push_back({offset, std::move(message)});
  }

  void read_host_spec();
  void read_attribute();
  std::optional<std::string> read_value(bool free_text, std::string_view key);
  std::optional<std::string> read_quoted();
  void apply(const HostKey& key, std::size_t key_offset, const std::string& value, std::size_t offset);
  void apply_slots(const std::string& value, std::size_t offset);
  void apply_port(const std::string& value, std::size_t offset);
  void apply_address(const std::string& value, std::size_t offset);
  void apply_gpus(const std::string& value, std::size_t offset);
  void apply_wrapper(const std::string& value, std::size_t offset);
  void apply_env(std::string_view name, std::size_t key_offset, std::string value);
  bool first_time(Key key, std::string_view name, std::size_t offset);
  std::optional<int> slot_count(const std::string& value, std::size_t offset, std::string_view key);
  void finish();

  std::string_view text_;
  std::size_t at_ = 0;
  Host host_;  ///< the part that all hosts of the entry share
  std::vector<std::string> names_;
  std::vector<std::string> addresses_;
  std::size_t address_offset_ = 0;
  std::vector<Key> given_;
  std::optional<int> in_name_;  ///< slots given as name:N
  HostEntry entry_;
};

// Some keys have two names: slots=4 and cpu=4 are the same key.
std::string of_the_same(std::string_view name, HostKey::Key key) {
  if (key == Key::kSlots && name != "slots") return " (it means slots=)";
  if (key == Key::kMaxSlots && name != "max_slots") return " (it means max_slots=)";
  return key == Key::kUser && name != "user" ? " (it means user=)" : "";
}

bool EntryReader::first_time(Key key, std::string_view name, std::size_t offset) {
  if (std::find(given_.begin(), given_.end(), key) != given_.end()) {
    const std::string in_name = key == Key::kSlots && in_name_ ? std::to_string(*in_name_) : std::string();
    fail(offset, std::string(name) + " is given twice for this host" + of_the_same(name, key) +
                     (in_name.empty()
                          ? ""
                          : ": the :" + in_name + " of the name is slots, too; a port is port=" + in_name));
    return false;
  }
  given_.push_back(key);
  return true;
}

std::optional<int> EntryReader::slot_count(const std::string& value, std::size_t offset,
                                           std::string_view key) {
  const std::optional<int> slots = parse_slots(value);
  const bool list = value.find(',') != std::string::npos;
  if (!slots)
    fail(offset, std::string(key) + "=" + value + ": " + bad_slots(value) +
                     (list ? "; write one host per line" : ""));
  return slots;
}

void EntryReader::read_host_spec() {
  const std::size_t begin = at_;
  while (!at_end() && !is_blank(text_[at_]))
    ++at_;
  HostSpec word = parse_host_spec(text_.substr(begin, at_ - begin));
  for (RangeError& error : word.errors)
    fail(begin + error.offset, std::move(error.message));
  if (word.user_given) given_.push_back(Key::kUser);
  if (word.slots_given) given_.push_back(Key::kSlots);
  host_.user = std::move(word.user);
  host_.slots = word.slots;
  in_name_ = word.slots;
  names_ = std::move(word.names);
}

void EntryReader::read_attribute() {
  const std::size_t key_offset = at_;
  while (at_ < text_.size() && !is_blank(text_[at_]) && text_[at_] != '=' && text_[at_] != '#')
    ++at_;
  const std::string_view key = text_.substr(key_offset, at_ - key_offset);
  const std::size_t key_end = at_;
  skip_blanks();
  if (at_ >= text_.size() || text_[at_] != '=') {
    at_ = key_end;
    const bool number = whole_number(key, kMaxSlots).has_value();
    fail(key_offset, "unexpected word " + quote(key) +
                         (number ? "; did you mean slots=" + std::string(key) + "?"
                                 : "; write pairs like slots=8 after the host"));
    return;
  }
  ++at_;
  // Open MPI writes "slots = 4". In "env:A= b=1" the value of A is empty.
  if (at_ - 1 > key_end) skip_blanks();
  const bool env = key.starts_with(kEnvPrefix);
  const HostKey* found = find_host_key(key);
  const std::size_t offset = at_;
  const bool free_text = env || (found != nullptr && found->key >= Key::kAddress);
  entry_.open_key = offset < text_.size() && text_[offset] == '"' ? "" : std::string(key);
  std::optional<std::string> value = read_value(free_text, key);
  if (!env && found == nullptr) {
    fail(key_offset, unknown_host_key(key));
  } else if (!value) {
    return;
  } else if (env) {
    apply_env(key.substr(kEnvPrefix.size()), key_offset, std::move(*value));
  } else {
    apply(*found, key_offset, *value, offset);
  }
}

// Reads a bare word or one in double quotes. In free text a '#' could be part of the value, so it must be
// quoted or stand apart.
std::optional<std::string> EntryReader::read_value(bool free_text, std::string_view key) {
  if (at_ < text_.size() && text_[at_] == '"') return read_quoted();
  const std::size_t begin = at_;
  while (at_ < text_.size() && !is_blank(text_[at_])) {
    const char c = text_[at_];
    if (c == '"') {
      fail(at_, "a quote inside a value; put all of the value into quotes: " + std::string(key) + "=\"…\"");
      while (at_ < text_.size() && !is_blank(text_[at_]))
        ++at_;
      return std::nullopt;
    }
    if (c == '#') {
      if (free_text && at_ > begin) {
        fail(at_, "'#' inside a value; put the value into quotes, or a blank before the comment");
        at_ = text_.size();
        return std::nullopt;
      }
      break;
    }
    ++at_;
  }
  return std::string(text_.substr(begin, at_ - begin));
}

std::optional<std::string> EntryReader::read_quoted() {
  const std::size_t begin = at_++;
  std::string value;
  for (; at_ < text_.size() && text_[at_] != '"'; ++at_) {
    const bool escape =
        text_[at_] == '\\' && at_ + 1 < text_.size() && (text_[at_ + 1] == '"' || text_[at_ + 1] == '\\');
    if (escape) ++at_;
    value += text_[at_];
  }
  if (at_ >= text_.size()) {
    fail(begin, "the quote is not closed");
    return std::nullopt;
  }
  ++at_;
  if (!at_end() && !is_blank(text_[at_])) {
    fail(at_, "a blank is missing after the closing quote");
    while (!at_end() && !is_blank(text_[at_]))
      ++at_;
    return std::nullopt;
  }
  return value;
}

void EntryReader::apply(const HostKey& key, std::size_t key_offset, const std::string& value,
                        std::size_t offset) {
  if (!first_time(key.key, key.name, key_offset)) return;
  if (value.empty()) {
    fail(offset, std::string(key.name) + "= has no value");
    return;
  }
  switch (key.key) {
    case Key::kSlots:
      host_.slots = slot_count(value, offset, key.name);
      break;
    case Key::kMaxSlots:
      host_.max_slots = slot_count(value, offset, key.name);
      break;
    case Key::kPort:
      apply_port(value, offset);
      break;
    case Key::kUser:
      host_.user = value;
      if (!is_user_name(value)) fail(offset, quote(value) + " is not a user name");
      break;
    case Key::kJump:
      host_.jump = value;
      if (const std::string wrong = jump_error(value); !wrong.empty()) fail(offset, wrong);
      break;
    case Key::kAddress:
      apply_address(value, offset);
      break;
    case Key::kIdentity:
      host_.identity = value;
      break;
    case Key::kChdir:
      host_.chdir = value;
      if (value.front() != '/') fail(offset, "chdir=" + value + ": a path on the node must begin with /");
      break;
    case Key::kGpus:
      apply_gpus(value, offset);
      break;
    case Key::kWrapper:
      apply_wrapper(value, offset);
      break;
    case Key::kSetup:
      host_.setup = value;
      break;
  }
}

void EntryReader::apply_port(const std::string& value, std::size_t offset) {
  const auto number = whole_number(value, 65'535);
  if (!number || *number == 0) {
    fail(offset, "port=" + value + ": " + quote(value) + " is not a port number from 1 to 65535");
    return;
  }
  host_.port = static_cast<std::uint16_t>(*number);
}

void EntryReader::apply_address(const std::string& value, std::size_t offset) {
  address_offset_ = offset;
  std::string_view text = value;
  if (text.size() > 2 && text.front() == '[' && text.back() == ']' &&
      is_ipv6(text.substr(1, text.size() - 2))) {
    text = text.substr(1, text.size() - 2);
  }
  if (is_ipv6(text)) {
    addresses_ = {std::string(text)};
    return;
  }
  Expansion expanded = expand_ranges(text);
  if (expanded.error) {
    fail(offset + expanded.error->offset, std::move(expanded.error->message));
    return;
  }
  for (const std::string& word : expanded.words) {
    if (is_ipv6(word) || is_host_name(word)) continue;
    fail(offset, quote(word) + " is neither a host name nor an address");
    return;
  }
  addresses_ = std::move(expanded.words);
}

void EntryReader::apply_gpus(const std::string& value, std::size_t offset) {
  Expansion ids = expand_ids(value);
  if (ids.error) {
    fail(offset + ids.error->offset, std::move(ids.error->message));
    return;
  }
  host_.devices = std::move(ids.words);
}

void EntryReader::apply_wrapper(const std::string& value, std::size_t offset) {
  auto words = split_words(value);
  if (!words) {
    fail(offset, "wrapper=" + quote(value) + ": " + words.error().text);
  } else if (words->empty()) {
    fail(offset, "wrapper= has no value");
  } else {
    host_.wrapper = std::move(*words);
  }
}

void EntryReader::apply_env(std::string_view name, std::size_t key_offset, std::string value) {
  if (!is_variable_name(name)) {
    fail(key_offset + kEnvPrefix.size(), quote(name) + " is not the name of an environment variable");
    return;
  }
  for (const auto& known : host_.env) {
    if (known.first == name) {
      fail(key_offset, "env:" + std::string(name) + " is given twice for this host");
      return;
    }
  }
  host_.env.emplace_back(std::string(name), std::move(value));
}

// Checks that need the whole entry.
void EntryReader::finish() {
  if (host_.slots && host_.max_slots && *host_.max_slots < *host_.slots) {
    fail(entry_.host_offset, "max_slots=" + std::to_string(*host_.max_slots) +
                                 " is less than slots=" + std::to_string(*host_.slots));
  }
  if (!names_.empty() && !addresses_.empty() && names_.size() != addresses_.size()) {
    fail(address_offset_,
         std::to_string(names_.size()) + " hosts, but " + counted(addresses_.size(), "address", "addresses"));
  }
  if (!entry_.diagnostics.empty()) return;
  if (!host_.slots && !host_.devices.empty()) host_.slots = static_cast<int>(host_.devices.size());
  entry_.hosts.reserve(names_.size());
  for (std::size_t i = 0; i < names_.size(); ++i) {
    Host& host = entry_.hosts.emplace_back(host_);
    host.name = std::move(names_[i]);
    if (!addresses_.empty()) host.address = std::move(addresses_[i]);
  }
}

}  // namespace

HostEntry parse_entry(std::string_view text) {
  return EntryReader(text).read();
}

std::size_t comment_start(std::string_view text) {
  bool quote = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (quote && text[i] == '\\') {
      ++i;
    } else if (text[i] == '"') {
      quote = !quote;
    } else if (text[i] == '#' && !quote) {
      return i;
    }
  }
  return text.size();
}

}  // namespace ddp::remote
