#include "apps/train/collectives/nccl/nccl_world.h"

#ifdef DDP_HAVE_NCCL
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>

#include "apps/train/collectives/nccl/nccl_comms.h"
#include "apps/train/collectives/nccl/nccl_settings.h"
#include "apps/train/gpu/cuda_runtime.h"
#include "base/files.h"
#include "base/unique_fd.h"
#endif

namespace ddp::train {

#ifdef DDP_HAVE_NCCL

namespace {

ncclDataType_t nccl_type(NumberType type) {
  switch (type) {
    case NumberType::kFloat32: return ncclFloat32;
    case NumberType::kFloat64: return ncclFloat64;
    case NumberType::kBfloat16: return ncclBfloat16;
    case NumberType::kFloat16: return ncclFloat16;
  }
  return ncclFloat32;
}

}  // namespace

Result<> NcclCommunicator::all_reduce_sum(NumberSpan values) {
  const auto enqueue = [&](const NcclFunctions& nccl, std::byte* device, cudaStream_t stream) {
    return nccl.all_reduce(device, device, values.size(), nccl_type(values.type), ncclSum, comm_, stream);
  };
  const NcclComms::BufferRange all{0, values.bytes.size()};
  return comms_->staged(comm_, "all-reduce", values.bytes, all, all, enqueue);
}

Result<> NcclCommunicator::broadcast(std::span<std::byte> data, int root) {
  const NcclComms::BufferRange all{0, data.size()}, none;
  const auto enqueue = [&](const NcclFunctions& nccl, std::byte* device, cudaStream_t stream) {
    return nccl.broadcast(device, device, data.size(), ncclUint8, root, comm_, stream);
  };
  return comms_->staged(comm_, "broadcast", data, rank_ == root ? all : none, rank_ == root ? none : all,
                        enqueue);
}

Result<> NcclCommunicator::all_gather_parts(std::span<std::byte> parts) {
  const std::size_t size = parts.size() / static_cast<std::size_t>(world_size_);
  const NcclComms::BufferRange own{size * static_cast<std::size_t>(rank_), size};
  const auto enqueue = [&](const NcclFunctions& nccl, std::byte* device, cudaStream_t stream) {
    return nccl.all_gather(device + own.offset, device, size, ncclUint8, comm_, stream);
  };
  return comms_->staged(comm_, "all-gather", parts, own, {0, parts.size()}, enqueue);
}

Result<> NcclCommunicator::barrier() {
  std::byte one[sizeof(float)] = {};
  const auto enqueue = [&](const NcclFunctions& nccl, std::byte* device, cudaStream_t stream) {
    return nccl.all_reduce(device, device, 1, ncclFloat32, ncclSum, comm_, stream);
  };
  return comms_->staged(comm_, "barrier", one, {0, sizeof one}, {}, enqueue);
}

Result<> NcclCommunicator::enqueue_on_device(const DeviceOperation& operation, void* stream_of_caller) {
  auto* const data = static_cast<std::byte*>(operation.data);
  const auto* const sent = operation.sent != nullptr ? static_cast<const std::byte*>(operation.sent) : data;
  const std::size_t count = operation.count, part = count / static_cast<std::size_t>(world_size_);
  const std::size_t part_bytes = part * size_of(operation.type);
  const std::size_t own = static_cast<std::size_t>(rank_) * part_bytes;
  const ncclDataType_t type = nccl_type(operation.type);
  auto* const stream = static_cast<cudaStream_t>(stream_of_caller);
  const auto exchange = [&](const NcclFunctions& nccl, int to, std::size_t to_at, int from,
                            std::size_t from_at, std::size_t numbers) {
    const auto sending = nccl.send(sent + to_at, numbers, type, to, comm_, stream);
    if (sending != ncclSuccess && sending != ncclInProgress) return sending;
    return nccl.recv(data + from_at, numbers, type, from, comm_, stream);
  };
  const auto exchange_all = [&](const NcclFunctions& nccl) {
    if (operation.kind == CollectiveKind::kSendReceive)
      return exchange(nccl, operation.to, 0, operation.from, 0, count);
    ncclResult_t result = ncclSuccess;
    for (int rank = 0; rank < world_size_ && (result == ncclSuccess || result == ncclInProgress); ++rank) {
      const std::size_t at = static_cast<std::size_t>(rank) * part_bytes;
      result = exchange(nccl, rank, at, rank, at, part);
    }
    return result;
  };
  return comms_->call(comm_, kind_text(operation.kind), [&](const NcclFunctions& nccl) {
    switch (operation.kind) {
      case CollectiveKind::kAllReduce:
        return nccl.all_reduce(sent, data, count, type, ncclSum, comm_, stream);
      case CollectiveKind::kBroadcast:
        return nccl.broadcast(sent, data, count, type, operation.root, comm_, stream);
      case CollectiveKind::kReduceScatter:
        return nccl.reduce_scatter(sent, data + own, part, type, ncclSum, comm_, stream);
      case CollectiveKind::kAllGather: return nccl.all_gather(sent + own, data, part, type, comm_, stream);
      case CollectiveKind::kAllToAll:
      case CollectiveKind::kSendReceive: {
        // The messages of a group begin together. A group must end also after an error.
        if (const auto begun = nccl.group_start(); begun != ncclSuccess) return begun;
        const ncclResult_t called = exchange_all(nccl), ended = nccl.group_end();
        return called == ncclSuccess || called == ncclInProgress ? ended : called;
      }
      default: return ncclInvalidArgument;
    }
  });
}

Result<> NcclCommunicator::wait_for_device(const IsDeviceDone& done, std::string_view operation) {
  return comms_->wait(comm_, operation, done);
}

void NcclCommunicator::on_end(GraphOwner owner) {
  comms_->on_end(std::move(owner));
}

DeviceMemory NcclCommunicator::share_device_memory(std::size_t bytes) {
  return comms_->share_memory(comm_, bytes);
}

Result<std::unique_ptr<Communicator>> NcclCommunicator::split(int color, int rank, int size) {
  auto* const part = DDP_TRY(comms_->split(comm_, color, rank));
  if (part == nullptr) return std::unique_ptr<Communicator>();
  return std::unique_ptr<Communicator>(std::make_unique<NcclCommunicator>(comms_, part, rank, size));
}

namespace {

/// A communicator with nodes as ranks. The first rank of each node has a lane to the others and passes
/// results on inside the node. So the ranks of a node have the same bits, whatever NCCL chooses.
class NcclBetween final : public Communicator {
 public:
  /// `lane` is null on all but the first rank of a node.
  NcclBetween(int node, int nodes, std::unique_ptr<Communicator> lane, std::unique_ptr<Communicator> inside)
      : node_(node), nodes_(nodes), lane_(std::move(lane)), inside_(std::move(inside)) {}

  int rank() const override { return node_; }
  int world_size() const override { return nodes_; }
  Result<> all_reduce_sum(NumberSpan values) override {
    if (lane_) DDP_TRY(lane_->all_reduce_sum(values));
    return broadcast_inside(values.bytes);
  }

  Result<> broadcast(std::span<std::byte> data, int root) override {
    if (lane_) DDP_TRY(lane_->broadcast(data, root));
    return broadcast_inside(data);
  }

  Result<std::vector<std::uint64_t>> all_gather(std::span<const std::uint64_t> mine) override {
    std::vector<std::uint64_t> all(mine.size() * static_cast<std::size_t>(nodes_));
    if (lane_) all = DDP_TRY(lane_->all_gather(mine));
    DDP_TRY(broadcast_inside(std::as_writable_bytes(std::span(all))));
    return all;
  }

  Result<> barrier() override {
    // Inside first: a node has arrived when all its ranks have.
    DDP_TRY(inside_->barrier());
    if (lane_) DDP_TRY(lane_->barrier());
    return inside_->barrier();
  }

 private:
  Result<> broadcast_inside(std::span<std::byte> data) { return inside_->broadcast(data, 0); }

  int node_;
  int nodes_;
  std::unique_ptr<Communicator> lane_;
  std::unique_ptr<Communicator> inside_;
};

/// Memory file in which NCCL writes how it connects; it has no name. NCCL keeps it open, so it stays.
UniqueFd& capture() {
  static UniqueFd file;
  return file;
}

/// Sets NCCL's variables once, before NCCL reads them at its first use.
void set_variables(const WorldConfig& config) {
  static bool done = false;
  if (std::exchange(done, true)) return;
  std::vector<NcclVariable> variables;
  if (config.share_gpu) {
    const bool one_node = config.local_world_size == config.world_size;
    // The identity has the process id: a later attempt may give this process another rank, and NCCL reads it
    // once.
    variables = share_gpu_variables(concat(config.job_id, "-", config.rank, "-", ::getpid()), one_node);
  }
  UniqueFd file(::memfd_create("nccl", MFD_CLOEXEC));
  if (file) {
    const auto captured = capture_variables("/proc/self/fd/" + std::to_string(file.get()), ::getenv);
    variables.insert(variables.end(), captured.begin(), captured.end());
    if (!captured.empty()) capture() = std::move(file);
  }
  for (const NcclVariable& one : variables)
    ::setenv(one.name.c_str(), one.value.c_str(), one.always ? 1 : 0);
}

Result<int> nccl_gpu(int local_rank, bool shared) {
  const auto gpus = count_gpus();
  if (!gpus) return usage_error("--comm nccl needs an NVIDIA GPU: ", gpus.error().text);
  const auto gpu = choose_gpu(*gpus, local_rank, gpus_are_restricted(), shared);
  if (gpu) return gpu;
  return usage_error("--comm nccl: ", gpu.error().text, "; start one rank per GPU, or use --share-gpu");
}

/// Position of a rank among the nodes, which are numbered by their first ranks.
struct NodePosition {
  int nodes = 0;   ///< number of nodes
  int number = 0;  ///< number of this rank's node
  int size = 0;    ///< ranks of this node
  int local = 0;   ///< ranks of this node before this rank
};
NodePosition node_position(const std::vector<std::uint64_t>& node_of, int rank) {
  const std::uint64_t mine = node_of[static_cast<std::size_t>(rank)];
  NodePosition position;
  std::set<std::uint64_t> seen;
  for (std::size_t other = 0; other < node_of.size(); ++other) {
    const bool first = seen.insert(node_of[other]).second;
    if (first && node_of[other] == mine) position.number = position.nodes;
    if (first) ++position.nodes;
    if (node_of[other] != mine) continue;
    ++position.size;
    if (other < static_cast<std::size_t>(rank)) ++position.local;
  }
  return position;
}

/// Sets the line and the warning of `world` by what NCCL's log says about the transports.
void describe_transports(const NcclLibrary& library, NcclWorld& world) {
  NcclLog log = read_nccl_log(read_whole(capture().get()));
  if (log.version.empty()) log.version = nccl_version_text(library.version());
  log.version += " (" + library.path() + ")";
  world.line = nccl_line(log);
  if (!sockets_are_wanted(::getenv)) world.warning = sockets_warning(log, active_infiniband());
}

/// Makes communicators of this node's ranks, and of the first ranks of all nodes.
Result<> join_nodes(const std::shared_ptr<NcclComms>& comms, ncclComm_t whole, const WorldConfig& config,
                    NcclWorld& world) {
  const std::uint64_t mine[] = {static_cast<std::uint64_t>(config.node)};
  const auto nodes = DDP_TRY(world.communicator->all_gather(mine));
  const NodePosition position = node_position(nodes, config.rank);
  const auto inside = DDP_TRY(comms->split(whole, position.number, config.rank));
  const auto lane = DDP_TRY(comms->split(whole, position.local == 0 ? 0 : -1, config.rank));
  world.node_count = position.nodes;
  const auto ranks = [&](ncclComm_t comm, int rank, int size) -> std::unique_ptr<Communicator> {
    if (size == 1) return std::make_unique<SingleCommunicator>();
    return std::make_unique<NcclCommunicator>(comms, comm, rank, size);
  };
  world.node = ranks(inside, position.local, position.size);
  world.between =
      std::make_unique<NcclBetween>(position.number, position.nodes,
                                    lane != nullptr ? ranks(lane, position.number, position.nodes) : nullptr,
                                    ranks(inside, position.local, position.size));
  return {};
}

}  // namespace

Result<std::string> load_nccl(const WorldConfig& config) {
  DDP_TRY(nccl_gpu(config.local_rank, config.share_gpu));
  set_variables(config);
  const auto library = NcclLibrary::open();
  return library ? Result<std::string>((*library)->name()) : library.error();
}

std::vector<std::string> nccl_transports() {
  const NcclLog log = read_nccl_log(read_whole(capture().get()));
  const auto library = NcclLibrary::open();
  std::vector<std::string> transports = transports_of(log);
  transports.insert(transports.begin(),
                    "NCCL " + (library ? nccl_version_text((*library)->version()) : log.version));
  return transports;
}

void report_nccl_warnings() {
  std::set<std::string> seen;
  for (const std::string& text : read_nccl_log(read_whole(capture().get())).warnings)
    if (seen.insert(text).second) std::fprintf(stderr, "train: NCCL warns: %s\n", text.c_str());
}

Result<NcclGpuMemory> nccl_gpu_memory(int local_rank, int local_world_size, bool share_gpu) {
  const auto gpu = DDP_TRY(nccl_gpu(local_rank, share_gpu));
  const auto gpus = DDP_TRY(count_gpus());
  cudaDeviceProp properties{};
  DDP_TRY(DDP_CUDA_CHECK(cudaGetDeviceProperties, &properties, gpu));
  // Ranks that each see one GPU may see different GPUs.
  const bool own = !share_gpu || (gpus_are_restricted() && gpus == 1);
  const int ranks = own ? 1 : (std::max(local_world_size, 1) + gpus - 1) / gpus;
  return NcclGpuMemory{concat("GPU ", gpu, " (", properties.name, ")"),
                       properties.totalGlobalMem / static_cast<std::size_t>(ranks)};
}

Result<NcclWorld> connect_nccl(const WorldConfig& config, PeerDirectory& directory) {
  DDP_TRY(load_nccl(config));
  const auto gpu = DDP_TRY(nccl_gpu(config.local_rank, config.share_gpu));
  const auto library = DDP_TRY(NcclLibrary::open());
  auto world = connect_nccl_over(library, gpu, config, directory);
  if (!world) return world;
  // From 2.22 on, NCCL connects in the first operation, and its log says nothing about transports before.
  DDP_TRY(world->communicator->barrier());
  describe_transports(*library, *world);
  if (config.rank == 0) std::printf("%s%s\n", config.remark.c_str(), world->line.c_str());
  // Each node has its own network.
  if (config.local_rank == 0 && !world->warning.empty()) {
    std::fprintf(stderr, "train: rank %d: %s\n", config.rank, world->warning.c_str());
  }
  return world;
}

Result<NcclWorld> connect_nccl_over(std::shared_ptr<const NcclLibrary> library, int gpu,
                                    const WorldConfig& config, PeerDirectory& directory) {
  WorldConfig limits = config;
  // A rank that waits longer for a step waits as long for ranks that start late.
  limits.start_timeout = std::max(config.start_timeout, config.step_timeout);
  const auto comms = DDP_TRY(
      within("rank " + std::to_string(config.rank), NcclComms::make(library, gpu, std::move(limits))));
  const auto comm = DDP_TRY(comms->open(directory, "world", config.rank, config.world_size));
  NcclWorld world;
  world.communicator = std::make_unique<NcclCommunicator>(comms, comm, config.rank, config.world_size);
  describe_transports(*library, world);
  if (config.with_nodes) DDP_TRY(join_nodes(comms, comm, config, world));
  return world;
}

#else

Result<std::string> load_nccl(const WorldConfig&) {
  return Error{
      ErrorCode::kUsage,
      "--comm nccl: this build of train has no NCCL; build it on a machine with the CUDA toolkit and "
      "NCCL's header (nccl.h)"};
}

Result<NcclGpuMemory> nccl_gpu_memory(int, int, bool) {
  return load_nccl({}).error();
}

Result<NcclWorld> connect_nccl(const WorldConfig& config, PeerDirectory&) {
  return load_nccl(config).error();
}

std::vector<std::string> nccl_transports() {
  return {"no NCCL"};
}

void report_nccl_warnings() {}

#endif  // DDP_HAVE_NCCL

}  // namespace ddp::train
