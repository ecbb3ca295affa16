#include "apps/train/world/node_data.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <span>
#include <sstream>
#include <utility>
#include <vector>

#include "base/program.h"
#include "base/text.h"

namespace ddp::train {

namespace {

/// Images go to the other nodes in pieces of this size: the communicator may need a copy of a piece.
constexpr std::size_t kPiece = 4u << 20;

Result<> broadcast_bytes(Communicator& world, int root, std::span<const std::uint8_t> given,
                         std::vector<std::uint8_t>& taken, std::size_t size) {
  const bool keeps = given.empty();
  std::vector<std::uint8_t> piece(keeps ? 0 : std::min(kPiece, size));
  if (keeps) taken.resize(size);
  for (std::size_t at = 0; at < size; at += kPiece) {
    const std::size_t count = std::min(kPiece, size - at);
    const std::span<std::uint8_t> bytes =
        keeps ? std::span(taken).subspan(at, count) : std::span(piece).first(count);
    if (!keeps) std::ranges::copy(given.subspan(at, count), bytes.begin());
    DDP_TRY(of(world.broadcast(std::as_writable_bytes(bytes), root), "the data"));
  }
  return {};
}

}  // namespace

NodeData::NodeData(std::string where, std::size_t limit, std::string usual)
    : where_(std::move(where)),
      limit_(limit),
      usual_(std::move(usual)),
      source_(data_source(where_, limit)) {}

bool NodeData::reads_first(const WorkerEnvironment& environment) {
  return environment.node < 0 || environment.local_world_size < 2 || environment.local_rank == 0;
}

Result<> NodeData::load() {
  if (is_here()) return {};
  if (where_ != kAutoData) return load_from(where_);
  return has_data_files(usual_) ? load_from(usual_) : Result<>();
}

Result<> NodeData::load_from(const std::string& place) {
  split_ = DDP_TRY(load_data(place, limit_));
  offer();
  return {};
}

/// Moves the data into memory that other processes of the node can map. Without such memory they read or
/// receive theirs like this one.
void NodeData::offer() {
  auto made = DataMemory::make(split_, source_);
  if (!made || !*made) return;
  memory_ = std::move(**made);
  split_ = memory_->data();
}

Result<> NodeData::share(Communicator& world, const WorkerEnvironment& environment) {
  DDP_TRY(take_from_node(world, environment));
  DDP_TRY(load());
  return complete(world, environment);
}

/// A rank without data takes that of another rank of its node.
Result<> NodeData::take_from_node(Communicator& world, const WorkerEnvironment& environment) {
  const auto node = static_cast<std::uint64_t>(environment.node);
  const DataTicket mine = memory_ && environment.node >= 0 ? memory_->ticket(node) : DataTicket{};
  const auto all = DDP_TRY(of(gather_values(world, mine), "the places of the data"));
  for (const DataTicket& ticket : all) {
    if (is_here()) break;
    if (ticket.pid == 0 || ticket.node != node || ticket.source != source_) continue;
    auto taken = DataMemory::open(ticket);
    if (!taken) continue;
    memory_ = std::move(*taken);
    split_ = memory_->data();
  }
  return {};
}

/// Gives images to the ranks that found none.
Result<> NodeData::complete(Communicator& world, const WorkerEnvironment& environment) {
  const auto all = DDP_TRY(of(gather_values(world, std::uint64_t{is_here()}), "the ranks with data"));
  const auto lacking = std::ranges::count(all, 0u);
  if (lacking == 0) return {};
  if (lacking == std::ssize(all)) {
    line_ = "data synthetic (no node has the files of " + usual_ + ")";
    if (reads_first(environment)) DDP_TRY(load_from("synthetic"));
    DDP_TRY(take_from_node(world, environment));
    return is_here() ? Result<>() : load_from("synthetic");
  }
  const int root = static_cast<int>(std::ranges::find(all, 1u) - all.begin());
  line_ = concat("data ", usual_, " of rank ", root, ", sent to ",
                 counted(lacking, "rank without it", "ranks without it"));
  const bool lacks = !is_here();
  DDP_TRY(receive(world, root));
  if (lacks && reads_first(environment)) offer();
  return {};
}

Result<> NodeData::receive(Communicator& world, int root) {
  std::array<std::uint64_t, 6> head{split_.training.size(), split_.test.size()};
  std::ranges::copy(split_.checksums, head.begin() + 2);
  DDP_TRY(of(world.broadcast(std::as_writable_bytes(std::span(head)), root), "the data's sizes"));
  const auto part = [&](Dataset& data, std::uint64_t images) -> Result<> {
    std::vector<std::uint8_t> pixels, labels;
    DDP_TRY(broadcast_bytes(world, root, data.images, pixels, images * kImagePixels));
    DDP_TRY(broadcast_bytes(world, root, data.labels, labels, images));
    if (data.size() == 0) data = Dataset::of(std::move(pixels), std::move(labels));
    return {};
  };
  const bool lacks = !is_here();
  DDP_TRY(part(split_.training, head[0]));
  DDP_TRY(part(split_.test, head[1]));
  if (lacks)
    std::transform(head.begin() + 2, head.end(), split_.checksums.begin(),
                   [](std::uint64_t word) { return static_cast<std::uint32_t>(word); });
  return {};
}

namespace {

/// Returns the number after `key` at the beginning of a line.
std::optional<std::size_t> number_after(const std::filesystem::path& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    std::size_t number = 0;
    if (std::istringstream(line.substr(key.size())) >> number) return number;
    return std::nullopt;
  }
  return std::nullopt;
}

/// Returns the memory left to one control group; empty if it has no limit.
std::optional<std::size_t> left_to(const std::filesystem::path& group) {
  const auto most = number_after(group / "memory.max", "");  // "max": no number
  if (!most) return std::nullopt;
  const std::size_t taken = number_after(group / "memory.stat", "anon ").value_or(0) +
                            number_after(group / "memory.stat", "shmem ").value_or(0);
  return *most - std::min(*most, taken);
}

/// Returns the path of this process's control group: the line "0::/a/b".
std::filesystem::path own_group(const std::filesystem::path& proc) {
  std::ifstream file(proc / "self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("0::/")) return line.substr(4);
  }
  return {};
}

}  // namespace

std::optional<std::size_t> available_memory(const std::filesystem::path& proc,
                                            const std::filesystem::path& groups) {
  std::optional<std::size_t> least;
  const auto limit_to = [&least](std::optional<std::size_t> bytes) {
    if (bytes) least = std::min(least.value_or(*bytes), *bytes);
  };
  if (const auto kib = number_after(proc / "meminfo", "MemAvailable:")) limit_to(*kib << 10);
  std::filesystem::path group = groups;
  limit_to(left_to(group));
  for (const std::filesystem::path& part : own_group(proc)) {
    group /= part;
    limit_to(left_to(group));
  }
  return least;
}

std::string lacking_memory(std::size_t each, int ranks) {
  const auto count = static_cast<std::size_t>(std::max(ranks, 1));
  const auto left = available_memory();
  if (!left || *left / count >= each) return "";
  return format_bytes(each) + " of memory for each rank, and host " + host_name() + " has " +
         format_bytes(*left) + " left for its " + (count == 1 ? "rank" : std::to_string(count) + " ranks");
}

}  // namespace ddp::train
