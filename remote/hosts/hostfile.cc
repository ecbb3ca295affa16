#include "remote/hosts/hostfile.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/parse_text.h"
#include "base/safe_text.h"
#include "remote/hosts/host_entry.h"
#include "remote/hosts/host_range.h"
#include "remote/hosts/host_spec.h"

namespace ddp::remote {

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
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF")) {
    list.fail(1, 1, "this is UTF-16 text; save the file as UTF-8 or plain ASCII");
    text = {};
  }
  int comment = 0;
  for (int number = 1; !text.empty() && !list.full(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    read_line(list, text.substr(0, end), number, comment);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  if (comment > 0) list.fail(comment, 0, "the comment that begins here with /* has no */");
  return list.finish("no hosts in this file; write one host a line, for instance: gpu01 slots=8");
}

Validated<std::vector<Host>> parse_host_list(std::string_view text, const std::string& option) {
  HostList list(option);
  std::size_t begin = 0;
  bool in_range = false;
  bool in_quotes = false;
  const std::size_t invisible = find_invisible(text);
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
