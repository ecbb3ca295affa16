#include "apps/train/world/world.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <string_view>

#include "apps/train/collectives/cpu/node_communicator.h"
#include "apps/train/collectives/cpu/shm_group.h"
#include "apps/train/collectives/nccl/nccl_world.h"
#include "apps/train/flight_recorder/recorded_communicator.h"
#include "apps/train/gpu/device_model.h"
#include "base/program.h"
#include "base/text.h"

namespace ddp::train {

namespace {

using Getter = std::function<const char*(const char*)>;

Result<std::int64_t> number(const Getter& get, const char* name, std::int64_t least, std::int64_t most) {
  const char* value = get(name);
  if (value == nullptr) {
    return usage_error(name, " is not set; start train with ddplaunch (or torchrun), or ",
                       "without RANK and WORLD_SIZE for a single process");
  }
  const auto result = parse_number<std::int64_t>(value);
  if (!result || *result < least || *result > most) {
    return usage_error(name, "=\"", value, "\" is not a number from ", least, " to ", most);
  }
  return *result;
}

}  // namespace

Result<WorkerEnvironment> read_worker_environment(const Getter& get) {
  constexpr std::int64_t kMost = 1'000'000;
  WorkerEnvironment result;
  if (const char* control = get("DDPLAUNCH_CONTROL")) result.control = control;
  if (const char* collectives = get("DDPLAUNCH_COLLECTIVES")) result.collectives = collectives;
  if (get("RANK") == nullptr && get("WORLD_SIZE") == nullptr) return result;

  const auto read_field = [&get]<class Field>(Field& field, const char* name, std::int64_t least,
                                              std::int64_t most, bool needed = false) -> Result<> {
    if (get(name) == nullptr && !needed) return {};
    const auto value = DDP_TRY(number(get, name, least, most));
    field = static_cast<Field>(value);
    return {};
  };
  DDP_TRY(read_field(result.world_size, "WORLD_SIZE", 1, kMost, true));
  DDP_TRY(read_field(result.rank, "RANK", 0, result.world_size - 1, true));
  DDP_TRY(read_field(result.local_rank, "LOCAL_RANK", 0, kMost));
  DDP_TRY(read_field(result.local_world_size, "LOCAL_WORLD_SIZE", 1, result.world_size));
  DDP_TRY(read_field(result.node, "GROUP_RANK", 0, kMost));
  DDP_TRY(
      read_field(result.attempt, "TORCHELASTIC_RESTART_COUNT", 0, std::numeric_limits<std::uint32_t>::max()));
  DDP_TRY(read_field(result.max_restarts, "TORCHELASTIC_MAX_RESTARTS", 0, std::numeric_limits<int>::max()));
  if (const char* run_id = get("TORCHELASTIC_RUN_ID")) result.job_id = run_id;
  if (result.world_size == 1) return result;

  DDP_TRY(read_field(result.master_port, "MASTER_PORT", 1, 65'535, true));
  const char* address = get("MASTER_ADDR");
  if (address == nullptr || *address == 0) {
    return usage_error("MASTER_ADDR is not set, but WORLD_SIZE is ", result.world_size);
  }
  result.master_addr = address;
  const char* agent_store = get("TORCHELASTIC_USE_AGENT_STORE");
  result.agent_store = agent_store != nullptr && std::string_view(agent_store) == "True";
  return result;
}

namespace {

/// The ranks of a node, as its first rank reports them.
struct NodeRankRange {
  int first = 0;
  int count = 0;
};

std::string encode(const NodeRankRange& ranks) {
  return concat(ranks.first, " ", ranks.count);
}

std::optional<NodeRankRange> decode(std::string_view text) {
  const auto first = parse_number<int>(take_field(text, ' '));
  const auto count = parse_number<int>(text);
  if (!first || !count || *first < 0 || *count < 1) return std::nullopt;
  return NodeRankRange{*first, *count};
}

/// Returns all nodes with their ranks, as the first rank of each node reports them through the store. All
/// ranks call it. kTimeout names the node that is missing; kUsage: the environment contradicts itself.
Result<NodeMap> find_nodes(const WorldConfig& config, PeerDirectory& directory) {
  NodeMap map;
  map.node = config.node;
  map.local_rank = config.local_rank;
  const auto key = [](int node) { return "node/" + std::to_string(node); };
  if (config.local_rank == 0)
    DDP_TRY(within(config.me(),
                   directory.share(key(config.node), encode({config.rank, config.local_world_size}))));
  for (int node = 0, known = 0; known < config.world_size; ++node) {
    const auto text = DDP_TRY(
        find_shared(directory, key(node), config.start_timeout, config.me(),
                    concat(" cannot find node ", node,
                           ": its first rank has not reached the store in time; check that it started")));
    const auto ranks = decode(text);
    if (!ranks)
      return error_of(ErrorCode::kProtocol, config.me(), ": node ", key(node), " is \"", text, "\"");
    map.ranks.emplace_back(static_cast<std::size_t>(ranks->count));
    std::iota(map.ranks.back().begin(), map.ranks.back().end(), ranks->first);
    known += ranks->count;
  }
  const bool mine =
      static_cast<std::size_t>(map.node) < map.ranks.size() &&
      static_cast<std::size_t>(map.local_rank) < map.ranks[static_cast<std::size_t>(map.node)].size() &&
      map.rank() == config.rank;
  if (mine && map.world_size() == config.world_size) return map;
  return usage_error(config.me(),
                     ": RANK contradicts GROUP_RANK, LOCAL_RANK and LOCAL_WORLD_SIZE: "
                     "the ranks of a node must be consecutive; --comm tcp works without this");
}

bool knows_nodes(const WorldConfig& config) {
  return config.node >= 0 && config.local_world_size > 0;
}

/// Sets this rank's place in the job.
WorldOptions placed(const WorkerEnvironment& environment, WorldOptions options) {
  static_cast<RankPlace&>(options) = environment;
  return options;
}

Result<std::shared_ptr<ShmGroup>> open_group(const GroupConfig& config, PeerDirectory& directory) {
  auto descriptors = DDP_TRY(meet_node(config, directory));
  auto group = DDP_TRY(ShmGroup::open(config, std::move(descriptors)));
  return std::make_shared<ShmGroup>(std::move(group));
}

/// Returns one node of `size` ranks with the numbers 0, 1, …
NodeMap node_alone(std::size_t size, int local_rank) {
  NodeMap map;
  map.ranks.emplace_back(size);
  std::iota(map.ranks[0].begin(), map.ranks[0].end(), 0);
  map.local_rank = local_rank;
  return map;
}

/// Connects shared memory inside the node, and TCP along this rank's lane.
Result<> join_by_nodes(const WorldOptions& options, NodeMap map, CommWorld& world) {
  GroupConfig config = options;
  config.group = "node" + std::to_string(map.node);
  config.rank = map.local_rank;
  config.names = map.ranks[static_cast<std::size_t>(map.node)];
  config.world_size = static_cast<int>(config.names.size());
  const std::shared_ptr<ShmGroup> shared = DDP_TRY(open_group(config, *world.directory));

  std::shared_ptr<TcpCommunicator> lane;
  if (map.ranks.size() > 1 && !map.lane().empty()) {
    GroupConfig peers = options;
    peers.rank = map.node;
    peers.world_size = static_cast<int>(map.ranks.size());
    peers.group = "lane" + std::to_string(map.local_rank);
    peers.names = map.lane();
    lane = DDP_TRY(connect_peers(peers, *world.directory));
  }
  if (options.with_nodes) {
    world.node =
        std::make_unique<NodeCommunicator>(node_alone(config.names.size(), map.local_rank), shared, lane);
    if (lane || map.ranks.size() > 1) {
      world.between = std::make_unique<BetweenNodes>(map, shared, lane);
    } else {
      world.between = std::make_unique<SingleCommunicator>();
    }
  }
  world.node_of.resize(static_cast<std::size_t>(options.world_size));
  for (std::size_t node = 0; node < map.ranks.size(); ++node) {
    for (const int rank : map.ranks[node])
      world.node_of[static_cast<std::size_t>(rank)] = static_cast<int>(node);
  }
  world.backend = map.ranks.size() > 1 ? "shm+tcp" : "shm";
  world.communicator = std::make_unique<NodeCommunicator>(std::move(map), shared, lane);
  return {};
}

CommWorld world_of_one(bool with_nodes) {
  CommWorld world;
  world.communicator = std::make_unique<SingleCommunicator>();
  world.backend = "none";
  if (with_nodes) {
    world.node = std::make_unique<SingleCommunicator>();
    world.between = std::make_unique<SingleCommunicator>();
  }
  return world;
}

Result<> reach_store(const WorkerEnvironment& environment, const WorldOptions& options, CommWorld& world) {
  if (!environment.agent_store && environment.rank == 0)
    world.store = DDP_TRY(StoreHost::open(environment.master_port));
  auto client = DDP_TRY(within(
      options.me(), rendezvous::TcpStoreClient::connect(environment.master_addr, environment.master_port,
                                                        options.start_timeout, options.interrupt)));
  world.directory = DDP_TRY(
      within(options.me(), StoreDirectory::open(std::move(client), environment.job_id, environment.attempt,
                                                environment.rank, options.start_timeout)));
  return {};
}

/// Ranks that differ in these options would not meet, or not understand each other.
EqualOptions backend_options(const WorldOptions& options) {
  return {{"--comm", comm_text(options.comm)},
          {"--device", device_text(options.device)},
          {"--share-gpu", given_text(options.share_gpu)},
          {"--dtype", options.scalar_bytes == 8 ? "float64" : "float32"},
          {"--sync-every-inter", given_text(options.with_nodes)}};
}

Result<> compare_backends(const WorldOptions& options, PeerDirectory& directory) {
  const EqualOptions mine = backend_options(options);
  if (options.rank == options.reference_rank)
    return within(options.me(), directory.share("backend", to_text(mine)));
  const auto text = DDP_TRY(find_shared(directory, "backend", options.start_timeout, options.me(),
                                        concat(": rank ", options.reference_rank,
                                               " has not reached the store in time; check that it started")));
  const std::string differs = difference(mine, options.rank, text, options.reference_rank);
  return differs.empty() ? Result<>() : Error{ErrorCode::kUsage, differs};
}

/// Reaches the store, and compares the options that decide how ranks meet.
Result<> reach_others(const WorkerEnvironment& environment, const WorldOptions& options, CommWorld& world) {
  DDP_TRY(reach_store(environment, options, world));
  return compare_backends(options, *world.directory);
}

Result<> join_by_nccl(const WorldOptions& options, CommWorld& world) {
  auto connected = DDP_TRY(connect_nccl(options, *world.directory));
  world.communicator = std::move(connected.communicator);
  world.node = std::move(connected.node);
  world.between = std::move(connected.between);
  world.node_count = connected.node_count;
  world.backend = "nccl";
  return {};
}

Result<> join_by_tcp(const WorldOptions& options, CommWorld& world) {
  world.communicator = DDP_TRY(connect_peers(options, *world.directory));
  world.backend = "tcp";
  return {};
}

bool needs_nodes(const WorldOptions& options) {
  return options.comm == CommKind::kShm || options.with_nodes;
}

/// Uses shared memory if ranks share a node and the environment describes the nodes.
Result<> join_by_topology(const WorldOptions& options, CommWorld& world) {
  if (!knows_nodes(options)) return join_by_tcp(options, world);
  auto map = DDP_TRY(find_nodes(options, *world.directory));
  world.node_count = static_cast<int>(map.ranks.size());
  // With one rank per node, no ranks share memory.
  const bool shares = map.ranks.size() < static_cast<std::size_t>(options.world_size);
  return shares || needs_nodes(options) ? join_by_nodes(options, std::move(map), world)
                                        : join_by_tcp(options, world);
}

Result<> join_over(const WorldOptions& options, CommWorld& world) {
  switch (options.comm) {
    case CommKind::kNccl: return join_by_nccl(options, world);
    case CommKind::kTcp: return join_by_tcp(options, world);
    case CommKind::kAuto:
    case CommKind::kShm: return join_by_topology(options, world);
  }
  return {};
}

/// Makes all communicators of the world keep a log.
void keep_log(const WorkerEnvironment& environment, const std::string& directory, CommWorld& world) {
  const FlightRecorderFile::LogLocation location{environment.collectives, environment.local_rank, directory};
  const auto file = std::make_shared<FlightRecorderFile>(location, environment.rank, environment.world_size,
                                                         environment.attempt);
  const auto add = [&](std::unique_ptr<Communicator>& one, const std::string& group, int first, int ranks) {
    if (one && one->world_size() > 1)
      one = std::make_unique<RecordedCommunicator>(std::move(one), file, group, first, ranks);
  };
  add(world.communicator, "world", 0, environment.world_size);
  const int first = environment.rank - environment.local_rank;
  if (world.node)
    add(world.node, "node " + std::to_string(environment.node), first, world.node->world_size());
  add(world.between, "between", 0, environment.world_size);  // all ranks of a node make the same calls
}

WorldOptions world_options(const WorkerEnvironment& environment, const TrainOptions& options,
                           WorldOptions wanted = {}) {
  WorldOptions world = placed(environment, std::move(wanted));
  world.comm = options.comm;
  world.device = options.device;
  world.scalar_bytes = options.dtype == Dtype::kFloat64 ? 8 : 4;
  world.step_timeout = options.comm_timeout;
  world.share_gpu = options.share_gpu;
  world.rejoins = options.rejoin;
  world.with_nodes = options.sync_every_inter > 1;
  return world;
}

/// Returns how many GPUs this rank sees, whether or not it can use them.
std::size_t count_visible() {
  const std::size_t named = visible_gpus(std::getenv("CUDA_VISIBLE_DEVICES")).size();
  return named == 0 && can_use_gpu() ? 1 : named;
}

RankAbility find_ability(const WorkerEnvironment& environment, const TrainOptions& options) {
  RankAbility ability;
  ability.host = host_name();
  if (const std::size_t count = count_visible(); count > 0) ability.visible = counted(count, "GPU");
  const auto own = options.share_gpu ? Result<std::string>("") : own_gpu(environment.local_rank);
  if (own) ability.gpu = *own;
  const auto gpu = own ? can_use_gpu() : own.error();
  if (!gpu) {
    ability.gpu_obstacle = ability.nccl_obstacle = gpu.error().text;
  } else if (environment.world_size > 1) {
    const auto nccl = load_nccl(world_options(environment, options));
    const std::string option = "--comm nccl: ";  // begins the text for those who asked for NCCL
    if (nccl) {
      ability.nccl = *nccl;
    } else {
      const std::string& why = nccl.error().text;
      ability.nccl_obstacle = why.starts_with(option) ? why.substr(option.size()) : why;
    }
  }
  return ability;
}

}  // namespace

Result<> can_join(const WorkerEnvironment& environment, const WorldOptions& options) {
  if (options.with_nodes && options.comm == CommKind::kTcp) {
    return Error{ErrorCode::kUsage,
                 "--sync-every-inter needs shared memory inside the nodes; remove --comm tcp"};
  }
  const WorldOptions mine = placed(environment, options);
  if (options.comm == CommKind::kNccl) DDP_TRY(load_nccl(mine));
  if (mine.world_size == 1 || !needs_nodes(mine) || knows_nodes(mine)) return {};
  return usage_error(options.with_nodes ? "--sync-every-inter" : "--comm shm",
                     " needs GROUP_RANK and LOCAL_WORLD_SIZE, which ddplaunch and torchrun set: "
                     "these variables say which ranks share a node");
}

Result<CommWorld> join_world(const WorkerEnvironment& environment, const WorldOptions& options) {
  DDP_TRY(can_join(environment, options));
  if (environment.world_size == 1) return world_of_one(options.with_nodes);
  const WorldOptions mine = placed(environment, options);
  CommWorld world;
  DDP_TRY(reach_others(environment, mine, world));
  DDP_TRY(join_over(mine, world));
  return world;
}

bool CommWorld::same_node(int a, int b) const {
  return !node_of.empty() && node_of[static_cast<std::size_t>(a)] == node_of[static_cast<std::size_t>(b)];
}

Result<std::unique_ptr<Communicator>> join_pair(const WorkerEnvironment& environment,
                                                const WorldOptions& options, PeerDirectory& directory,
                                                std::pair<int, int> ranks, bool same_node) {
  GroupConfig config = placed(environment, options);
  config.group = concat("pair", ranks.first, "-", ranks.second);
  config.rank = environment.rank == ranks.first ? 0 : 1;
  config.world_size = 2;
  config.names = {ranks.first, ranks.second};
  if (same_node) {
    auto shared = DDP_TRY(open_group(config, directory));
    return std::make_unique<NodeCommunicator>(node_alone(2, config.rank), std::move(shared), nullptr);
  }
  auto connected = DDP_TRY(connect_peers(config, directory));
  return connected;
}

Result<> can_join(const WorkerEnvironment& environment, const TrainOptions& options) {
  return can_join(environment, world_options(environment, options));
}

Result<CommWorld> join_world(const WorkerEnvironment& environment, const TrainOptions& options,
                             WorldOptions wanted, const std::optional<RunChoice>& held) {
  wanted = world_options(environment, options, std::move(wanted));
  const bool alone = environment.world_size == 1;
  CommWorld world = alone ? world_of_one(wanted.with_nodes) : CommWorld();
  if (!alone) {
    if (auto reached = reach_others(environment, wanted, world); !reached) {
      if (world.directory && reached.error().code == ErrorCode::kUsage)
        refuse_choice(wanted, *world.directory, reached.error().text);
      return reached.error();
    }
  }
  world.choice = {options.device, options.comm, ""};
  if (leaves_choice(options)) {
    const RankAbility ability = find_ability(environment, options);
    auto choice = DDP_TRY(
        alone ? choose_run(options, {&ability, 1})
              : agree_on_choice(wanted, wanted.reference_rank, *world.directory, options, ability, held));
    world.choice = std::move(choice);
    if (alone && held) world.choice.device = held->device;
    wanted.comm = world.choice.comm;
    const bool chose_nccl = wanted.comm != options.comm && wanted.comm == CommKind::kNccl;
    if (chose_nccl && !held) {
      const int first = environment.rank - environment.local_rank;
      DDP_TRY(
          check_own_gpu(wanted, *world.directory, ability, {first, first + environment.local_world_size}));
      wanted.advice = "; --device cpu works without it";
    }
  }
  DDP_TRY(can_join(environment, wanted));
  if (!alone) {
    if (auto joined = join_over(wanted, world); !joined) {
      if (!environment.agent_store) leave_store(wanted, *world.directory, world.store != nullptr);
      return joined.error();
    }
  }
  const bool is_new = held ? held->comm != world.choice.comm : wanted.reference_rank == 0;
  if (environment.rank == 0 && leaves_choice(options) && is_new)
    world.choice_line = choice_line(world.choice, world.backend);
  if (environment.world_size > 1 && !(environment.collectives.empty() && options.flight_recorder.empty()))
    keep_log(environment, options.flight_recorder, world);
  return world;
}

Result<RunChoice> choose_device(const WorkerEnvironment& environment, const TrainOptions& options,
                                PeerDirectory* directory) {
  if (!leaves_choice(options)) return RunChoice{options.device, options.comm, ""};
  const RankAbility ability = find_ability(environment, options);
  if (directory == nullptr) return choose_run(options, {&ability, 1});
  return agree_on_choice(world_options(environment, options), 0, *directory, options, ability, {});
}

Result<std::unique_ptr<Communicator>> join_gpus(const WorkerEnvironment& environment,
                                                const WorldOptions& options, PeerDirectory& directory) {
  auto connected = DDP_TRY(connect_nccl(placed(environment, options), directory));
  return std::move(connected.communicator);
}

Result<std::string> tested_line(const WorkerEnvironment& environment, Communicator& world, DeviceKind device,
                                const std::string& transport) {
  const std::map<std::string, std::string> names{
      {"shm", "shared memory"}, {"tcp", "TCP"}, {"shm+tcp", "shared memory and TCP"}, {"none", "one rank"}};
  const auto name = names.find(transport);
  std::vector<std::string> mine = name != names.end() ? std::vector{name->second} : nccl_transports();
  const bool on_gpu = device == DeviceKind::kGpu || transport == "nccl";
  mine.insert(mine.begin(),
              {on_gpu ? gpu_model(environment.local_rank) : "", gpu_key(environment.local_rank)});
  const std::string text = join(mine, "\n");
  const std::uint64_t sizes[] = {environment.local_rank == 0 ? 1U : 0U, count_visible(), text.size()};
  const auto all_sizes = DDP_TRY(world.all_gather(sizes));
  std::size_t longest = 0;
  for (std::size_t at = 2; at < all_sizes.size(); at += std::size(sizes))
    longest = std::max<std::size_t>(longest, all_sizes[at]);
  std::vector<std::uint64_t> words(longest / sizeof(std::uint64_t) + 1);  // ends in a zero byte
  text.copy(reinterpret_cast<char*>(words.data()), text.size());
  const auto all = DDP_TRY(world.all_gather(words));

  std::map<std::string, std::set<std::string>> devices;  // ranks may share one
  std::vector<std::string> transports;                   // the first is the library or the host's transport
  std::size_t untested = 0, visible = 0;
  std::set<std::string> used;
  // Of a node. Ranks with masks of their own see one GPU each, so those in use are visible, too.
  const auto end_node = [&] {
    untested += std::max(visible, used.size()) - used.size();
    visible = 0;
    used.clear();
  };
  for (std::size_t rank = 0; rank < all.size() / words.size(); ++rank) {
    const std::uint64_t* counts = &all_sizes[rank * std::size(sizes)];
    if (counts[0] != 0) end_node();
    visible = std::max<std::size_t>(visible, counts[1]);
    std::string_view rest(reinterpret_cast<const char*>(all.data() + rank * words.size()));
    const std::string model = take_field(rest), key = take_field(rest);
    if (!model.empty()) {
      devices[model].insert(key);
      used.insert(key);
    }
    while (!rest.empty())
      if (std::string one = take_field(rest); std::ranges::find(transports, one) == transports.end())
        transports.push_back(std::move(one));
  }
  end_node();
  std::vector<std::string> parts;
  for (const auto& [model, keys] : devices)
    parts.push_back(concat(keys.size(), " × ", model));
  std::string line =
      "tested: " + (parts.empty() ? "CPU only" : join(parts, ", ")) + ", " + transports.front();
  if (on_gpu && device == DeviceKind::kCpu) line.insert(std::size("tested: ") - 1, "CPUs, and for the sums ");
  transports.erase(transports.begin());
  if (!transports.empty()) line += " over " + join(transports, " and ");
  return untested == 0 ? line : line + "; " + counted(untested, "visible GPU") + " not tested";
}

}  // namespace ddp::train
