#include "apps/train/collectives/schedule/collective_schedule.h"

#include <algorithm>
#include <iterator>

namespace ddp::train {

namespace {

int wrap(int number, int world) {
  return (number % world + world) % world;
}

/// Returns the distances and then the world size: the limits that steps may reach up to.
std::vector<int> distances_and_world(int world) {
  std::vector<int> result = halving_distances(world);
  result.push_back(world);
  return result;
}

}  // namespace

std::vector<int> halving_distances(int world) {
  std::vector<int> distances;
  for (int distance = world; distance > 1;) {
    distance = (distance + 1) / 2;
    distances.push_back(distance);
  }
  std::reverse(distances.begin(), distances.end());
  return distances;
}

Schedule ring_reduce_scatter(int rank, int world) {
  Schedule steps;
  const int next = wrap(rank + 1, world);
  const int previous = wrap(rank - 1, world);
  for (int s = 1; s < world; ++s)
    steps.push_back({next, {wrap(rank - s, world), 1}, previous, {wrap(rank - s - 1, world), 1}, true});
  return steps;
}

Schedule ring_all_gather(int rank, int world) {
  Schedule steps;
  const int next = wrap(rank + 1, world);
  const int previous = wrap(rank - 1, world);
  for (int s = 0; s + 1 < world; ++s)
    steps.push_back({next, {wrap(rank - s, world), 1}, previous, {wrap(rank - s - 1, world), 1}, false});
  return steps;
}

Schedule halving_reduce_scatter(int rank, int world) {
  Schedule steps;
  const auto reach = distances_and_world(world);
  // Sums of the parts rank … rank+reach are on their way here; each step halves the reach.
  for (std::size_t k = reach.size() - 1; k-- > 0;) {
    const int distance = reach[k];
    const int count = reach[k + 1] - distance;
    const int to = wrap(rank + distance, world);
    steps.push_back({to, {to, count}, wrap(rank - distance, world), {rank, count}, true});
  }
  return steps;
}

Schedule doubling_all_gather(int rank, int world) {
  Schedule steps;
  const auto reach = distances_and_world(world);
  for (std::size_t k = 0; k + 1 < reach.size(); ++k) {
    const int distance = reach[k];
    const int count = reach[k + 1] - distance;
    const int from = wrap(rank + distance, world);
    steps.push_back({wrap(rank - distance, world), {rank, count}, from, {from, count}, false});
  }
  return steps;
}

Schedule tree_gather(int rank, int world, int root) {
  const auto distances = halving_distances(world);
  const auto parent_of = [&](int place) {
    for (const int distance : distances)
      if (place == distance || place == world - distance) return 0;
    return place - *std::prev(std::ranges::upper_bound(distances, place));
  };
  const int place = wrap(rank - root, world);
  Schedule steps(1);
  // A rank sends its own part first, and each part from behind while it receives the next one. All ranks do
  // so in the order of the places; a parent's place is smaller.
  if (place > 0) {
    steps[0].send_to = wrap(parent_of(place) + root, world);
    steps[0].sent = {rank, 1};
  }
  for (int from = place + 1; from < world; ++from) {
    int child = from;
    while (child != 0 && parent_of(child) != place)
      child = parent_of(child);
    if (child == 0) continue;
    const PartRange part{wrap(from + root, world), 1};
    steps.back().receive_from = wrap(child + root, world);
    steps.back().received = part;
    if (place > 0)
      steps.push_back({steps[0].send_to, part});
    else
      steps.emplace_back();
  }
  if (steps.back() == CollectiveStep{}) steps.pop_back();
  return steps;
}

Schedule tree_broadcast(int rank, int world, int root) {
  Schedule steps;
  const auto reach = distances_and_world(world);
  const int place = wrap(root - rank, world);  // the path of part `root` in doubling_all_gather
  for (std::size_t k = 0; k + 1 < reach.size(); ++k) {
    const int distance = reach[k];
    const int count = reach[k + 1] - distance;
    if (place < count)
      steps.push_back({wrap(rank - distance, world), {0, 1}, CollectiveStep::kNobody, {}, false});
    if (place >= distance && place < reach[k + 1])
      steps.push_back({CollectiveStep::kNobody, {}, wrap(rank + distance, world), {0, 1}, false});
  }
  return steps;
}

Schedule chain_broadcast(int rank, int world, int root, int parts) {
  Schedule steps;
  const int place = wrap(rank - root, world);
  const bool receives = place > 0;
  const bool sends = place + 1 < world;
  for (int part = 0; part <= parts; ++part) {
    CollectiveStep step;
    if (receives && part < parts) {
      step.receive_from = wrap(rank - 1, world);
      step.received = {part, 1};
    }
    if (sends && part > 0) {
      step.send_to = wrap(rank + 1, world);
      step.sent = {part - 1, 1};
    }
    if (step != CollectiveStep{}) steps.push_back(step);
  }
  return steps;
}

std::vector<int> peers_of(int rank, int world) {
  std::vector<int> peers;
  for (const int distance : halving_distances(world)) {
    peers.push_back(wrap(rank + distance, world));
    peers.push_back(wrap(rank - distance, world));
  }
  std::sort(peers.begin(), peers.end());
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  return peers;
}

PartBounds part_bounds(std::size_t count, int parts, int number) {
  const std::size_t base = count / static_cast<std::size_t>(parts);
  const std::size_t larger = count % static_cast<std::size_t>(parts);
  const std::size_t n = static_cast<std::size_t>(number);
  return {n * base + std::min(n, larger), base + (n < larger ? 1 : 0)};
}

}  // namespace ddp::train
