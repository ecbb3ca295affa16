// Plays NCCL for ranks that are processes of one machine, over a GPU that is played too (fake_cuda.cc, in the
// program that loads this): every call is complete when it returns. FAKE_NCCL_DIR: a folder for its files.
// FAKE_NCCL_VERSION=N: the version that it tells.
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

constexpr int kSuccess = 0, kSystemError = 2, kRemoteError = 6;
constexpr int kFloat32 = 7, kFloat64 = 8, kUint64 = 5;
constexpr int kMostRanks = 16;
constexpr std::size_t kSlot = 1 << 20;
constexpr auto kPatience = std::chrono::seconds(30);

struct UniqueId {
  char internal[128];
};

/// A file that all ranks of a communicator map. It is sparse.
struct Room {
  std::atomic<int> arrived;
  std::atomic<std::uint64_t> posted[kMostRanks], taken[kMostRanks];
  char data[kMostRanks][kSlot];
};

struct Comm {
  std::string name;
  Room* room = nullptr;
  int rank = 0, size = 0;
  std::uint64_t rounds = 0;
  int parts = 0;  // made of it
};

/// Sends and receives of a group.
struct Waiting {
  Comm* comm = nullptr;
  const void* sent = nullptr;
  std::size_t bytes = 0;
  void* received = nullptr;
  int from = 0;
  cudaStream_t stream = nullptr;
};
thread_local Waiting t_waiting;

bool wait_until(const std::function<bool()>& done) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!done()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

std::size_t size_of(int type) {
  return type == kFloat64 || type == kUint64 ? 8 : type == kFloat32 ? 4 : 1;
}

int enter(Comm** comm, const std::string& name, int size, int rank) {
  *comm = nullptr;
  if (size > kMostRanks) return kSystemError;
  const char* folder = std::getenv("FAKE_NCCL_DIR");
  const std::string path = std::string(folder != nullptr ? folder : "") + "/" + name;
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0 || ::ftruncate(file, sizeof(Room)) != 0) return kSystemError;
  void* memory = ::mmap(nullptr, sizeof(Room), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  if (memory == MAP_FAILED) return kSystemError;
  auto* room = static_cast<Room*>(memory);
  ++room->arrived;
  const bool all = wait_until([&] { return room->arrived >= size; });
  ::unlink(path.c_str());  // all have it, or never will
  if (!all) return kRemoteError;
  *comm = new Comm{name, room, rank, size};
  return kSuccess;
}

/// All ranks give `bytes` each; then `read` is called with each rank's number, the piece's place and its
/// bytes.
using Read = std::function<void(int rank, std::size_t offset, const char* data, std::size_t bytes)>;
int exchange(Comm* comm, const void* mine, std::size_t bytes, const Read& read) {
  Room& room = *comm->room;
  for (std::size_t offset = 0; offset < bytes || offset == 0; offset += kSlot) {
    const std::size_t piece = std::min(kSlot, bytes - offset);
    const std::uint64_t round = ++comm->rounds;
    std::memcpy(room.data[comm->rank], static_cast<const char*>(mine) + offset, piece);
    room.posted[comm->rank] = round;
    for (int rank = 0; rank < comm->size; ++rank) {
      if (!wait_until([&] { return room.posted[rank] >= round; })) return kRemoteError;
      read(rank, offset, room.data[rank], piece);
    }
    room.taken[comm->rank] = round;
    for (int rank = 0; rank < comm->size; ++rank) {
      if (!wait_until([&] { return room.taken[rank] >= round; })) return kRemoteError;
    }
  }
  return kSuccess;
}

template <class T>
int sum(Comm* comm, const void* send, void* receive, std::size_t count) {
  std::vector<T> total(count);
  const int done = exchange(comm, send, count * sizeof(T),
                            [&](int, std::size_t offset, const char* data, std::size_t bytes) {
                              T value;
                              for (std::size_t i = 0; i < bytes / sizeof(T); ++i) {
                                std::memcpy(&value, data + i * sizeof(T), sizeof(T));
                                total[offset / sizeof(T) + i] += value;
                              }
                            });
  std::memcpy(receive, total.data(), count * sizeof(T));
  return done;
}

}  // namespace

extern "C" {

int ncclGetVersion(int* version) {
  const char* text = std::getenv("FAKE_NCCL_VERSION");
  *version = text != nullptr ? std::atoi(text) : 22809;
  return kSuccess;
}
int ncclGetUniqueId(UniqueId* id) {
  static int made = 0;
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  std::memset(id, 0, sizeof *id);
  const std::string name =
      "fake-nccl-" + std::to_string(::getpid()) + "-" + std::to_string(now) + "-" + std::to_string(++made);
  std::memcpy(id->internal, name.data(), name.size());
  return kSuccess;
}
const char* ncclGetErrorString(int) {
  return "an error of the play";
}
const char* ncclGetLastError(void*) {
  return "";
}
int ncclCommInitRankConfig(Comm** comm, int ranks, UniqueId id, int rank, void*) {
  return enter(comm, id.internal, ranks, rank);
}
int ncclCommGetAsyncError(Comm*, int* error) {
  *error = kSuccess;
  return kSuccess;
}
int ncclCommAbort(Comm* comm) {
  ::munmap(comm->room, sizeof(Room));
  delete comm;
  return kSuccess;
}
int ncclCommDestroy(Comm* comm) {
  return ncclCommAbort(comm);
}
int ncclCommSplit(Comm* comm, int color, int key, Comm** child, void*) {
  *child = nullptr;
  const int mine[2] = {color, key};
  std::map<std::pair<int, int>, int> members;
  int done = exchange(comm, mine, sizeof mine, [&](int rank, std::size_t, const char* data, std::size_t) {
    int theirs[2];
    std::memcpy(theirs, data, sizeof theirs);
    if (theirs[0] == color) members[{theirs[1], rank}] = rank;
  });
  const std::string name = comm->name + "-" + std::to_string(++comm->parts) + "-" + std::to_string(color);
  if (done != kSuccess || color < 0) return done;
  const auto place = std::distance(members.begin(), members.find({key, comm->rank}));
  return enter(child, name, static_cast<int>(members.size()), static_cast<int>(place));
}
int ncclGroupStart() {
  return kSuccess;
}
int ncclGroupEnd() {
  const Waiting waiting = std::exchange(t_waiting, {});
  if (waiting.comm == nullptr) return kSuccess;
  cudaStreamSynchronize(waiting.stream);
  return exchange(waiting.comm, waiting.sent, waiting.bytes,
                  [&](int rank, std::size_t offset, const char* data, std::size_t bytes) {
                    if (rank == waiting.from)
                      std::memcpy(static_cast<char*>(waiting.received) + offset, data, bytes);
                  });
}
int ncclAllReduce(const void* send, void* receive, std::size_t count, int type, int, Comm* comm,
                  cudaStream_t stream) {
  cudaStreamSynchronize(stream);
  if (type == kFloat64) return sum<double>(comm, send, receive, count);
  return type == kFloat32 ? sum<float>(comm, send, receive, count) : kSystemError;
}
int ncclBroadcast(const void* send, void* receive, std::size_t count, int type, int root, Comm* comm,
                  cudaStream_t stream) {
  cudaStreamSynchronize(stream);
  return exchange(comm, send, count * size_of(type),
                  [&](int rank, std::size_t offset, const char* data, std::size_t bytes) {
                    if (rank == root) std::memcpy(static_cast<char*>(receive) + offset, data, bytes);
                  });
}
int ncclAllGather(const void* send, void* receive, std::size_t count, int type, Comm* comm,
                  cudaStream_t stream) {
  cudaStreamSynchronize(stream);
  const std::size_t each = count * size_of(type);
  // What is sent may be a part of where all goes.
  const std::vector<char> mine(static_cast<const char*>(send), static_cast<const char*>(send) + each);
  return exchange(comm, mine.data(), each,
                  [&](int rank, std::size_t offset, const char* data, std::size_t bytes) {
                    std::memcpy(static_cast<char*>(receive) + static_cast<std::size_t>(rank) * each + offset,
                                data, bytes);
                  });
}
int ncclSend(const void* data, std::size_t count, int type, int, Comm* comm, cudaStream_t stream) {
  t_waiting.comm = comm;
  t_waiting.sent = data;
  t_waiting.bytes = count * size_of(type);
  t_waiting.stream = stream;
  return kSuccess;
}
int ncclRecv(void* data, std::size_t, int, int peer, Comm*, cudaStream_t) {
  t_waiting.received = data;
  t_waiting.from = peer;
  return kSuccess;
}

}  // extern "C"
