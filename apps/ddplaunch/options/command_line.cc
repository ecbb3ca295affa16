#include "apps/ddplaunch/options/command_line.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>

#include "apps/ddplaunch/options/compatibility_options.h"
#include "remote/hosts/diagnostic.h"

namespace ddp {

namespace {

/// One option as written: its name with dashes only, and the text behind '='.
struct WrittenOption {
  std::string text;  ///< the name as the user wrote it
  std::string name;
  std::optional<std::string> value;
};

WrittenOption take_apart(const std::string& word) {
  WrittenOption written;
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

bool happens_anyway(const CompatibilityOption& row, std::string_view value) {
  return value == row.value || (row.value == "127.0.0.1" && (value == "localhost" || value == "::1"));
}

class Scanner {
 public:
  Scanner(const std::vector<std::string>& args, const OptionTable& table, Diagnostics& diagnostics)
      : args_(args), table_(table), diagnostics_(diagnostics) {}

  CommandLine scan();
  const std::vector<std::string>& words() const { return words_; }
  std::vector<std::string> given() const { return given_; }

 private:
  bool read_option(const std::string& word);
  void read_ours(WrittenOption written);
  void read_compatibility_option(const CompatibilityOption& row, WrittenOption written);
  bool read_unknown(const WrittenOption& written);
  bool take_value(WrittenOption& written, const std::string& value_name);
  bool is_option(const std::string& word) const;
  std::string_view suggestion(const WrittenOption& written) const;

  const std::vector<std::string>& args_;
  const OptionTable& table_;
  Diagnostics& diagnostics_;
  std::size_t next_ = 0;
  std::vector<std::string> words_;  ///< input of OptionTable::fill
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

// Returns false if the words behind the option are ambiguous.
bool Scanner::read_option(const std::string& word) {
  WrittenOption written = take_apart(word);
  given_.push_back(written.name);
  if (table_.knows(written.name)) {
    read_ours(std::move(written));
    return true;
  }
  if (const CompatibilityOption* row = find_compatibility_option(written.name)) {
    read_compatibility_option(*row, std::move(written));
    return true;
  }
  return read_unknown(written);
}

bool Scanner::is_option(const std::string& word) const {
  if (word == "--") return true;
  const std::string name = take_apart(word).name;
  return word.size() > 1 && word.front() == '-' &&
         (table_.knows(name) || find_compatibility_option(name) != nullptr);
}

// If an option stands where a value is expected, the value was forgotten. Any value behind '=' is intended.
bool Scanner::take_value(WrittenOption& written, const std::string& value_name) {
  if (written.value) return true;
  if (next_ < args_.size() && !is_option(args_[next_])) {
    written.value = args_[next_++];
    return true;
  }
  diagnostics_.fail(written.text + " needs a value" +
                    (value_name.empty() ? "" : ": " + written.text + " " + value_name));
  return false;
}

void Scanner::read_ours(WrittenOption written) {
  if (!table_.takes_value(written.name)) {
    if (written.value) return diagnostics_.fail(written.text + " takes no value");
    words_.push_back(written.name);
    return;
  }
  if (!take_value(written, table_.value_name(written.name))) return;
  if (written.value->empty() && written.name != "--label")
    return diagnostics_.fail(written.text + " has an empty value");
  words_.push_back(written.name);
  words_.push_back(std::move(*written.value));
}

void Scanner::read_compatibility_option(const CompatibilityOption& row, WrittenOption written) {
  if (row.takes_value && !take_value(written, "")) return;
  if (!row.takes_value && written.value && row.status != SupportStatus::kRefused)
    return diagnostics_.fail(written.text + " takes no value");
  const std::string reason = row.text.empty() ? std::string() : ": " + std::string(row.text);
  switch (row.status) {
    case SupportStatus::kLater:
      if (!row.value.empty() && happens_anyway(row, *written.value)) return;
      return diagnostics_.fail(
          written.text + " is not in this release yet" +
          (row.value.empty() ? "" : " (only " + written.text + " " + std::string(row.value) + " is)") +
          reason);
    case SupportStatus::kRenamed:
      given_.emplace_back(row.text);
      words_.emplace_back(row.text);
      words_.push_back(row.takes_value ? *written.value : std::string(row.value));
      return;
    case SupportStatus::kNoted:
      return diagnostics_.note(written.text + " has no effect" + reason);
    case SupportStatus::kRefused:
      return diagnostics_.fail(written.text + " is not an option of ddplaunch" + reason);
  }
}

std::string_view Scanner::suggestion(const WrittenOption& written) const {
  std::vector<std::string_view> bare;
  std::vector<std::string_view> names;
  auto offer = [&](std::string_view name) {
    if (!name.starts_with("--")) return;
    names.push_back(name);
    bare.push_back(without_dashes(name));
  };
  for (const std::string_view name : table_.names())
    offer(name);
  for (const CompatibilityOption& row : compatibility_options()) {
    if (row.status != SupportStatus::kRefused) offer(row.name);
  }
  const std::string_view word = without_dashes(written.name);
  if (word.size() < 3) return {};
  const std::string_view near = remote::nearest_word(word, bare);
  const auto found = std::find(bare.begin(), bare.end(), near);
  return found == bare.end() ? std::string_view() : names[static_cast<std::size_t>(found - bare.begin())];
}

bool Scanner::read_unknown(const WrittenOption& written) {
  const std::string_view meant = suggestion(written);
  if (meant.empty()) {
    diagnostics_.fail("unknown option " + written.text +
                      "; ddplaunch --help lists all options; the worker's options follow the worker");
    return written.value.has_value();
  }
  diagnostics_.fail("unknown option " + written.text + "; did you mean " + std::string(meant) + "?");
  const CompatibilityOption* row = find_compatibility_option(meant);
  const bool takes = row != nullptr ? row->takes_value : table_.takes_value(meant);
  if (takes && !written.value && next_ < args_.size() && !is_option(args_[next_])) ++next_;
  return true;
}

}  // namespace

CommandLine read_command_line(const std::vector<std::string>& args, OptionTable& table,
                              Diagnostics& diagnostics) {
  Scanner scanner(args, table, diagnostics);
  CommandLine line = scanner.scan();
  line.values = table.fill(scanner.words());
  line.given = scanner.given();
  return line;
}

}  // namespace ddp
