// Emulates NCCL's library. Every communicator is non-blocking. An operation completes when the last rank has
// called it, and that rank's thread computes the result for all ranks.
#include "tests/support/fake_nccl.h"

#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

constexpr int kSuccess = 0, kInvalidUsage = 5, kInProgress = 7;
constexpr int kUint8 = 1, kFloat32 = 7, kFloat64 = 8;

struct UniqueId {
  char internal[128];
};

std::mutex g_mutex;
ddp::FakeNcclSettings g_settings;

struct Comm;

/// One rank's contribution to an operation.
struct Part {
  const void* send = nullptr;
  void* receive = nullptr;
  ddp::FakeStream* stream = nullptr;
  Comm** child = nullptr;
  int color = 0, key = 0;
};

struct Operation {
  std::string kind;
  std::size_t count = 0;
  int type = 0, root = 0;
  std::map<int, Part> parts;
  bool is_done = false;
};

struct Group {
  explicit Group(int ranks) : size(ranks) {}
  int size;
  int arrived = 0;
  bool aborted = false;
  std::vector<Operation> operations;
};

struct Comm {
  std::shared_ptr<Group> group;
  int rank = 0;
  std::size_t next = 0;  // index into the group's operations
  bool splitting = false;
  std::vector<void*> registered;
};

std::map<std::string, std::shared_ptr<Group>> g_groups;
std::map<void*, int> g_blocks;  ///< number of registrations by block

/// Call it with the mutex held.
void unregister(Comm* comm, void* block) {
  --g_settings.registrations;
  --g_blocks.at(block);
  std::erase(comm->registered, block);
}

std::size_t size_of(int type) {
  return type == kFloat64 ? 8 : type == kFloat32 ? 4 : 1;
}

template <class T>
void sum(Operation& operation) {
  for (std::size_t i = 0; i < operation.count; ++i) {
    T total = 0;
    for (auto& [rank, part] : operation.parts)
      total += static_cast<const T*>(part.send)[i];
    for (auto& [rank, part] : operation.parts)
      static_cast<T*>(part.receive)[i] = total;
  }
}

template <class T>
void sum_parts(Operation& operation) {
  for (auto& [to, target] : operation.parts) {
    std::vector<T> totals(operation.count);
    for (std::size_t i = 0; i < operation.count; ++i) {
      for (auto& [from, source] : operation.parts)
        totals[i] += static_cast<const T*>(source.send)[static_cast<std::size_t>(to) * operation.count + i];
    }
    // The output may overlap the rank's own input: no other rank reads that part.
    std::memcpy(target.receive, totals.data(), totals.size() * sizeof(T));
  }
}

void gather(Operation& operation) {
  const std::size_t bytes = operation.count * size_of(operation.type);
  for (auto& [from, source] : operation.parts) {
    for (auto& [to, target] : operation.parts)
      std::memmove(static_cast<char*>(target.receive) + static_cast<std::size_t>(from) * bytes, source.send,
                   bytes);
  }
}

void split(Operation& operation) {
  std::map<int, std::map<std::pair<int, int>, Comm**>> colors;
  for (auto& [rank, part] : operation.parts) {
    if (part.color >= 0) colors[part.color][{part.key, rank}] = part.child;
  }
  for (auto& [color, members] : colors) {
    auto group = std::make_shared<Group>(static_cast<int>(members.size()));
    group->arrived = group->size;
    int rank = 0;
    for (auto& [order, child] : members)
      *child = new Comm{group, rank++, 0, false, {}};
  }
}

void carry_out(Operation& operation) {
  operation.is_done = true;
  if (operation.kind == "split") {
    split(operation);
    return;
  }
  if (operation.kind == "reduce" && operation.type == kFloat64) sum<double>(operation);
  if (operation.kind == "reduce" && operation.type == kFloat32) sum<float>(operation);
  if (operation.kind == "scatter" && operation.type == kFloat32) sum_parts<float>(operation);
  if (operation.kind == "gather") gather(operation);
  if (operation.kind == "broadcast") {
    const void* source = operation.parts.at(operation.root).send;
    for (auto& [rank, part] : operation.parts)
      std::memmove(part.receive, source, operation.count * size_of(operation.type));
  }
  for (auto& [rank, part] : operation.parts)
    --part.stream->pending;
}

int enter(Comm* comm, const char* kind, std::size_t count, int type, int root, const Part& part) {
  const std::lock_guard lock(g_mutex);
  Group& group = *comm->group;
  const std::size_t number = comm->next++;
  if (group.operations.size() <= number) group.operations.push_back({kind, count, type, root, {}, false});
  Operation& operation = group.operations[number];
  if (operation.kind != kind || operation.count != count || operation.type != type) return kInvalidUsage;
  operation.parts[comm->rank] = part;
  if (part.stream != nullptr) ++part.stream->pending;
  const bool hangs = g_settings.all_reduces_hang && operation.kind == "reduce";
  if (operation.parts.size() == static_cast<std::size_t>(group.size) && !group.aborted && !hangs)
    carry_out(operation);
  return kInProgress;
}

void end(Comm* comm) {
  // Polled: this library and the program that loads it have separate lists of waiters, so that a notification
  // may get lost.
  while (g_settings.graphs > 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  delete comm;  // deleted, so that a sanitizer finds a later use
}

int init(Comm** comm, int ranks, const UniqueId& id, int rank) {
  const std::lock_guard lock(g_mutex);
  auto& group = g_groups[id.internal];
  if (!group) group = std::make_shared<Group>(ranks);
  ++group->arrived;
  *comm = new Comm{group, rank, 0, false, {}};
  return kInProgress;
}

}  // namespace

extern "C" {

ddp::FakeNcclSettings* fake_nccl_settings() {
  return &g_settings;
}

int ncclGetVersion(int* version) {
  *version = g_settings.version;
  return kSuccess;
}
int ncclGetUniqueId(UniqueId* id) {
  std::memset(id, 0, sizeof *id);
  static std::atomic<int> made = 0;  // never reset, so that no id repeats across test cases
  ++g_settings.ids;
  const std::string text = "id " + std::to_string(++made);
  std::memcpy(id->internal, text.data(), text.size());
  return kSuccess;
}
const char* ncclGetErrorString(int result) {
  return result == 6 ? "remote process exited or there was a network error" : "an injected error";
}
const char* ncclGetLastError(void*) {
  return "";
}
int ncclCommInitRankConfig(Comm** comm, int ranks, UniqueId id, int rank, void*) {
  g_settings.ids_of_last_init = 1;
  return init(comm, ranks, id, rank);
}
int ncclCommInitRankScalable(Comm** comm, int ranks, int rank, int ids, UniqueId* id, void*) {
  g_settings.ids_of_last_init = ids;
  return init(comm, ranks, id[0], rank);
}
int ncclCommGetAsyncError(Comm* comm, int* error) {
  const std::lock_guard lock(g_mutex);
  const Group& group = *comm->group;
  *error = kSuccess;
  if (group.arrived < group.size || g_settings.init_hangs) *error = kInProgress;
  if (g_settings.init_fails != 0) *error = g_settings.init_fails;
  if (comm->splitting) {
    const Operation& operation = group.operations[comm->next - 1];
    if (operation.parts.size() < static_cast<std::size_t>(group.size)) *error = kInProgress;
  }
  if (group.aborted && g_settings.remote_error != 0) *error = g_settings.remote_error;
  return kSuccess;
}
int ncclCommAbort(Comm* comm) {
  ++g_settings.aborted;
  {
    const std::lock_guard lock(g_mutex);
    comm->group->aborted = true;
    // The streams of the aborted rank go on.
    for (Operation& operation : comm->group->operations) {
      const auto mine = operation.parts.find(comm->rank);
      if (operation.is_done || mine == operation.parts.end() || mine->second.stream == nullptr) continue;
      --std::exchange(mine->second.stream, nullptr)->pending;
    }
  }
  {
    const std::lock_guard lock(g_mutex);
    while (!comm->registered.empty())
      unregister(comm, comm->registered.back());
  }
  for (int hangs = g_settings.abort_hangs; hangs > 0; hangs = g_settings.abort_hangs)
    g_settings.abort_hangs.wait(hangs);
  end(comm);
  return kSuccess;
}
int ncclCommDestroy(Comm* comm) {
  ++g_settings.destroyed;
  if (!comm->registered.empty()) ++g_settings.errors;
  end(comm);
  return kSuccess;
}
int ncclCommSplit(Comm* comm, int color, int key, Comm** child, void*) {
  *child = nullptr;
  comm->splitting = true;
  Part part;
  part.child = child;
  part.color = color;
  part.key = key;
  return enter(comm, "split", 0, 0, 0, part);
}
int ncclMemAlloc(void** data, std::size_t bytes) {
  const std::lock_guard lock(g_mutex);
  *data = ::operator new(bytes);
  std::memset(*data, 0xff, bytes);
  g_blocks[*data] = 0;
  ++g_settings.blocks;
  return kSuccess;
}
int ncclMemFree(void* data) {
  const std::lock_guard lock(g_mutex);
  if (g_blocks.at(data) != 0) ++g_settings.errors;
  g_blocks.erase(data);
  --g_settings.blocks;
  ::operator delete(data);
  return kSuccess;
}
int ncclCommRegister(Comm* comm, void* data, std::size_t, void** handle) {
  *handle = nullptr;
  if (!g_settings.registers) return kInvalidUsage;
  const std::lock_guard lock(g_mutex);
  comm->registered.push_back(data);
  ++g_blocks.at(data);
  ++g_settings.registrations;
  *handle = data;
  return kSuccess;
}
int ncclCommDeregister(Comm* comm, void* handle) {
  const std::lock_guard lock(g_mutex);
  unregister(comm, handle);
  return kSuccess;
}
int ncclAllReduce(const void* send, void* receive, std::size_t count, int type, int, Comm* comm,
                  ddp::FakeStream* stream) {
  return enter(comm, "reduce", count, type, 0, {send, receive, stream});
}
int ncclBroadcast(const void* send, void* receive, std::size_t count, int type, int root, Comm* comm,
                  ddp::FakeStream* stream) {
  return enter(comm, "broadcast", count, type, root, {send, receive, stream});
}
int ncclReduceScatter(const void* send, void* receive, std::size_t each, int type, int, Comm* comm,
                      ddp::FakeStream* stream) {
  return enter(comm, "scatter", each, type, 0, {send, receive, stream});
}
int ncclAllGather(const void* send, void* receive, std::size_t count, int type, Comm* comm,
                  ddp::FakeStream* stream) {
  return enter(comm, "gather", count, type, 0, {send, receive, stream});
}

}  // extern "C"
