#include "apps/train/collectives/cpu/shm_group.h"

#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

// Sums of a ShmGroup over memory that all ranks of the node map: no copies into areas, two waits.

namespace ddp::train {

namespace {

/// Smaller sums go over areas, with one wait instead of two.
constexpr std::size_t kLeastInPlace = 256 * 1024;
/// A block stays in the nearest cache between its sum and its copies.
constexpr std::size_t kInPlaceBlock = 8 * 1024;

}  // namespace

/// All ranks come to the same result, since each step ends in numbers that all have.
Result<std::span<std::byte>> ShmGroup::share(std::size_t bytes) {
  if (failed_) return *failed_;
  if (size() == 1 || bytes == 0 || !buffers_.empty()) return std::span<std::byte>();
  const int own = links_.buffers[static_cast<std::size_t>(rank())].get();
  const auto all_say = [this](std::uint64_t mine) -> Result<bool> {
    std::vector<std::uint64_t> said(static_cast<std::size_t>(size()));
    auto done = all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(said)));
    if (!done) return done.error();
    return said[0] != 0 && std::equal(said.begin() + 1, said.end(), said.begin());
  };
  // This rank's pages exist before other ranks map them.
  bool mapped = ::ftruncate(own, static_cast<off_t>(bytes)) == 0 && ShmBuffer::map(own, bytes);
  auto all = all_say(mapped ? bytes : 0);
  if (!all) return all.error();
  if (!*all) return std::span<std::byte>();
  for (const UniqueFd& memory : links_.buffers) {
    auto buffer = ShmBuffer::map(memory.get(), bytes);
    mapped = mapped && buffer;
    if (mapped) buffers_.push_back(std::move(*buffer));
  }
  all = all_say(mapped ? bytes : 0);
  if (!all) return all.error();
  if (*all) return buffers_[static_cast<std::size_t>(rank())].span();
  buffers_.clear();
  return std::span<std::byte>();
}

std::optional<std::size_t> ShmGroup::shared_at(std::span<const std::byte> values) const {
  if (buffers_.empty() || values.size() <= kLeastInPlace) return std::nullopt;
  const auto own = buffers_[static_cast<std::size_t>(rank())].span();
  if (values.data() < own.data() || values.data() + values.size() > own.data() + own.size())
    return std::nullopt;
  return static_cast<std::size_t>(values.data() - own.data());
}

/// Another offset or size, or values outside the shared memory, give another tag, as another operation would.
std::uint64_t ShmGroup::tag_in_place(std::size_t at, std::size_t size) {
  const std::uint64_t mixed = (size * 31 + at) * 0x9e37'79b9'7f4a'7c15u;
  return std::uint64_t{1} << 54 | mixed >> 11;
}

/// Sums part rank() of the values at `at` into this rank's values, and with `gather` into all ranks' values.
Result<> ShmGroup::sum_in_place(std::span<std::byte> values, std::size_t at, const VectorSum& sum, int parts,
                                bool gather) {
  const std::uint64_t tag = tag_in_place(at, values.size());
  if (auto all = sync(tag); !all) return all;
  if (rank() < parts) {
    const PartBounds part = part_bounds(values.size() / sum.element, parts, rank());
    const std::size_t begin = at + part.begin * sum.element, end = begin + part.size * sum.element;
    const auto of = [this](std::size_t other) { return buffers_[other].span().data(); };
    alignas(64) std::byte block[kInPlaceBlock];
    for (std::size_t place = begin; place < end; place += kInPlaceBlock) {
      const std::size_t bytes = std::min(kInPlaceBlock, end - place);
      // The sum runs in the order of the ranks, as over areas.
      sum.sum(block, of(0) + place, of(1) + place, bytes);
      for (std::size_t other = 2; other < buffers_.size(); ++other)
        sum.add(block, of(other) + place, bytes);
      for (std::size_t other = 0; other < buffers_.size(); ++other) {
        if (gather || other == static_cast<std::size_t>(rank())) copy_bytes(of(other) + place, block, bytes);
      }
    }
  }
  return sync(tag);
}

Result<> ShmGroup::gather_in_place(std::span<std::byte> values, std::size_t at, std::size_t element,
                                   int parts) {
  const std::uint64_t tag = tag_in_place(at, values.size());
  if (auto all = sync(tag); !all) return all;
  for (int owner = 0; owner < parts; ++owner) {
    if (owner == rank()) continue;
    const PartBounds part = part_bounds(values.size() / element, parts, owner);
    copy_bytes(values.data() + part.begin * element,
               buffers_[static_cast<std::size_t>(owner)].span().data() + at + part.begin * element,
               part.size * element);
  }
  return sync(tag);
}

}  // namespace ddp::train
