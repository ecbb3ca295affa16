#include "apps/ddplaunch/options/option_sources.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <utility>

#include "base/format_text.h"
#include "base/safe_text.h"

namespace ddp {
namespace {

/// Options of one line cannot be used together.
constexpr std::array<std::array<std::string_view, 3>, 4> kAlternatives = {
    {{"--hostfile", "--host", "--hosts-from"},
     {"--include", "--exclude", ""},
     {"--nproc-per-node", "--ntasks", "-n"},
     {"--master-addr", "--rdzv-endpoint", ""}}};

const std::array<std::string_view, 3>* alternatives_of(std::string_view name) {
  for (const auto& names : kAlternatives) {
    if (std::find(names.begin(), names.end(), name) != names.end()) return &names;
  }
  return nullptr;
}

bool replaces(const GivenOption& stronger, const GivenOption& weaker, const OptionTable& table) {
  const auto* alternatives = alternatives_of(weaker.name);
  if (alternatives != nullptr && alternatives == alternatives_of(stronger.name)) return true;
  const Option* option = table.find(weaker.name);
  return option == table.find(stronger.name) && !option->repeats;
}

/// The value as --dry-run shows it.
std::string shown_value(const GivenOption& option) {
  if (option.name == "--setup") return "...";
  if (option.name == "--env") return option.value.substr(0, option.value.find('='));
  return option.value.empty() ? "''" : one_line(option.value);
}

}  // namespace

OptionSource option_source(const std::vector<std::string>& words, const OptionTable& table,
                           const std::string& origin) {
  OptionSource options;
  for (std::size_t i = 0; i < words.size(); ++i) {
    GivenOption& option = options.emplace_back(GivenOption{.name = words[i], .value = "", .origin = origin});
    if (table.takes_value(option.name)) option.value = words.at(++i);
  }
  return options;
}

OptionSource choose_options(const std::vector<OptionSource>& sources, const OptionTable& table) {
  OptionSource chosen;
  for (const OptionSource& source : sources) {
    OptionSource kept;
    std::copy_if(source.begin(), source.end(), std::back_inserter(kept), [&](const GivenOption& option) {
      return std::none_of(chosen.begin(), chosen.end(),
                          [&](const GivenOption& stronger) { return replaces(stronger, option, table); });
    });
    chosen.insert(chosen.begin(), kept.begin(), kept.end());
  }
  std::erase_if(chosen, [](const GivenOption& option) { return option.is_false; });
  return chosen;
}

std::vector<std::string> option_words(const OptionSource& options, const OptionTable& table) {
  std::vector<std::string> words;
  for (const GivenOption& option : options) {
    words.push_back(option.name);
    if (table.takes_value(option.name)) words.push_back(option.value);
  }
  return words;
}

std::string last_value(const OptionSource& options, std::string_view name) {
  const auto found = std::find_if(options.rbegin(), options.rend(),
                                  [&](const GivenOption& option) { return option.name == name; });
  return found == options.rend() ? std::string() : found->value;
}

std::string origins_text(const OptionSource& options, const OptionTable& table, const std::string& worker) {
  TextTable rows;
  for (const GivenOption& option : options) {
    if (option.name == "--dry-run") continue;
    const std::string value = table.takes_value(option.name) ? ' ' + shown_value(option) : "";
    rows.add({"  " + option.name + value, option.origin});
  }
  if (!worker.empty()) rows.add({"  worker", worker});
  if (rows.empty()) return "\nall options have their defaults\n";
  return "\noptions, and where they are given\n" + rows.text() + "all others have their defaults\n";
}

}  // namespace ddp
