#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <ranges>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "apps/train/collectives/schedule/collective_machine.h"
#include "base/result.h"

namespace ddp::train {

enum class NumberType : std::uint8_t { kFloat32, kFloat64, kBfloat16, kFloat16 };

/// Names as in nccl-tests.
constexpr std::string_view type_text(NumberType type) {
  constexpr std::string_view kNames[] = {"float", "double", "bfloat16", "half"};
  return kNames[static_cast<std::size_t>(type)];
}

inline std::size_t size_of(NumberType type) {
  return type == NumberType::kFloat64 ? 8 : type == NumberType::kFloat32 ? 4 : 2;
}

/// Floats or doubles in the host's memory.
struct NumberSpan {
  std::span<std::byte> bytes;
  NumberType type = NumberType::kFloat32;

  template <std::ranges::contiguous_range Range>
  requires std::floating_point<std::ranges::range_value_t<Range>> NumberSpan(
      Range&& numbers)  // NOLINT(google-explicit-constructor): it only views them
      : bytes(std::as_writable_bytes(std::span(numbers))),
        type(sizeof *std::ranges::data(numbers) == 8 ? NumberType::kFloat64 : NumberType::kFloat32) {}

  std::size_t size() const { return bytes.size() / size_of(type); }
  /// Calls call(std::span<T>) with the type of the numbers.
  template <class Call>
  auto typed(const Call& call) const {
    if (type == NumberType::kFloat64) return call(std::span(reinterpret_cast<double*>(bytes.data()), size()));
    return call(std::span(reinterpret_cast<float*>(bytes.data()), size()));
  }
};

/// Returns the arithmetic of the numbers.
inline VectorSum vector_sum(NumberSpan numbers) {
  return numbers.typed([]<class T>(std::span<T>) { return vector_sum<T>(); });
}

/// An operation of ranks on `count` numbers in GPU memory. The numbers of kReduceScatter, kAllGather and
/// kAllToAll are world_size() equal parts; part r belongs to rank r. Reductions are sums. All ranks call it;
/// of kSendReceive, only those that are in one.
struct DeviceOperation {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  void* data = nullptr;  ///< gets the result
  std::size_t count = 0;
  NumberType type = NumberType::kFloat32;
  int root = 0;  ///< of kBroadcast
  /// What this rank gives, laid out as `data`. Null: in place; kAllToAll and kSendReceive have no such form.
  const void* sent = nullptr;
  int to = 0, from = 0;  ///< ranks of kSendReceive
};

/// Zeroed GPU memory. A registered piece is read and written by the network without copies. A window also
/// lies in one address space with those of the other ranks.
struct DeviceMemory {
  enum class RegistrationKind : std::uint8_t { kNone, kRegistered, kWindow };
  std::span<std::byte> bytes;
  RegistrationKind registration = RegistrationKind::kNone;
};

/// Returns whether work of the GPU is complete; called repeatedly. Its errors are the GPU's.
using IsDeviceDone = std::function<Result<bool>()>;

/// The owner of captured graphs that hold operations between ranks, for the end of the network. NCCL's end
/// waits for the destruction of these graphs, and CUDA may let a destruction wait for the graph's work, which
/// a lost peer keeps from ending. The calls come from the communicator's thread.
struct GraphOwner {
  std::function<void()> abandon_capture;  ///< ends an unfinished capture and drops what it captured
  std::function<bool()> is_idle;          ///< returns true if no graph is in flight; never blocks
  std::function<void()> drop;             ///< destroys the graphs
};

/// Transport between the ranks. kAuto: shared memory inside a node if the environment says which ranks share
/// a node, TCP between nodes. kShm: the same, but an environment that does not say so is an error. kTcp: TCP
/// only. kNccl: NVIDIA's library, over GPUs.
enum class CommKind : std::uint8_t { kAuto, kTcp, kShm, kNccl };

/// The collectives that data-parallel training needs. All ranks call the same operations in the same order
/// with the same sizes. An operation returns when this rank's part is complete. Results are bit-equal on all
/// ranks. Blocking, one thread.
///
/// Errors: kLinkLost (a peer's connection broke), kTimeout (a step of the operation made no progress in
/// time), kProtocol (a peer is at another operation), kCancelled (revoked through the interrupt descriptor).
/// The text names this rank, the peer, its address and the operation. It ends in the operation's name: the
/// caller appends " of …". After an error, every call fails, and the contents of buffers are undefined.
class Communicator {
 public:
  /// Identifies an all-reduce in flight; never 0.
  using Handle = std::uint64_t;

  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  /// Returns the rank of the job's world whose loss ended the work; -1: not known.
  virtual int lost_rank() const { return -1; }

  /// Replaces each element by its sum over the ranks.
  virtual Result<> all_reduce_sum(NumberSpan values) = 0;
  /// Copies `data` of `root` to all ranks.
  virtual Result<> broadcast(std::span<std::byte> data, int root) = 0;
  /// Returns a few numbers of each rank, in rank order.
  virtual Result<std::vector<std::uint64_t>> all_gather(std::span<const std::uint64_t> mine) {
    std::vector<std::uint64_t> all(mine.size() * static_cast<std::size_t>(world_size()));
    std::ranges::copy(mine, all.begin() + static_cast<std::ptrdiff_t>(mine.size()) * rank());
    DDP_TRY(all_gather_parts(std::as_writable_bytes(std::span(all))));
    return all;
  }
  /// Returns when all ranks have called it.
  virtual Result<> barrier() = 0;

  /// `values` are world_size() parts of equal size (the caller pads); part r belongs to rank r. Afterwards,
  /// each rank's own part holds its sum, bit-equal to that of all_reduce_sum(). The contents of the other
  /// parts are undefined.
  virtual Result<> reduce_scatter_sum(NumberSpan values) { return all_reduce_sum(values); }
  /// Copies each rank's own part to all ranks; equal parts as above.
  virtual Result<> all_gather_parts(std::span<std::byte> parts) {
    const std::size_t size = parts.size() / static_cast<std::size_t>(world_size());
    for (int root = 0; root < world_size(); ++root)
      DDP_TRY(broadcast(parts.subspan(static_cast<std::size_t>(root) * size, size), root));
    return {};
  }

  /// Copies `mine` of each rank, of equal size everywhere, to `all` of `root`, in rank order. The other
  /// ranks' `all` is not used.
  virtual Result<> gather(std::span<const std::byte> mine, std::span<std::byte> all, int root) {
    return gather_pieces(mine, all, root,
                         [this](std::span<std::byte> parts) { return all_gather_parts(parts); });
  }

  /// Returns zeroed memory in which large sums are faster, valid as long as this object; empty: there is
  /// none. All ranks call it with the same size, before their first sum. Errors appear in the next operation.
  virtual std::span<std::byte> share_memory(std::size_t) { return {}; }

  /// Starts an all-reduce that may run while the caller computes. `values` belong to the all-reduce until
  /// wait(). Waits come in the order of the starts. All must be done before any other operation.
  virtual Result<Handle> start_all_reduce(NumberSpan values) {
    DDP_TRY(all_reduce_sum(values));
    return Handle{1};
  }
  virtual Result<> wait(Handle) { return {}; }
  /// Advances the started all-reduces as far as possible without blocking.
  virtual Result<> progress() { return {}; }

  // Operations on GPU memory. They are part of the work of a stream, mostly inside a captured graph that is
  // launched again and again. So enqueuing, launching and waiting are three calls. A stream is a
  // cudaStream_t, passed as void* so that code in between needs no CUDA.

  /// False: only the host's memory can be used.
  virtual bool has_device_operations() const { return false; }
  /// Puts the operation into `stream`, and returns when it is enqueued. The stream may be under capture. NCCL
  /// then works on another thread, so the capture's mode must be relaxed.
  virtual Result<> enqueue_on_device(const DeviceOperation&, void* /*stream*/) {
    return Error{ErrorCode::kInternal, "this transport has no operations on GPU memory"};
  }
  /// Records that an operation begins, by itself or in a graph; for the flight recorder.
  virtual void launched(const DeviceOperation&) {}
  /// Waits until done() returns true, while it watches the deadline, the revocation and the network's own
  /// errors. The runtime's own waits would wait forever for a rank that is missing. Call it once for each
  /// launched() operation, in launch order.
  virtual Result<> wait_for_device(const IsDeviceDone&, std::string_view /*operation*/) { return {}; }
  /// Sets the owner of graphs that hold operations. When the network ends in any way (its end, an error), the
  /// graphs are dropped once they are idle. They stay if they do not become idle: the GPUs are given up then.
  virtual void on_end(GraphOwner) {}
  /// Returns GPU memory for faster operations, valid as long as this object; empty: there is none. All ranks
  /// call it with the same size, before their first operation.
  virtual DeviceMemory share_device_memory(std::size_t) { return {}; }

  /// Returns a communicator of the ranks with one `color`; null if it is below 0. `rank` and `size`: of this
  /// rank in its part. All ranks call it. It ends with this one.
  virtual Result<std::unique_ptr<Communicator>> split(int /*color*/, int /*rank*/, int /*size*/) {
    return Error{ErrorCode::kInternal, "this transport has no groups of ranks"};
  }

 protected:
  /// Returns how many bytes of each rank are gathered at once, so that no rank needs room for all twice.
  std::size_t gather_piece() const {
    return std::max<std::size_t>((4 << 20) / static_cast<std::size_t>(world_size()), 64 << 10);
  }
  /// Carries out gather() in such pieces. `collect` gives `root` the own part of each rank; equal parts as
  /// above.
  Result<> gather_pieces(std::span<const std::byte> mine, std::span<std::byte> all, int root,
                         const std::function<Result<>(std::span<std::byte> parts)>& collect) {
    const auto world = static_cast<std::size_t>(world_size());
    std::vector<std::byte> parts(std::min(mine.size(), gather_piece()) * world);
    for (std::size_t at = 0, size = 0; at < mine.size(); at += size) {
      size = std::min(gather_piece(), mine.size() - at);
      const auto piece = mine.subspan(at, size);
      std::ranges::copy(piece, parts.data() + static_cast<std::size_t>(rank()) * size);
      DDP_TRY(collect(std::span(parts).first(size * world)));
      for (std::size_t from = 0; rank() == root && from < world; ++from)
        std::copy_n(parts.data() + from * size, size, all.data() + from * mine.size() + at);
    }
    return {};
  }
};

/// Returns a value of each rank, in rank order.
template <class Value>
Result<std::vector<Value>> gather_values(Communicator& ranks, const Value& mine) {
  std::array<std::uint64_t, sizeof(Value) / sizeof(std::uint64_t)> words;
  static_assert(std::is_trivially_copyable_v<Value> && sizeof words == sizeof mine);
  std::memcpy(words.data(), &mine, sizeof mine);
  const auto all = DDP_TRY(ranks.all_gather(words));
  std::vector<Value> values(all.size() / words.size());
  std::memcpy(static_cast<void*>(values.data()), all.data(), all.size() * sizeof all[0]);
  return values;
}

/// Completes an error of a communicator: "… during all-reduce" + " of step 17".
inline Error of(Error error, const std::string& what) {
  error.text += " of " + what;
  return error;
}
template <class T>
Result<T> of(Result<T> result, const std::string& what) {
  if (!result) return of(std::move(result).error(), what);
  return result;
}

/// A world of one rank: every operation completes at once.
class SingleCommunicator : public Communicator {
 public:
  int rank() const override { return 0; }
  int world_size() const override { return 1; }
  Result<> all_reduce_sum(NumberSpan) override { return {}; }
  Result<> broadcast(std::span<std::byte>, int) override { return {}; }
  Result<> barrier() override { return {}; }
};

/// A rank's place in one attempt of a job.
struct RankPlace {
  std::string job_id;
  std::uint32_t attempt = 0;
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 0;  ///< 0: unknown
  int node = -1;             ///< -1: unknown
};

/// A group of ranks that connect with each other, and the limits of their waits. Rank and world_size are
/// those in the group.
struct GroupConfig : RankPlace {
  std::string group;       ///< empty: the whole world; else the unique name of the connected ranks: "node0"
  std::vector<int> names;  ///< the ranks in the world, by `rank`; empty: the same
  std::uint32_t scalar_bytes = 4;
  std::chrono::milliseconds start_timeout{120'000};  ///< until all neighbors have connected
  std::chrono::milliseconds step_timeout{60'000};    ///< of each step of an operation
  int interrupt = -1;  ///< descriptor that ends any wait when it is readable; not owned

  int name(int number) const { return names.empty() ? number : names[static_cast<std::size_t>(number)]; }
  /// Names a rank of the group in messages: "rank 3".
  std::string rank_text(int number) const { return "rank " + std::to_string(name(number)); }
  std::string me() const { return rank_text(rank); }
};

/// Lets the ranks of one attempt exchange addresses and similar texts.
class PeerDirectory {
 public:
  virtual ~PeerDirectory() = default;
  /// Returns this machine's address as the others reach it, without port.
  virtual Result<std::string> local_address() = 0;
  virtual Result<> share(const std::string& name, const std::string& text) = 0;
  /// Waits until a rank has shared `name`; fails with kTimeout otherwise.
  virtual Result<std::string> find(const std::string& name, std::chrono::milliseconds timeout) = 0;
};

/// Finds what a rank shares. Errors begin with `me`; that of a rank which did not come says `missing`.
Result<std::string> find_shared(PeerDirectory& directory, const std::string& name,
                                std::chrono::milliseconds timeout, const std::string& me,
                                const std::string& missing);

/// Returns true if the descriptor that revokes an attempt is readable; -1 never is.
bool is_revoked(int interrupt);
Error revoked_error();

/// Returns within `longest` whether this rank has finished the work that it, or others, wait for.
using IsThrough = std::function<bool(std::chrono::milliseconds longest)>;
/// Calls `through` for at most `longest`. Fails with kCancelled soon after `interrupt` (a descriptor, or -1)
/// becomes readable.
Result<bool> wait_until_through(const IsThrough& through, std::chrono::milliseconds longest, int interrupt);

/// Gives the failure of the lowest rank that has one to all ranks, with the same code and text. So a file
/// that only rank 0 reads ends all ranks for the same reason. All ranks call it.
Result<> share_outcome(Communicator& world, const Result<>& mine);

/// Makes the ranks meet every `sign` until all have finished, so that long work does not look like silence.
/// `sign` is well below the time limit of `world`'s operations. An error of such an operation ends the call
/// at once, as does `interrupt` (a descriptor, or -1).
Result<> meet_until(Communicator& world, const IsThrough& through, std::chrono::milliseconds sign,
                    int interrupt = -1);

/// Shares the outcome of `work` that may take longer than that limit (a slow disk). Each rank does its own
/// work on another thread, and the ranks meet until all have finished.
Result<> share_outcome(Communicator& world, const std::function<Result<>()>& work,
                       std::chrono::milliseconds sign, int interrupt = -1);

}  // namespace ddp::train
