// The keys of an entry; one entry (EntryReader); the list of entries with their errors (HostList); and the
// two forms of a list: a file, and --host.
#include "remote/hosts/hostfile.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/text.h"
#include "remote/hosts/host.h"
#include "remote/hosts/shell_command.h"

namespace ddp::remote {
namespace {

/// A key of the pairs behind a host: slots=8. Several names may mean the same key, as in other launchers'
/// hostfiles.
struct HostKey {
  /// From kAddress on, values are free text, in which a '#' could be part of the value.
  enum class Key : std::uint8_t {
    kSlots,
    kMaxSlots,
    kPort,
    kUser,
    kJump,
    kAddress,
    kIdentity,
    kChdir,
    kGpus,
    kWrapper,
    kSetup
  };
  std::string_view name;
  Key key;
  bool shown;  ///< suggested in messages; the others are Open MPI's spellings
};

using Key = HostKey::Key;

constexpr std::array kKeys = {
    HostKey{"slots", Key::kSlots, true},         HostKey{"port", Key::kPort, true},
    HostKey{"user", Key::kUser, true},           HostKey{"address", Key::kAddress, true},
    HostKey{"identity", Key::kIdentity, true},   HostKey{"chdir", Key::kChdir, true},
    HostKey{"gpus", Key::kGpus, true},           HostKey{"max_slots", Key::kMaxSlots, true},
    HostKey{"max-slots", Key::kMaxSlots, false}, HostKey{"slots_max", Key::kMaxSlots, false},
    HostKey{"slots-max", Key::kMaxSlots, false}, HostKey{"max_cpu", Key::kMaxSlots, false},
    HostKey{"max-cpu", Key::kMaxSlots, false},   HostKey{"cpu_max", Key::kMaxSlots, false},
    HostKey{"cpu-max", Key::kMaxSlots, false},   HostKey{"max_count", Key::kMaxSlots, false},
    HostKey{"max-count", Key::kMaxSlots, false}, HostKey{"count_max", Key::kMaxSlots, false},
    HostKey{"count-max", Key::kMaxSlots, false}, HostKey{"cpu", Key::kSlots, false},
    HostKey{"count", Key::kSlots, false},        HostKey{"username", Key::kUser, false},
    HostKey{"user_name", Key::kUser, false},     HostKey{"user-name", Key::kUser, false},
    HostKey{"jump", Key::kJump, true},           HostKey{"wrapper", Key::kWrapper, true},
    HostKey{"setup", Key::kSetup, true},
};

/// Returns the key with this name, in static storage, or nullptr.
const HostKey* find_host_key(std::string_view name) {
  const auto* const found =
      std::find_if(kKeys.begin(), kKeys.end(), [&](const HostKey& known) { return known.name == name; });
  return found == kKeys.end() ? nullptr : found;
}

/// Returns the message for a name that find_host_key() does not find.
std::string unknown_host_key(std::string_view name) {
  if (name.empty()) return "a key is missing before =";
  // The number of workers in options of other launchers.
  static constexpr std::string_view kCounts[] = {"np",     "n",     "ppn",    "nproc",
                                                 "nprocs", "procs", "ntasks", "cpus"};
  if (std::ranges::find(kCounts, name) != std::end(kCounts))
    return "unknown key " + std::string(name) + "; did you mean slots?";
  std::vector<std::string_view> names;
  for (const HostKey& known : kKeys) {
    if (known.shown) names.push_back(known.name);
  }
  names.push_back("env:NAME");
  if (const std::string_view near = nearest_word(name, names); !near.empty())
    return "unknown key " + std::string(name) + "; did you mean " + std::string(near) + "?";
  std::string all;
  for (const std::string_view known : names)
    all += (all.empty() ? "" : ", ") + std::string(known);
  return "unknown key " + std::string(name) + "; known keys: " + all;
}

constexpr std::string_view kEnvPrefix = "env:";

/// Names the first dash or quote that a page or a chat has beautified; empty: there is none.
std::string lookalike_hint(std::string_view text) {
  struct Lookalike {
    std::string_view character, number, meant;
  };
  static constexpr Lookalike kLookalikes[] = {{"\u2013", "U+2013", "-"},  {"\u2014", "U+2014", "-"},
                                              {"\u2212", "U+2212", "-"},  {"\u201c", "U+201C", "\""},
                                              {"\u201d", "U+201D", "\""}, {"\u201e", "U+201E", "\""},
                                              {"\u2018", "U+2018", "'"},  {"\u2019", "U+2019", "'"}};
  const Lookalike* first = nullptr;
  std::size_t begin = std::string_view::npos;
  for (const Lookalike& one : kLookalikes) {
    if (const std::size_t at = text.find(one.character); at < begin) {
      begin = at;
      first = &one;
    }
  }
  if (first == nullptr) return "";
  return "; the line has " + std::string(first->character) + " (" + std::string(first->number) + "), type " +
         std::string(first->meant) + " instead";
}

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
    // Once for each line: it usually explains all of its errors.
    if (entry_.diagnostics.empty()) message += lookalike_hint(text_);
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
  // The same rules for a hostfile, --host and filters: host.cc has them.
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
  // For --host: a comma may continue a value that has no quotes (takes_comma).
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
    case Key::kSlots: host_.slots = slot_count(value, offset, key.name); break;
    case Key::kMaxSlots: host_.max_slots = slot_count(value, offset, key.name); break;
    case Key::kPort: apply_port(value, offset); break;
    case Key::kUser:
      host_.user = value;
      if (!is_user_name(value)) fail(offset, quote(value) + " is not a user name");
      break;
    case Key::kJump:
      host_.jump = value;
      if (const std::string wrong = jump_error(value); !wrong.empty()) fail(offset, wrong);
      break;
    case Key::kAddress: apply_address(value, offset); break;
    case Key::kIdentity: host_.identity = value; break;
    case Key::kChdir:
      host_.chdir = value;
      if (value.front() != '/') fail(offset, "chdir=" + value + ": a path on the node must begin with /");
      break;
    case Key::kGpus: apply_gpus(value, offset); break;
    case Key::kWrapper: apply_wrapper(value, offset); break;
    case Key::kSetup: host_.setup = value; break;
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

/// Returns the start of the line's comment (a '#' outside of quotes), or the line's size.
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

}  // namespace

HostEntry parse_entry(std::string_view text) {
  return EntryReader(text).read();
}

namespace {

constexpr std::size_t kMaxLine = 16 * 1024;

// Columns count characters, as editors show them: continuation bytes of a UTF-8 character are not counted.
int column_of(std::string_view line, std::size_t offset) {
  return 1 + static_cast<int>(count_characters(line.substr(0, offset)));
}

// Returns a key of the entry with which it cannot be repeated; empty: it has none. "slots=" is the last
// choice.
std::string single_key(const Host& host) {
  if (host.max_slots) return "max_slots=";
  if (!host.user.empty()) return "user=";
  if (host.port != 0) return "port=";
  if (!host.address.empty()) return "address=";
  if (!host.identity.empty()) return "identity=";
  if (!host.jump.empty()) return "jump=";
  if (!host.chdir.empty()) return "chdir=";
  if (!host.devices.empty()) return "gpus=";
  if (!host.env.empty()) return "env:";
  if (!host.wrapper.empty()) return "wrapper=";
  if (!host.setup.empty()) return "setup=";
  return host.slots ? "slots=" : "";
}

// Collects the entries and their errors.
class HostList {
 public:
  explicit HostList(std::string file) : file_(std::move(file)) {}

  /// Adds the entry text[begin, begin + size). `line` is 0 for a list on the command line, whose whole text
  /// is `text`. Returns HostEntry::open_key.
  std::string add(std::string_view text, int line, std::size_t begin, std::size_t size);
  void fail(int line, int column, std::string message) {
    errors_.push_back({SourceLocation{file_, line, column}, std::move(message)});
  }
  bool full() const { return errors_.size() >= kMaxDiagnostics; }
  Validated<std::vector<Host>> finish(std::string nothing_found);

 private:
  struct Known {
    SourceLocation location;
    std::size_t index;
    bool alone;       ///< an entry for one host
    std::string key;  ///< single_key of that entry
  };

  bool add_slot(const Known& known);
  void report_twice(const SourceLocation& location, const Host& again, const Known& first, std::size_t more);

  std::string file_;
  std::vector<Host> hosts_;
  std::vector<Diagnostic> errors_;
  std::unordered_map<std::string, Known> seen_;
};

std::string HostList::add(std::string_view text, int line, std::size_t begin, std::size_t size) {
  HostEntry entry = parse_entry(text.substr(begin, size));
  for (EntryDiagnostic& diagnostic : entry.diagnostics) {
    fail(line, column_of(text, begin + diagnostic.offset), std::move(diagnostic.message));
  }
  if (entry.hosts.empty()) return entry.open_key;
  const SourceLocation location{file_, line, column_of(text, begin + entry.host_offset)};
  if (hosts_.size() + entry.hosts.size() > kMaxHosts) {
    fail(location.line, location.column, "more than " + std::to_string(kMaxHosts) + " hosts");
    return entry.open_key;
  }
  const Host* twice = nullptr;
  const Known* first = nullptr;
  std::size_t count = 0;
  const bool alone = entry.hosts.size() == 1;
  const std::string key = single_key(entry.hosts.front());
  for (std::size_t i = 0; i < entry.hosts.size(); ++i) {
    Host& host = entry.hosts[i];
    const auto [known, is_new] =
        // Names of hosts do not distinguish case (RFC 4343), so GPU01 and gpu01 are one host.
        seen_.emplace(lower_case(host.name), Known{location, hosts_.size() + i, alone, key});
    if (!is_new) {
      if (alone && key.empty() && add_slot(known->second)) return entry.open_key;
      if (count++ == 0) {
        twice = &host;
        first = &known->second;
      }
      continue;
    }
    host.location = location;
  }
  if (count > 0) {
    report_twice(location, *twice, *first, count - 1);
    return entry.open_key;
  }
  std::move(entry.hosts.begin(), entry.hosts.end(), std::back_inserter(hosts_));
  return entry.open_key;
}

// Adds a host's further entry, as Open MPI does: each is one slot. Returns false if the two entries cannot be
// added.
bool HostList::add_slot(const Known& known) {
  if (!known.alone || !known.key.empty() || known.index >= hosts_.size()) return false;
  std::optional<int>& slots = hosts_[known.index].slots;
  if (slots.value_or(1) >= kMaxSlots) return false;
  slots = slots.value_or(1) + 1;
  return true;
}

void HostList::report_twice(const SourceLocation& location, const Host& again, const Known& first,
                            std::size_t more) {
  std::string text = "host " + again.name;
  if (more > 0) text += " and " + std::to_string(more) + " more of this range";
  text += more > 0 ? " are listed twice" : " is listed twice";
  text += first.location.line > 0 ? " (first on line " + std::to_string(first.location.line) + ")"
                                  : " (first at column " + std::to_string(first.location.column) + ")";
  const std::string lines = location.line > 0 ? "lines" : "entries";
  const std::string again_key = single_key(again);
  const std::string& key =
      first.key.empty() || (first.key == "slots=" && !again_key.empty()) ? again_key : first.key;
  if (key == "slots=") {
    text += ": multiple definitions of the slot count; only " + lines + " without slots add up";
  } else if (!key.empty()) {
    text += "; " + lines + " with " + key + " do not add up";
  }
  fail(location.line, location.column, text + "; give each host one entry with all of its slots");
}

Validated<std::vector<Host>> HostList::finish(std::string nothing_found) {
  if (errors_.empty() && hosts_.empty()) fail(0, 0, std::move(nothing_found));
  if (errors_.size() > kMaxDiagnostics) errors_.resize(kMaxDiagnostics);
  if (!errors_.empty()) return DiagnosticList{std::move(errors_)};
  return std::move(hosts_);
}

// Returns the place of a character that editors do not show, or show as a blank; npos: there is none. Blanks
// beyond ASCII are text inside of quotes.
std::size_t find_invisible(std::string_view code) {
  bool in_quotes = false;
  for (std::size_t at = 0; at < code.size();) {
    const Utf8Character character = first_character(code.substr(at));
    if (character.invisible() && (!in_quotes || character.unsafe())) return at;
    if (character.code == '"') in_quotes = !in_quotes;
    at += character.length;
  }
  return std::string_view::npos;
}

std::string stray(std::string_view text) {
  const Utf8Character character = first_character(text);
  return "stray " + character.name() + (character.code < ' ' ? "" : "; delete it, or write a plain blank");
}

// Replaces C's comments, which Open MPI accepts, by blanks; characters keep their columns. A comment begins
// where a word could begin: ssh://gw is none. `in_block`: the line begins, and then ends, inside of /* */.
std::string blank_c_comments(std::string_view line, bool& in_block) {
  std::string text;
  bool in_quotes = false;
  for (std::size_t at = 0; at < line.size();) {
    const std::string_view rest = line.substr(at);
    const bool word_begin = text.empty() || text.back() == ' ' || text.back() == '\t';
    if (in_block) {
      in_block = !rest.starts_with("*/");
      text += in_block ? " " : "  ";
      at += in_block ? first_character(rest).length : 2;
    } else if (!in_quotes && word_begin && rest.starts_with("/*")) {
      in_block = true;
      text += "  ";
      at += 2;
    } else if (!in_quotes && (rest.front() == '#' || (word_begin && rest.starts_with("//")))) {
      break;
    } else {
      const std::size_t length =
          in_quotes && rest.front() == '\\' ? std::min<std::size_t>(rest.size(), 2) : 1;
      if (rest.front() == '"') in_quotes = !in_quotes;
      text += rest.substr(0, length);
      at += length;
    }
  }
  return text;
}

// `comment` is the line with the /* of an open comment; 0: none is open.
void read_line(HostList& list, std::string_view line, int number, int& comment) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  if (line.size() > kMaxLine) {
    list.fail(number, static_cast<int>(kMaxLine) + 1,
              "the line is longer than " + std::to_string(kMaxLine) + " bytes");
    return;
  }
  bool in_block = comment > 0;
  std::string blanked;
  if (in_block || line.find("/*") != std::string_view::npos || line.find("//") != std::string_view::npos) {
    blanked = blank_c_comments(line, in_block);
    comment = !in_block ? 0 : comment > 0 ? comment : number;
    line = blanked;
  }
  // In a comment such a character changes nothing.
  const std::size_t invisible = find_invisible(line.substr(0, comment_start(line)));
  if (invisible != std::string_view::npos) {
    list.fail(number, column_of(line, invisible), stray(line.substr(invisible)));
    return;
  }
  list.add(line, number, 0, line.size());
}

// Returns whether the text behind a comma could continue the value before it: env:A=1,2 and gpus=0,1.
bool takes_comma(std::string_view key, std::string_view next) {
  if (next.empty() || next.front() == ' ' || next.front() == '\t') return false;
  if (key != "gpus") return key == "jump" || key.starts_with("env:");
  const std::string_view word = next.substr(0, next.find_first_of(", \t"));
  return word.find_first_not_of("0123456789-") == std::string_view::npos || word.starts_with("GPU-") ||
         word.starts_with("MIG-");
}

}  // namespace

Validated<std::vector<Host>> parse_hostfile(std::string_view text, const std::string& file) {
  HostList list(file);
  // Editors on Windows write a byte order mark.
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF")) {
    list.fail(1, 1, "this is UTF-16 text; save the file as UTF-8 or plain ASCII");
    text = {};
  }
  int comment = 0;
  int number = 0;
  for (const std::string_view line : split_lines(text))
    if (!list.full()) read_line(list, line, ++number, comment);
  if (comment > 0) list.fail(comment, 0, "the comment that begins here with /* has no */");
  return list.finish("no hosts in this file; write one host a line, for instance: gpu01 slots=8");
}

Validated<std::vector<Host>> parse_host_list(std::string_view text, const std::string& option) {
  HostList list(option);
  std::size_t begin = 0;
  bool in_range = false;
  bool in_quotes = false;
  const std::size_t invisible = find_invisible(text);
  // One step behind the end, where the last entry ends as if a comma followed.
  for (std::size_t i = 0; i <= text.size() && !list.full(); ++i) {
    const char c = i < text.size() ? text[i] : ',';
    const bool end = i == text.size() || (c == ',' && !in_range && !in_quotes);
    if (c == '"') in_quotes = !in_quotes;
    if (c == '[') in_range = true;
    if (c == ']') in_range = false;
    if (i == invisible || c == '#') {
      list.fail(0, column_of(text, i), c == '#' ? "a comment is not allowed here" : stray(text.substr(i)));
      break;
    }
    if (!end) continue;
    const std::string_view entry = text.substr(begin, i - begin);
    if (entry.find_first_not_of(" \t") == std::string_view::npos) {
      list.fail(0, column_of(text, begin), "a host is missing");
    } else {
      const std::string key = list.add(text, 0, begin, entry.size());
      if (takes_comma(key, text.substr(std::min(i + 1, text.size())))) {
        list.fail(0, column_of(text, i),
                  "this comma may belong to the value of " + key + ", or start the next host; write " + key +
                      "=\"…\" with quotes, or a blank after the comma");
      }
    }
    begin = i + 1;
  }
  return list.finish("no hosts given");
}

}  // namespace ddp::remote
