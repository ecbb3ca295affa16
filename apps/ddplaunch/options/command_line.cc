#include "apps/ddplaunch/options/command_line.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>

#include "apps/ddplaunch/options/foreign_options.h"
#include "remote/hosts/mistake.h"

namespace ddp {

namespace {

/// One option as written: its name with dashes only, and what stands behind '='.
struct Written {
  std::string text;  ///< the name as the user wrote it
  std::string name;
  std::optional<std::string> value;
};

Written take_apart(const std::string& word) {
  Written written;
  const std::size_t equals = word.starts_with("--") ? word.find('=') : std::string::npos;
  written.text = word.substr(0, equals);
  written.name = written.text;
  if (word.starts_with("--")) std::replace(written.name.begin(), written.name.end(), '_', '-');
  if (equals != std::string::npos) written.value = word.substr(equals + 1);
  return written;
}

std::string_view without_dashes(std::string_view name) {
  return name.substr(std::min(name.find_first_not_of('-'), name.size()));
}

bool happens_anyway(const ForeignOption& row, std::string_view value) {
  return value == row.value || (row.value == "127.0.0.1" && (value == "localhost" || value == "::1"));
}

class Scanner {
 public:
  Scanner(const std::vector<std::string>& args, const OptionTable& table, Findings& findings)
      : args_(args), table_(table), findings_(findings) {}

  CommandLine scan();
  const std::vector<std::string>& words() const { return words_; }
  std::vector<std::string> given() const { return given_; }

 private:
  bool read_option(const std::string& word);
  void read_ours(Written written);
  void read_foreign(const ForeignOption& row, Written written);
  bool read_unknown(const Written& written);
  bool take_value(Written& written, const std::string& value_name);
  bool is_option(const std::string& word) const;
  std::string_view suggestion(const Written& written) const;

  const std::vector<std::string>& args_;
  const OptionTable& table_;
  Findings& findings_;
  std::size_t next_ = 0;
  std::vector<std::string> words_;  ///< what OptionTable::fill gets
  std::vector<std::string> given_;
};

CommandLine Scanner::scan() {
  CommandLine line;
  while (next_ < args_.size()) {
    const std::string& word = args_[next_];
    const bool ends = word == "--";
    if (ends || word.size() < 2 || word.front() != '-') {
      const auto begin = args_.begin() + static_cast<std::ptrdiff_t>(next_ + (ends ? 1 : 0));
      line.worker.assign(begin, args_.end());
      line.worker_found = !line.worker.empty();
      return line;
    }
    ++next_;
    if (!read_option(word)) {
      line.scanned_all = false;
      return line;
    }
  }
  return line;
}

// False when what follows cannot be told apart any more.
bool Scanner::read_option(const std::string& word) {
  Written written = take_apart(word);
  given_.push_back(written.name);
  if (table_.knows(written.name)) {
    read_ours(std::move(written));
    return true;
  }
  if (const ForeignOption* row = find_foreign(written.name)) {
    read_foreign(*row, std::move(written));
    return true;
  }
  return read_unknown(written);
}

bool Scanner::is_option(const std::string& word) const {
  if (word == "--") return true;
  const std::string name = take_apart(word).name;
  return word.size() > 1 && word.front() == '-' && (table_.knows(name) || find_foreign(name) != nullptr);
}

// An option where a value should be is a value that was forgotten; with '=' it is meant.
bool Scanner::take_value(Written& written, const std::string& value_name) {
  if (written.value) return true;
  if (next_ < args_.size() && !is_option(args_[next_])) {
    written.value = args_[next_++];
    return true;
  }
  findings_.fail(written.text + " needs a value" +
                 (value_name.empty() ? "" : ": " + written.text + " " + value_name));
  return false;
}

void Scanner::read_ours(Written written) {
  if (!table_.takes_value(written.name)) {
    if (written.value) return findings_.fail(written.text + " takes no value");
    words_.push_back(written.name);
    return;
  }
  if (!take_value(written, table_.value_name(written.name))) return;
  if (written.value->empty() && written.name != "--label")
    return findings_.fail(written.text + " has an empty value");
  words_.push_back(written.name);
  words_.push_back(std::move(*written.value));
}

void Scanner::read_foreign(const ForeignOption& row, Written written) {
  if (row.takes_value && !take_value(written, "")) return;
  if (!row.takes_value && written.value && row.standing != Standing::kRefused)
    return findings_.fail(written.text + " takes no value");
  const std::string reason = row.text.empty() ? std::string() : ": " + std::string(row.text);
  switch (row.standing) {
    case Standing::kLater:
      if (!row.value.empty() && happens_anyway(row, *written.value)) return;
      return findings_.fail(
          written.text + " is not in this release yet" +
          (row.value.empty() ? "" : " (only " + written.text + " " + std::string(row.value) + " is)") +
          reason);
    case Standing::kRenamed:
      given_.emplace_back(row.text);
      words_.emplace_back(row.text);
      words_.push_back(row.takes_value ? *written.value : std::string(row.value));
      return;
    case Standing::kNoted:
      return findings_.note(written.text + " has no effect" + reason);
    case Standing::kRefused:
      return findings_.fail(written.text + " is not an option of ddplaunch" + reason);
  }
}

std::string_view Scanner::suggestion(const Written& written) const {
  std::vector<std::string_view> bare;
  std::vector<std::string_view> names;
  auto offer = [&](std::string_view name) {
    if (!name.starts_with("--")) return;
    names.push_back(name);
    bare.push_back(without_dashes(name));
  };
  for (const std::string_view name : table_.names())
    offer(name);
  for (const ForeignOption& row : foreign_options()) {
    if (row.standing != Standing::kRefused) offer(row.name);
  }
  const std::string_view word = without_dashes(written.name);
  if (word.size() < 3) return {};
  const std::string_view near = remote::nearest_word(word, bare);
  const auto found = std::find(bare.begin(), bare.end(), near);
  return found == bare.end() ? std::string_view() : names[static_cast<std::size_t>(found - bare.begin())];
}

bool Scanner::read_unknown(const Written& written) {
  const std::string_view meant = suggestion(written);
  if (meant.empty()) {
    findings_.fail("unknown option " + written.text +
                   "; ddplaunch --help lists all, options of the worker stand behind it");
    return written.value.has_value();
  }
  findings_.fail("unknown option " + written.text + "; did you mean " + std::string(meant) + "?");
  const ForeignOption* row = find_foreign(meant);
  const bool takes = row != nullptr ? row->takes_value : table_.takes_value(meant);
  if (takes && !written.value && next_ < args_.size() && !is_option(args_[next_])) ++next_;
  return true;
}

}  // namespace

CommandLine read_command_line(const std::vector<std::string>& args, OptionTable& table, Findings& findings) {
  Scanner scanner(args, table, findings);
  CommandLine line = scanner.scan();
  line.values = table.fill(scanner.words());
  line.given = scanner.given();
  return line;
}

}  // namespace ddp
