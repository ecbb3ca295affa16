// Emulates NCCL for ranks that are processes of one machine or threads of one process. The program that loads
// this library has the streams (fake_cuda.h). Every communicator is non-blocking. Operations are work of
// their stream, or of the graph that it captures. A graph holds its communicator, which ends no sooner than
// the graph, as in NCCL.
//
//   FAKE_NCCL_DIR            a folder for its files
//   FAKE_NCCL_VERSION=N      the version that it reports
//   FAKE_NCCL_TRANSPORT=p2p  a lost peer stays unnoticed, as inside a node; else an error, as over sockets
//   FAKE_NCCL_SPOIL=N        the last element of each sum and received message of N bytes is wrong here
//   FAKE_NCCL_SPOIL_SENT=N   the last element that this rank gives to N bytes or more is wrong
//   FAKE_NCCL_SPOIL_SUM_SENT=N  the same, only of an all-reduce
//   FAKE_NCCL_SPOIL_PEERS=A,B  messages that this rank sends to these ranks are wrong
//   FAKE_NCCL_SPLIT=N        each split that this rank takes part in ends with the result N
//   FAKE_NCCL_SLOW_US=N      each all-reduce and group of messages of this rank takes that much longer
//   FAKE_NCCL_INIT=N         each start of a communicator ends with the result N
//   FAKE_NCCL_REGISTER=0     no memory can be registered
//   FAKE_NCCL_WINDOWS=N      1: windows can be made; 2: no rank can make one; 3: all but rank 1 can
//   FAKE_NCCL_LOG=TEXT       the first all-reduce appends the text to the file of NCCL_DEBUG_FILE
//   FAKE_NCCL_FAIL_CAPTURED=N  the N-th operation (from 1) that is captured fails, half put into its graph
//
// It refuses a rank whose GPU another rank has, unless NCCL_HOSTID differs.
//
// stderr reports memory and registrations that a program leaves behind or releases in the wrong order.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "fake_cuda.h"
#include "fake_nccl.h"
#include "fake_nccl_room.h"

namespace {

using ddp::FakeNcclExchange;
using ddp::FakeNcclMessages;
using ddp::FakeNcclState;

constexpr int kSuccess = 0, kSystemError = 2, kInvalidArgument = 4, kInvalidUsage = 5, kInProgress = 7;
constexpr int kUint64 = 5, kFloat16 = 6, kFloat32 = 7, kFloat64 = 8, kBfloat16 = 9;

/// Returns the GPU of the calling thread, with the identity of its host.
std::string gpu_and_host() {
  const char* const host = std::getenv("NCCL_HOSTID");
  return (host != nullptr ? host : "") + ("/" + ddp::fake_cuda_gpu());
}

struct UniqueId {
  char internal[128];
};

int number_of(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::atoi(text) : otherwise;
}

struct Settings : ddp::FakeNcclSettings {
  Settings() {
    version = number_of("FAKE_NCCL_VERSION", version);
    registers = number_of("FAKE_NCCL_REGISTER", 1) != 0;
    init_fails = number_of("FAKE_NCCL_INIT", 0);
    const char* const transport = std::getenv("FAKE_NCCL_TRANSPORT");
    if (transport != nullptr && std::strcmp(transport, "p2p") == 0) remote_error = 0;
  }
};
Settings g_settings;

struct Comm {
  std::shared_ptr<FakeNcclState> state;
  std::unique_ptr<FakeNcclExchange> job;  ///< a split or a window in progress
  std::set<void*> registered;
  std::set<void*> windows;
};

/// Memory of ncclMemAlloc, and its registrations with communicators. Several threads use it, because threads
/// end communicators.
class Memory {
 public:
  ~Memory() {
    // An aborted communicator leaves its windows.
    const auto left = std::ranges::count_if(blocks_, [](const auto& block) { return block.second == 0; });
    if (left != 0) std::fprintf(stderr, "fake NCCL: %td blocks of memory are left\n", left);
  }

  void* allocate(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    void* const block = ::operator new(bytes, std::align_val_t(4096));
    std::memset(block, 0xff, bytes);
    blocks_[block] = 0;
    ++g_settings.blocks;
    return block;
  }
  int release(void* block) {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(block);
    if (found == blocks_.end()) return problem("memory is given back that it never gave");
    if (found->second != 0) return problem("memory is given back that is registered");
    blocks_.erase(found);
    --g_settings.blocks;
    ::operator delete(block, std::align_val_t(4096));
    return kSuccess;
  }
  void count(void* block, int change) {
    const std::lock_guard lock(mutex_);
    if (const auto found = blocks_.find(block); found != blocks_.end()) found->second += change;
    g_settings.registrations += change;
  }
  static int problem(const char* text) {
    ++g_settings.errors;
    std::fprintf(stderr, "fake NCCL: %s\n", text);
    return kInvalidUsage;
  }

 private:
  std::mutex mutex_;
  std::map<void*, int> blocks_;  ///< number of registrations by block
};
Memory g_memory;

std::size_t size_of(int type) {
  return type == kFloat64 || type == kUint64     ? 8
         : type == kFloat32                      ? 4
         : type == kBfloat16 || type == kFloat16 ? 2
                                                 : 1;
}

std::shared_ptr<FakeNcclState> enter(const std::string& name, int size, int rank) {
  if (size > ddp::kFakeNcclMostRanks) return nullptr;
  const char* folder = std::getenv("FAKE_NCCL_DIR");
  const std::string path = std::string(folder != nullptr ? folder : "") + "/" + name;
  auto state = std::make_shared<FakeNcclState>(name, path, rank, size);
  return state->slot.room() != nullptr ? state : nullptr;
}

/// The parameters that must be equal on all ranks.
std::uint64_t call_of(char kind, std::size_t bytes, int type, int root = 0) {
  return static_cast<std::uint64_t>(bytes) << 24 | static_cast<std::uint64_t>(type) << 16 |
         static_cast<std::uint64_t>(root) << 8 | static_cast<std::uint64_t>(kind);
}

template <class Exchange>
int put_into(Comm* comm, cudaStream_t stream, Exchange exchange) {
  if (comm->state->ended) return kInvalidArgument;
  ++comm->state->graphs;
  const std::shared_ptr<void> held(nullptr, [state = comm->state](void*) { --state->graphs; });
  ddp::fake_cuda_enqueue(stream, std::move(exchange), held);
  static const int fail_at = number_of("FAKE_NCCL_FAIL_CAPTURED", 0);
  static std::atomic<int> captured = 0;
  if (ddp::fake_cuda_is_capturing(stream) && ++captured == fail_at) return kSystemError;
  return kSuccess;
}

bool is_to_be_spoilt(std::size_t bytes) {
  static const int spoilt = number_of("FAKE_NCCL_SPOIL", 0);
  return bytes != 0 && bytes == static_cast<std::size_t>(spoilt);
}

/// A bfloat16 is the upper half of a float.
struct Bfloat16 {
  std::uint16_t bits;

  operator float() const {
    const std::uint32_t whole = static_cast<std::uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &whole, sizeof value);
    return value;
  }
  static Bfloat16 of(float value) {
    std::uint32_t whole;
    std::memcpy(&whole, &value, sizeof whole);
    return {static_cast<std::uint16_t>((whole + 0x7fff + (whole >> 16 & 1)) >> 16)};  // rounds to nearest
  }
};
/// Exact for normal numbers of few bits, which is enough here.
struct Float16 {
  std::uint16_t bits;

  operator float() const {
    std::uint32_t whole = bits & 0x7fffu;
    whole = (bits & 0x8000u) << 16 | (whole == 0 ? 0 : (whole << 13) + (112u << 23));
    float value;
    std::memcpy(&value, &whole, sizeof value);
    return value;
  }
  static Float16 of(float value) {
    std::uint32_t whole;
    std::memcpy(&whole, &value, sizeof whole);
    const std::uint32_t number = whole & 0x7fffffffu;
    const std::uint32_t half = number == 0 ? 0 : (number - (112u << 23)) >> 13;
    return {static_cast<std::uint16_t>((whole >> 16 & 0x8000u) | half)};
  }
};
template <class T>
T plus(T a, T b) {
  return a + b;
}
Bfloat16 plus(Bfloat16 a, Bfloat16 b) {
  return Bfloat16::of(float(a) + float(b));
}
Float16 plus(Float16 a, Float16 b) {
  return Float16::of(float(a) + float(b));
}

/// Adds each rank's piece to the sum, which only has the elements [first, end) of all.
template <class T>
FakeNcclExchange::Read adding(void* receive, std::size_t first, std::size_t end) {
  return [=](int rank, std::size_t offset, const char* data, std::size_t bytes) {
    T* const sum = static_cast<T*>(receive);
    for (std::size_t i = 0; i < bytes / sizeof(T); ++i) {
      const std::size_t at = offset / sizeof(T) + i;
      if (at < first || at >= end) continue;
      T value;
      std::memcpy(&value, data + i * sizeof(T), sizeof(T));
      sum[at - first] = rank == 0 ? value : plus(sum[at - first], value);
    }
  };
}

FakeNcclExchange::Read adding(int type, void* receive, std::size_t first, std::size_t end) {
  if (type == kFloat64) return adding<double>(receive, first, end);
  if (type == kFloat16) return adding<Float16>(receive, first, end);
  if (type == kBfloat16) return adding<Bfloat16>(receive, first, end);
  return adding<float>(receive, first, end);
}

/// Runs a reduction of which this rank gets the elements [first, end).
int reduce(char kind, const void* send, void* receive, std::size_t count, std::size_t first, std::size_t end,
           int type, Comm* comm, cudaStream_t stream) {
  if (type != kFloat64 && type != kFloat32 && type != kBfloat16 && type != kFloat16) return kInvalidArgument;
  const std::size_t bytes = count * size_of(type);
  const std::size_t wanted = (end - first) * size_of(type);
  return put_into(comm, stream,
                  FakeNcclExchange(comm->state, call_of(kind, bytes, type), send, bytes,
                                   adding(type, receive, first, end), [=] {
                                     if (is_to_be_spoilt(bytes))
                                       static_cast<char*>(receive)[wanted - 1] ^= 0x10;
                                   }));
}

/// Copies the bytes of one rank.
FakeNcclExchange::Read copying(int from, void* receive) {
  return [=](int rank, std::size_t offset, const char* data, std::size_t bytes) {
    if (rank == from) std::memcpy(static_cast<char*>(receive) + offset, data, bytes);
  };
}

void end(Comm* comm, bool at_once) {
  FakeNcclState& state = *comm->state;
  if (!at_once && !(comm->registered.empty() && comm->windows.empty()))
    Memory::problem("a communicator is destroyed that has memory registered");
  for (void* block : comm->registered)  // NCCL ends these by itself, but not windows
    g_memory.count(block, -1);
  state.ended = at_once;
  if (at_once) state.slot.leave();
  while (state.graphs != 0 || g_settings.graphs > 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  state.ended = true;
  state.slot.leave();
  delete comm;
}

/// The messages that the calling thread has put into its group so far.
struct Group {
  int depth = 0;
  Comm* comm = nullptr;
  cudaStream_t stream = nullptr;
  std::vector<FakeNcclMessages::Message> messages;
};
thread_local Group t_group;

int end_group() {
  if (--t_group.depth > 0) return kSuccess;
  const Group group = std::exchange(t_group, {});
  if (group.comm == nullptr) return kSuccess;
  return put_into(group.comm, group.stream,
                  FakeNcclMessages(group.comm->state, group.messages, [](char* data, std::size_t bytes) {
                    if (is_to_be_spoilt(bytes)) data[bytes - 1] ^= 0x10;
                  }));
}

/// As in NCCL, a message outside a group is a group of its own.
int add_message(const void* data, bool is_sent, std::size_t count, int type, int peer, Comm* comm,
                cudaStream_t stream) {
  if (peer < 0 || peer >= comm->state->slot.size() || peer >= ddp::kFakeNcclMostPeers ||
      comm->state->slot.rank() >= ddp::kFakeNcclMostPeers)
    return kInvalidArgument;
  ++t_group.depth;
  t_group.comm = comm;
  t_group.stream = stream;
  t_group.messages.push_back(
      {is_sent, peer, static_cast<char*>(const_cast<void*>(data)), count * size_of(type)});
  return end_group();
}

void write_log_once() {
  static std::atomic<bool> written = false;
  const char* const text = std::getenv("FAKE_NCCL_LOG");
  const char* const path = std::getenv("NCCL_DEBUG_FILE");
  if (text == nullptr || path == nullptr || written.exchange(true)) return;
  const int file = ::open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
  (void)!::write(file, text, std::strlen(text));
  ::close(file);
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
  static std::atomic<int> made = 0;
  ++g_settings.ids;
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  std::memset(id, 0, sizeof *id);
  const std::string name =
      "fake-nccl-" + std::to_string(::getpid()) + "-" + std::to_string(now) + "-" + std::to_string(++made);
  std::memcpy(id->internal, name.data(), name.size());
  return kSuccess;
}
const char* ncclGetErrorString(int result) {
  return result == 6 ? "remote process exited or there was a network error" : "an injected error";
}
const char* ncclGetLastError(void*) {
  return "";
}
int ncclCommInitRankScalable(Comm** comm, int ranks, int rank, int ids, UniqueId* id, void*) {
  *comm = nullptr;
  g_settings.ids_of_last_init = ids;
  auto state = enter(id[0].internal, ranks, rank);
  if (!state) return kSystemError;
  *comm = new Comm{std::move(state), nullptr, {}, {}};
  const auto gpus = std::make_shared<std::map<std::string, int>>();
  const auto mine = std::make_shared<std::array<char, 128>>();
  std::snprintf(mine->data(), mine->size(), "%s", gpu_and_host().c_str());
  (*comm)->job = std::make_unique<FakeNcclExchange>(
      (*comm)->state, call_of('i', 0, 0), mine->data(), mine->size(),
      [gpus, mine](int, std::size_t, const char* data, std::size_t) { ++(*gpus)[data]; },
      [gpus, mine, state = (*comm)->state.get()] {
        if ((*gpus)[mine->data()] > 1) state->error = kInvalidUsage;
      });
  return kInProgress;
}
int ncclCommInitRankConfig(Comm** comm, int ranks, UniqueId id, int rank, void* config) {
  return ncclCommInitRankScalable(comm, ranks, rank, 1, &id, config);
}
int ncclCommGetAsyncError(Comm* comm, int* error) {
  *error = g_settings.init_fails != 0 ? g_settings.init_fails : comm->state->error;
  if (*error != kSuccess) return kSuccess;
  if (!comm->state->slot.all_here() || g_settings.init_hangs) {
    *error = kInProgress;
  } else if (comm->job) {
    const bool done = (*comm->job)();
    if (done) comm->job.reset();
    *error = done || comm->state->error != kSuccess ? comm->state->error.load() : kInProgress;
  }
  return kSuccess;
}
int ncclCommAbort(Comm* comm) {
  ++g_settings.aborted;
  for (int hangs = g_settings.abort_hangs; hangs > 0; hangs = g_settings.abort_hangs)
    g_settings.abort_hangs.wait(hangs);
  end(comm, true);
  return kSuccess;
}
int ncclCommDestroy(Comm* comm) {
  ++g_settings.destroyed;
  end(comm, false);
  return kSuccess;
}
int ncclCommSplit(Comm* comm, int color, int key, Comm** child, void*) {
  *child = nullptr;
  struct Parts {
    int mine[2];
    std::map<std::pair<int, int>, int> members;
  };
  if (const int failed = number_of("FAKE_NCCL_SPLIT", 0); failed != 0) {
    comm->state->error = failed;
    return kInProgress;
  }
  const auto parts = std::make_shared<Parts>(Parts{{color, key}, {}});
  const std::shared_ptr<FakeNcclState> state = comm->state;
  const std::string name = state->name + "-" + std::to_string(++state->parts) + "-" + std::to_string(color);
  comm->job = std::make_unique<FakeNcclExchange>(
      state, call_of('p', 0, 0), parts->mine, sizeof parts->mine,
      [parts](int rank, std::size_t, const char* data, std::size_t) {
        int theirs[2];
        std::memcpy(theirs, data, sizeof theirs);
        if (theirs[0] == parts->mine[0]) parts->members[{theirs[1], rank}] = rank;
      },
      [parts, state = state.get(), name, child] {
        if (parts->mine[0] < 0) return;
        const auto place =
            std::distance(parts->members.begin(), parts->members.find({parts->mine[1], state->slot.rank()}));
        auto part = enter(name, static_cast<int>(parts->members.size()), static_cast<int>(place));
        if (part) *child = new Comm{std::move(part), nullptr, {}, {}};
      });
  return kInProgress;
}
int ncclMemAlloc(void** memory, std::size_t bytes) {
  *memory = g_memory.allocate(bytes);
  return kSuccess;
}
int ncclMemFree(void* memory) {
  return g_memory.release(memory);
}
int ncclCommRegister(Comm* comm, void* memory, std::size_t, void** handle) {
  *handle = nullptr;
  if (!g_settings.registers) return kSystemError;
  g_memory.count(memory, 1);
  comm->registered.insert(memory);
  *handle = memory;
  return kSuccess;
}
int ncclCommDeregister(Comm* comm, void* handle) {
  if (comm->registered.erase(handle) == 0) return Memory::problem("a registration ends that never began");
  g_memory.count(handle, -1);
  return kSuccess;
}
int ncclCommWindowRegister(Comm* comm, void* memory, std::size_t bytes, void** window, int flags) {
  *window = nullptr;
  const int windows = number_of("FAKE_NCCL_WINDOWS", 0);
  if (windows == 0) return kSuccess;
  if (windows == 2 || (windows == 3 && comm->state->slot.rank() == 1)) return kSystemError;
  if (flags != 1 || reinterpret_cast<std::uintptr_t>(memory) % 4096 != 0 || bytes % 4096 != 0)
    return Memory::problem("a window that is not symmetric, or not on a border");
  if (windows == 3) {
    g_memory.count(memory, 1);
    comm->windows.insert(memory);
    *window = memory;
    return kSuccess;
  }
  static const char nothing = 0;
  comm->job = std::make_unique<FakeNcclExchange>(
      comm->state, call_of('w', bytes, flags), &nothing, 0, [](int, std::size_t, const char*, std::size_t) {},
      [comm, memory, window] {
        g_memory.count(memory, 1);
        comm->windows.insert(memory);
        *window = memory;
        const std::string path = std::string(std::getenv("FAKE_NCCL_DIR")) + "/windows";
        const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        (void)!::write(file, "w", 1);
        ::close(file);
      });
  return kInProgress;
}
int ncclCommWindowDeregister(Comm* comm, void* window) {
  if (comm->windows.erase(window) == 0) return Memory::problem("a window ends that was never made");
  g_memory.count(window, -1);
  return kSuccess;
}
int ncclAllReduce(const void* send, void* receive, std::size_t count, int type, int, Comm* comm,
                  cudaStream_t stream) {
  write_log_once();
  return reduce('r', send, receive, count, 0, count, type, comm, stream);
}
int ncclReduceScatter(const void* send, void* receive, std::size_t each, int type, int, Comm* comm,
                      cudaStream_t stream) {
  const std::size_t first = each * static_cast<std::size_t>(comm->state->slot.rank());
  const std::size_t count = each * static_cast<std::size_t>(comm->state->slot.size());
  return reduce('x', send, receive, count, first, first + each, type, comm, stream);
}
int ncclBroadcast(const void* send, void* receive, std::size_t count, int type, int root, Comm* comm,
                  cudaStream_t stream) {
  const std::size_t bytes = count * size_of(type);
  // Only the root has data to send.
  const void* const mine = comm->state->slot.rank() == root ? send : receive;
  return put_into(
      comm, stream,
      FakeNcclExchange(comm->state, call_of('b', bytes, type, root), mine, bytes, copying(root, receive)));
}
int ncclAllGather(const void* send, void* receive, std::size_t count, int type, Comm* comm,
                  cudaStream_t stream) {
  const std::size_t each = count * size_of(type);
  return put_into(comm, stream,
                  FakeNcclExchange(comm->state, call_of('g', each, type), send, each,
                                   [=](int rank, std::size_t offset, const char* data, std::size_t bytes) {
                                     const std::size_t place = static_cast<std::size_t>(rank) * each + offset;
                                     std::memcpy(static_cast<char*>(receive) + place, data, bytes);
                                   }));
}

int ncclGroupStart() {
  ++t_group.depth;
  return kSuccess;
}
int ncclGroupEnd() {
  return t_group.depth == 0 ? kInvalidUsage : end_group();
}
int ncclSend(const void* data, std::size_t count, int type, int peer, Comm* comm, cudaStream_t stream) {
  return add_message(data, true, count, type, peer, comm, stream);
}
int ncclRecv(void* data, std::size_t count, int type, int peer, Comm* comm, cudaStream_t stream) {
  return add_message(data, false, count, type, peer, comm, stream);
}

}  // extern "C"
