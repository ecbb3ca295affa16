#include "apps/train/training/equal_data.h"

#include <algorithm>
#include <array>
#include <string>

#include "apps/train/data/hash.h"
#include "base/format_text.h"
#include "base/host_name.h"

namespace ddp::train {

namespace {

/// Returns the hosts by rank, cut to kHostFields.
Result<std::vector<std::string>> gather_hosts(Communicator& world) {
  constexpr std::size_t kHostFields = 9;  // 64 letters and a terminating zero
  std::array<std::uint64_t, kHostFields> mine{};
  host_name().copy(reinterpret_cast<char*>(mine.data()), sizeof mine - 1);
  const auto all = world.all_gather(mine);
  if (!all) return all.error();
  std::vector<std::string> hosts;
  for (std::size_t at = 0; at < all->size(); at += kHostFields)
    hosts.emplace_back(reinterpret_cast<const char*>(all->data() + at));
  return hosts;
}

/// Names the ranks whose value is not `right`, at most 8: "rank 2 (gpu02), rank 3 (gpu02)".
std::string differing_ranks(const std::vector<std::uint64_t>& values, std::uint64_t right,
                            const std::vector<std::string>& hosts) {
  std::vector<std::string> differing;
  for (std::size_t rank = 0; rank < values.size(); ++rank)
    if (values[rank] != right) differing.push_back("rank " + std::to_string(rank) + " (" + hosts[rank] + ")");
  return join_some(differing, 8);
}

}  // namespace

std::size_t most_frequent(const std::vector<std::uint64_t>& values) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < values.size(); ++i) {
    if (std::ranges::count(values, values[i]) > std::ranges::count(values, values[best])) best = i;
  }
  return best;
}

Result<> check_equal_data(Communicator& world, const DataSplit& mine, std::optional<int> from) {
  constexpr std::array kFiles = {
      "training images (train-images-idx3-ubyte)", "training labels (train-labels-idx1-ubyte)",
      "test images (t10k-images-idx3-ubyte)", "test labels (t10k-labels-idx1-ubyte)"};
  const std::vector<std::uint64_t> words(mine.checksums.begin(), mine.checksums.end());
  const auto all = world.all_gather(words);
  if (!all) return all.error();
  std::array<std::vector<std::uint64_t>, kFiles.size()> files;  // each by rank
  for (std::size_t at = 0; at < all->size(); ++at)
    files[at % files.size()].push_back((*all)[at]);
  const auto differ = [](const auto& values) {
    return std::ranges::count(values, values[0]) != std::ssize(values);
  };
  if (std::ranges::none_of(files, differ)) return {};
  const auto hosts = gather_hosts(world);
  if (!hosts) return hosts.error();
  const auto rank_text = [&hosts](std::size_t rank) {
    return "rank " + std::to_string(rank) + " (" + (*hosts)[rank] + ")";
  };
  for (std::size_t file = 0; file < files.size(); ++file) {
    const std::vector<std::uint64_t>& values = files[file];
    const std::string what = std::string("the ") + kFiles[file] + " of ";
    if (from) {
      const auto own = static_cast<std::size_t>(world.rank()), source = static_cast<std::size_t>(*from);
      if (values[own] == values[source]) continue;
      return Error{ErrorCode::kUsage, what + rank_text(own) + " have the CRC-32 " +
                                          crc32_text(mine.checksums[file]) + ", and those of " +
                                          rank_text(source) + ", with which the training was begun, " +
                                          crc32_text(static_cast<std::uint32_t>(values[source])) +
                                          "; give all nodes the same data"};
    }
    if (!differ(values)) continue;
    const std::size_t right = most_frequent(values);
    return Error{ErrorCode::kUsage, what + differing_ranks(values, values[right], *hosts) +
                                        " are not those of " + rank_text(right) +
                                        "; give all nodes the same data"};
  }
  return {};
}

}  // namespace ddp::train
