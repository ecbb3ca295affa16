#include "apps/ddplaunch/options/option_files.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "apps/ddplaunch/options/job_options.h"
#include "base/text.h"
#include "remote/hosts/shell_command.h"

namespace ddp {

namespace {

std::string location_text(const std::string& file, const YAML::Mark& mark) {
  if (mark.is_null()) return file + ": ";
  return file + ':' + std::to_string(mark.line + 1) + ':' + std::to_string(mark.column + 1) + ": ";
}

}  // namespace

std::optional<bool> yaml_truth(const YAML::Node& node) {
  if (!node.IsScalar() || node.Tag() == "!") return std::nullopt;
  const std::string text = lower_case(node.Scalar());
  if (text == "true" || text == "yes" || text == "on") return true;
  if (text == "false" || text == "no" || text == "off") return false;
  return std::nullopt;
}

std::string yaml_location(const std::string& file, const YAML::Node& node) {
  return location_text(file, node.Mark());
}

void refuse_duplicate_keys(const std::string& file, const YAML::Node& map, Diagnostics& diagnostics) {
  std::map<std::string, int> lines;
  for (const auto& entry : map) {
    if (!entry.first.IsScalar()) continue;
    const int line = entry.first.Mark().line + 1;
    const auto [first, is_new] = lines.emplace(entry.first.Scalar(), line);
    if (!is_new) {
      diagnostics.fail(yaml_location(file, entry.first) + first->first + " is given twice (first on line " +
                       std::to_string(first->second) + ')');
    }
  }
}

std::optional<YAML::Node> read_yaml(const std::string& text, const std::string& file, const std::string& only,
                                    Diagnostics& diagnostics) {
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(text);
    for (std::size_t i = 1; i < documents.size(); ++i) {
      if (documents[i].IsNull()) continue;
      diagnostics.fail(yaml_location(file, documents[i]) + "a second document begins here (after ---); " +
                       only);
      break;
    }
    return documents.empty() ? YAML::Node() : documents.front();
  } catch (const YAML::Exception& error) {
    diagnostics.fail(location_text(file, error.mark) + "it cannot be read as YAML: " + error.msg);
    return std::nullopt;
  }
}

namespace {

constexpr char kWorker[] = "worker";

class OptionFileReader {
 public:
  OptionFileReader(const std::string& path, OptionFileKind kind, Diagnostics& diagnostics)
      : path_(path), kind_(kind), diagnostics_(diagnostics), checked_("/") {
    for (const OptionGroup& group : checked_.table.groups()) {
      for (const Option& option : group.options)
        known_.push_back({&option, name_in_file(option), belongs_in_file(option, group.title, kind)});
    }
  }

  OptionFile read(const YAML::Node& root);

 private:
  struct ListedOption {
    const Option* option;
    std::string name;  ///< as in the file: "nnodes"
    bool allowed;
  };

  void fail(const YAML::Node& node, const std::string& text) {
    diagnostics_.fail(yaml_location(path_, node) + text);
  }
  std::string origin(const YAML::Node& node) const {
    const std::string location = yaml_location(path_, node);
    return location.substr(0, location.size() - 2);
  }
  bool is_text(const YAML::Node& node, const std::string& name, const char* expected);
  void read_entry(const YAML::Node& key, const YAML::Node& value);
  void read_option(const ListedOption& known, const YAML::Node& value);
  void read_flag(const ListedOption& known, const YAML::Node& value);
  void add(const ListedOption& known, const YAML::Node& place, std::string value);
  void read_worker(const YAML::Node& value);
  void refuse_unknown(const YAML::Node& key, const std::string& name);

  const std::string& path_;
  OptionFileKind kind_;
  Diagnostics& diagnostics_;
  JobOptions checked_;  ///< reads each value, to find errors; nothing else uses its fields
  std::vector<ListedOption> known_;
  OptionFile file_;
};

bool OptionFileReader::is_text(const YAML::Node& node, const std::string& name, const char* expected) {
  if (!node.IsScalar() || node.IsNull()) return fail(node, name + " needs " + expected), false;
  if (node.Scalar().find('\0') == std::string::npos) return true;
  return fail(node, "a value cannot hold a zero byte"), false;
}

void OptionFileReader::add(const ListedOption& known, const YAML::Node& place, std::string value) {
  const std::string name = "--" + known.name;
  const std::string error = value.empty() && !known.option->takes_empty
                                ? name + " has an empty value"
                                : checked_.table.read_value(name, value);
  if (!error.empty()) return fail(place, error);
  file_.options.push_back(
      {.name = name, .value = std::move(value), .origin = origin(place), .in_file = true});
}

void OptionFileReader::read_flag(const ListedOption& known, const YAML::Node& value) {
  const std::optional<bool> truth = yaml_truth(value);
  if (!truth) return fail(value, known.name + " must be true or false");
  file_.options.push_back({.name = "--" + known.name,
                           .value = "",
                           .origin = origin(value),
                           .in_file = true,
                           .is_false = !*truth});
}

void OptionFileReader::read_option(const ListedOption& known, const YAML::Node& value) {
  if (!known.option->takes_value()) return read_flag(known, value);
  const std::string expected = "a value: " + known.option->value;
  if (known.option->repeats && value.IsSequence()) {
    for (const YAML::Node& item : value) {
      if (is_text(item, known.name, expected.c_str())) add(known, item, item.Scalar());
    }
  } else if (known.name == "env" && value.IsMap()) {
    refuse_duplicate_keys(path_, value, diagnostics_);
    for (const auto& variable : value) {
      if (!is_text(variable.first, known.name, "names of variables")) continue;
      const std::string name = variable.first.Scalar();
      if (name.empty() || name.find('=') != std::string::npos) {
        fail(variable.first, "env: \"" + name + "\" is no name of a variable");
      } else if (variable.second.IsNull()) {
        fail(variable.first, "env " + name + " has no value; an empty one is ''");
      } else if (is_text(variable.second, "env " + name, "one value")) {
        add(known, variable.first, name + '=' + variable.second.Scalar());
      }
    }
  } else if (is_text(value, known.name, expected.c_str())) {
    add(known, value, value.Scalar());
  }
}

void OptionFileReader::read_worker(const YAML::Node& value) {
  constexpr char kExpected[] = "the words of a command line: [train.py, --lr, 0.1]";
  file_.worker_origin = origin(value);
  if (value.IsSequence() && value.size() > 0) {
    for (const YAML::Node& word : value) {
      if (is_text(word, kWorker, kExpected)) file_.worker.push_back(word.Scalar());
    }
    return;
  }
  if (!is_text(value, kWorker, kExpected)) return;
  auto words = remote::split_words(value.Scalar());
  if (!words) return fail(value, std::string("worker: ") + words.error().text);
  if (words->empty()) return fail(value, std::string("worker needs ") + kExpected);
  file_.worker = std::move(*words);
}

void OptionFileReader::refuse_unknown(const YAML::Node& key, const std::string& name) {
  std::vector<std::string_view> names;
  for (const ListedOption& known : known_) {
    if (known.allowed) names.push_back(known.name);
  }
  if (kind_ == OptionFileKind::kJob) names.emplace_back(kWorker);
  const std::string_view meant =
      nearest_word(name.substr(std::min(name.find_first_not_of('-'), name.size())), names);
  fail(key, "unknown option \"" + name + '"' +
                (meant.empty() ? "; ddplaunch --help all lists all options"
                               : "; did you mean " + std::string(meant) + '?'));
}

void OptionFileReader::read_entry(const YAML::Node& key, const YAML::Node& value) {
  const std::string name = key.IsScalar() ? key.Scalar() : "";
  // The parser's place of a missing value is behind the line.
  const auto fail_empty = [&] { fail(key, name + " has no value"); };
  if (name == kWorker && kind_ == OptionFileKind::kJob)
    return value.IsNull() ? fail_empty() : read_worker(value);
  for (const ListedOption& known : known_) {
    if (known.name != name) continue;
    if (known.allowed) return value.IsNull() ? fail_empty() : read_option(known, value);
    return fail(key, name + (kind_ == OptionFileKind::kJob
                                 ? " cannot be given in a file; give --" + name + " on the command line"
                                 : " is an option of one job; give it on the command line or in a job file"));
  }
  refuse_unknown(key, name);
}

OptionFile OptionFileReader::read(const YAML::Node& root) {
  if (root.IsNull()) return {};
  if (!root.IsMap()) {
    fail(root, "expected lines of OPTION: VALUE, such as nproc-per-node: 8");
    return {};
  }
  refuse_duplicate_keys(path_, root, diagnostics_);
  for (const auto& entry : root)
    read_entry(entry.first, entry.second);
  return std::move(file_);
}

}  // namespace

std::string name_in_file(const Option& option) {
  return split_names(option.names).back().substr(2);
}

bool belongs_in_file(const Option& option, std::string_view group, OptionFileKind kind) {
  const std::string_view names = option.names;
  if (kind == OptionFileKind::kSettings) {
    const bool of_one_node = names == "--node-rank" || names == "--master-addr" || names == "--rdzv-endpoint";
    return group != "Hosts" && group != "Job" && !of_one_node;
  }
  return !names.ends_with("--help") && !names.ends_with("--version") && names != "--job-file";
}

OptionFile read_option_file(const std::string& text, const std::string& file, OptionFileKind kind,
                            Diagnostics& diagnostics) {
  const auto root = read_yaml(
      text, file, kind == OptionFileKind::kJob ? "a job file has only one" : "settings have only one",
      diagnostics);
  if (!root) return {};
  return OptionFileReader(file, kind, diagnostics).read(*root);
}

}  // namespace ddp
