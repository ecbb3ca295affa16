// Prints the options of all commands as JSON, for option_pages.py.
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/ddplaunch/operate/operate_options.h"
#include "apps/ddplaunch/options/option_sources.h"
#include "apps/ddplaunch/options/options.h"
#include "apps/ddplaunchd/daemon_options.h"
#include "apps/options/option_table.h"
#include "apps/train/bench/bench.h"
#include "apps/train/health/health.h"
#include "apps/train/options/options.h"
#include "base/text.h"

namespace {

using Json = nlohmann::ordered_json;

const char* completion_text(ddp::Completion completion) {
  switch (completion) {
    case ddp::Completion::kNothing: return "nothing";
    case ddp::Completion::kFile: return "file";
    case ddp::Completion::kDirectory: return "directory";
    case ddp::Completion::kHostfile: return "hostfile";
    case ddp::Completion::kHost: return "host";
    case ddp::Completion::kJobId: return "job_id";
    case ddp::Completion::kRank: return "rank";
    case ddp::Completion::kProgram: return "program";
  }
  return "nothing";
}

/// Returns {name: option of ddplaunch, or "" for none} of the options of other launchers that take a value
/// and are accepted.
Json other_names() {
  Json names = Json::object();
  for (const ddp::OptionGroup& group : ddp::ddplaunch_option_groups()) {
    for (const ddp::Option& option : group.options) {
      for (const std::string& name : ddp::split_names(option.other_names))
        names[name] = ddp::split_names(option.names).back();
    }
  }
  for (const ddp::CompatibilityOption& row : ddp::compatibility_options()) {
    const bool is_accepted = row.status != ddp::SupportStatus::kRefused || !row.value.empty();
    if (row.takes_value && is_accepted) names[std::string(row.name)] = "";
  }
  return names;
}

Json option_json(const ddp::Option& option) {
  const std::string rules = option.rules_text();
  return {{"names", ddp::split_names(option.names)},
          {"value", option.value},
          {"default", option.default_text},
          {"help", option.help},
          {"only_with", option.needs()},
          {"details", option.details + (option.details.empty() || rules.empty() ? "" : " ") + rules},
          {"words", option.words},
          {"completion", completion_text(option.completion)},
          {"repeats", option.repeats}};
}

Json command_json(const std::vector<ddp::OptionGroup>& groups) {
  Json list = Json::array();
  for (const ddp::OptionGroup& group : groups) {
    Json options = Json::array();
    for (const ddp::Option& option : group.options)
      options.push_back(option_json(option));
    list.push_back({{"title", group.title}, {"intro", group.intro}, {"options", options}});
  }
  return list;
}

/// Returns the names of the options that a file of this kind may have, as the file has them.
Json file_names(ddp::OptionFileKind kind) {
  Json names = Json::array();
  for (const ddp::OptionGroup& group : ddp::ddplaunch_option_groups()) {
    for (const ddp::Option& option : group.options) {
      if (belongs_in_file(option, kind)) names.push_back(ddp::name_in_file(option));
    }
  }
  return names;
}

Json verb_list() {
  Json list = Json::array();
  for (const ddp::VerbRow& verb : ddp::verbs())
    list.push_back(
        {{"name", verb.name}, {"arguments", verb.arguments}, {"help", verb.help}, {"text", verb.text()}});
  return list;
}

}  // namespace

int main() {
  Json commands = {{"ddplaunch", command_json(ddp::ddplaunch_option_groups())}};
  for (const auto& [name, groups] : ddp::operate_option_groups())
    commands[name] = command_json(groups);
  commands["ddplaunchd"] = command_json(ddp::daemon_option_groups());
  commands["train"] = command_json(ddp::train::train_option_groups());
  commands["train bench"] = command_json(ddp::train::bench_option_groups());
  commands["train health"] = command_json(ddp::train::health_option_groups());
  const Json printed = {{"commands", commands},
                        {"verbs", verb_list()},
                        {"other_names", other_names()},
                        {"job_file", file_names(ddp::OptionFileKind::kJob)},
                        {"settings", file_names(ddp::OptionFileKind::kSettings)}};
  std::printf("%s\n", printed.dump(1).c_str());
}
