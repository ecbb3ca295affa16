#include "apps/ddplaunch/options/yaml_document.h"

#include <cstddef>
#include <map>
#include <vector>

#include "base/parse_text.h"

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

}  // namespace ddp
