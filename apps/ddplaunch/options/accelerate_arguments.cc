#include <algorithm>
#include <array>

#include "apps/ddplaunch/options/accelerate_config.h"

namespace ddp {
namespace {

// One option of a group replaces the others.
constexpr std::array<std::array<std::string_view, 3>, 2> kGroups = {
    {{"--hostfile", "--host", "--hosts-from"}, {"--include", "--exclude", ""}}};

}  // namespace

std::vector<std::string> accelerate_arguments(const AccelerateConfig& config,
                                              const std::vector<std::string>& given) {
  const auto is_given = [&](std::string_view name) {
    return std::find(given.begin(), given.end(), name) != given.end();
  };
  std::vector<std::string> words;
  for (const std::string& word : config.words) {
    const std::string_view name = std::string_view(word).substr(0, word.find('='));
    bool replaced = is_given(name);
    for (const auto& group : kGroups) {
      if (std::find(group.begin(), group.end(), name) != group.end())
        replaced = replaced || std::any_of(group.begin(), group.end(), is_given);
    }
    if (!replaced) words.push_back(word);
  }
  return words;
}

}  // namespace ddp
