#include "apps/train/ring_schedule.h"

#include <algorithm>

namespace ddp::train {

namespace {
int wrap(int number, int world) {
  return (number % world + world) % world;
}
}  // namespace

std::vector<RingStep> ring_all_reduce(int rank, int world) {
  std::vector<RingStep> steps;
  for (int s = 0; s + 1 < world; ++s)
    steps.push_back({wrap(rank - s, world), wrap(rank - s - 1, world), true});
  for (int s = 0; s + 1 < world; ++s)
    steps.push_back({wrap(rank + 1 - s, world), wrap(rank - s, world), false});
  return steps;
}

std::vector<RingStep> ring_all_gather(int rank, int world) {
  std::vector<RingStep> steps;
  for (int s = 0; s + 1 < world; ++s)
    steps.push_back({wrap(rank - s, world), wrap(rank - s - 1, world), false});
  return steps;
}

std::vector<RingStep> ring_broadcast(int rank, int world, int root) {
  const int distance = wrap(rank - root, world);
  std::vector<RingStep> steps;
  if (distance > 0) steps.push_back({RingStep::kNothing, 0, false});
  if (distance + 1 < world) steps.push_back({0, RingStep::kNothing, false});
  return steps;
}

RingPart ring_part(std::size_t count, int parts, int number) {
  const std::size_t base = count / static_cast<std::size_t>(parts);
  const std::size_t larger = count % static_cast<std::size_t>(parts);
  const std::size_t n = static_cast<std::size_t>(number);
  return {n * base + std::min(n, larger), base + (n < larger ? 1 : 0)};
}

}  // namespace ddp::train
