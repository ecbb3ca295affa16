#include "apps/train/options/equal_options.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "apps/train/collectives/communicator.h"

namespace ddp::train {

namespace {

/// Nodes may have a file or directory in different places.
std::string equal_text(const Option& option, const std::string& text) {
  const bool is_path = option.completion == Completion::kFile || option.completion == Completion::kDirectory;
  if (text.empty()) return "not given";
  return is_path && text != "auto" ? "a path" : text;
}

}  // namespace

const char* comm_text(CommKind comm) {
  for (const auto& [word, kind] : comm_words())
    if (kind == comm) return word.c_str();
  return "?";
}

const char* device_text(DeviceKind device) {
  for (const auto& [word, kind] : device_words())
    if (kind == device) return word.c_str();
  return "?";
}

EqualOptions equal_options(const OptionTable& table) {
  EqualOptions list;
  for (const OptionGroup& group : table.groups()) {
    for (const Option& option : group.options)
      if (option.equal)
        list.push_back({split_names(option.names).front(), equal_text(option, table.text(option))});
  }
  return list;
}

EqualOptions equal_options(TrainOptions options, const DataSplit& data) {
  OptionTable table("");
  declare_options(table, options);
  EqualOptions list = equal_options(table);
  list.push_back({"the number of training images", std::to_string(data.training.size())});
  list.push_back({"the number of test images", std::to_string(data.test.size())});
  return list;
}

std::string take_line(std::string_view& text) {
  const std::size_t end = std::min(text.find('\n'), text.size());
  std::string line(text.substr(0, end));
  text.remove_prefix(std::min(end + 1, text.size()));
  return line;
}

std::string to_text(const EqualOptions& options) {
  std::string text;
  for (const EqualOption& option : options)
    text += option.name + '\n' + option.value + '\n';
  return text;
}

std::string difference(const EqualOptions& mine, int rank, std::string_view text_of_other, int other) {
  const std::string of_other = "rank " + std::to_string(other);
  for (const EqualOption& option : mine) {
    const std::string name = take_line(text_of_other);
    const std::string value = take_line(text_of_other);
    if (name != option.name) {
      return "rank " + std::to_string(rank) + " has other options than " + of_other +
             "; check that both run the same version of train";
    }
    if (value != option.value) {
      return name + " is " + option.value + " on rank " + std::to_string(rank) + " and " + value + " on " +
             of_other + "; give all ranks the same value";
    }
  }
  return "";
}

Result<> check_equal(Communicator& world, const EqualOptions& mine, std::optional<int> from) {
  const int other = from.value_or(0);
  std::string text = to_text(mine);
  std::uint64_t size = text.size();
  if (auto done = world.broadcast(std::as_writable_bytes(std::span(&size, 1)), other); !done) return done;
  text.resize(size);
  if (auto done = world.broadcast(std::as_writable_bytes(std::span(text)), other); !done) return done;
  const std::string differs = difference(mine, world.rank(), text, other);
  const auto own = differs.empty() ? Result<>() : Error{ErrorCode::kUsage, differs};
  return from ? own : share_first_failure(world, own);
}

}  // namespace ddp::train
