#include "apps/ddplaunch/options/command_line.h"

#include <cstddef>
#include <string_view>

#include "apps/ddplaunch/options/compatibility_options.h"
#include "apps/options/option_scanner.h"
#include "base/parse_text.h"

namespace ddp {

namespace {

/// Also reads the options of other launchers.
class CommandLineScanner : public OptionScanner {
 public:
  CommandLineScanner(const std::vector<std::string>& args, const OptionTable& table, Diagnostics& diagnostics)
      : OptionScanner("ddplaunch", args, table), diagnostics_(diagnostics) {}

 protected:
  bool is_other(std::string_view name) const override { return find_compatibility_option(name) != nullptr; }
  bool other_takes_value(std::string_view name) const override {
    return find_compatibility_option(name)->takes_value;
  }
  bool read_other(WrittenOption& written) override;
  void add_names(std::vector<std::string_view>& names) const override;
  std::string unknown_hint() const override { return "; the worker's options follow the worker"; }

 private:
  void read_row(const CompatibilityOption& row, WrittenOption& written);

  Diagnostics& diagnostics_;
};

bool CommandLineScanner::read_other(WrittenOption& written) {
  const CompatibilityOption* row = find_compatibility_option(written.name);
  if (row != nullptr) read_row(*row, written);
  return row != nullptr;
}

void CommandLineScanner::read_row(const CompatibilityOption& row, WrittenOption& written) {
  if (row.takes_value && !take_value(written)) return;
  if (!row.takes_value && written.value && row.status != SupportStatus::kRefused)
    return fail(written.text + " takes no value");
  const std::string reason = row.text.empty() ? std::string() : ": " + std::string(row.text);
  switch (row.status) {
    case SupportStatus::kLater:
      if (!row.value.empty() && *written.value == row.value) return;  // as it is done anyway
      return fail(
          written.text + " is not in this release yet" +
          (row.value.empty() ? "" : " (only " + written.text + " " + std::string(row.value) + " is)") +
          reason);
    case SupportStatus::kRenamed:
      if (row.takes_value && written.value->empty() && !table_.find(row.text)->takes_empty)
        return fail(written.text + " has an empty value");
      given_.insert(given_.end(), {std::string(row.name), std::string(row.text)});
      words_.emplace_back(row.text);
      words_.push_back(row.takes_value ? *written.value : std::string(row.value));
      return;
    case SupportStatus::kNoted:
      return diagnostics_.note(written.text + " has no effect" + reason);
    case SupportStatus::kRefused:
      if (row.takes_value && !row.value.empty() &&
          lower_case(*written.value) == row.value.substr(0, row.value.find(' '))) {
        if (const std::size_t blank = row.value.find(' '); blank != std::string_view::npos)
          words_.insert(words_.end(), {"--env", std::string(row.value.substr(blank + 1))});
        return;
      }
      return fail(written.text + " is not an option of ddplaunch" + reason);
  }
}

void CommandLineScanner::add_names(std::vector<std::string_view>& names) const {
  for (const CompatibilityOption& row : compatibility_options()) {
    if (row.status != SupportStatus::kRefused) names.push_back(row.name);
  }
}

}  // namespace

CommandLine scan_command_line(const std::vector<std::string>& args, const OptionTable& table,
                              Diagnostics& diagnostics) {
  CommandLineScanner scanner(args, table, diagnostics);
  CommandLine line;
  line.scanned_all = scanner.scan();
  if (line.scanned_all) {
    line.separated = scanner.next() < args.size() && args[scanner.next()] == "--";
    if (line.separated) scanner.skip();
    line.worker.assign(args.begin() + static_cast<std::ptrdiff_t>(scanner.next()), args.end());
  }
  line.read_all = scanner.errors().empty();
  line.words = scanner.words();
  line.off = scanner.switched_off();
  line.given = scanner.given();
  for (const std::string& error : scanner.errors())
    diagnostics.fail(error);
  return line;
}

}  // namespace ddp
