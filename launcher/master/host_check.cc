#include "launcher/master/host_check.h"

#include <algorithm>
#include <csignal>
#include <map>
#include <utility>

#include "base/clock.h"
#include "base/text.h"
#include "launcher/master/master_links.h"
#include "launcher/master/user_input.h"
#include "launcher/supervisor/attempt_start.h"

namespace ddp::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

/// The largest part of --start-timeout that is spent on the network between the nodes.
constexpr milliseconds kMostNetworkTime{10'000};
/// The time from the deadline of an agent's start until the failure is reported.
constexpr milliseconds kReportTime{300};
/// The time from Leave to the end of the link.
constexpr seconds kLeaveTime{3};
constexpr milliseconds kLastTasks{500};
constexpr seconds kPingEvery{1};

}  // namespace

HostCheck::HostCheck(const asio::any_io_executor& executor, const JobSpec& spec, CheckScope scope,
                     Nodes nodes)
    : spec_(spec), scope_(scope), nodes_(std::move(nodes)), changed_(executor) {
  const std::size_t count = hosts_used(spec);
  result_.nodes.resize(count);
  stage_.assign(count, Stage::kConnecting);
  start_steps_.assign(count, "connecting");
}

milliseconds HostCheck::answer_time() const {
  return spec_.start_timeout - std::min(kMostNetworkTime, spec_.start_timeout / 4);
}

// ---- the check, in the order in which things happen

Awaitable<> HostCheck::run() {
  co_await wait_until(began_ + answer_time() + kReportTime, [this] {
    for (std::size_t i = 0; i < stage_.size(); ++i)
      if (is_open(i)) return stopped();
    return true;
  });
  for (std::size_t i = 0; i < stage_.size() && !stopped(); ++i)
    if (is_open(i)) give_up(i, too_late(i));
  if (!stopped() && !scope_.clean && choose_network()) co_await probe_network();
  co_await leave();
}

/// Waits until `over()`, at most until the deadline. Every event may change what it returns.
template <class Condition>
Awaitable<> HostCheck::wait_until(Clock::time_point deadline, Condition over) {
  while (!over() && Clock::now() < deadline) {
    changed_.expires_at(deadline);
    co_await changed_.async_wait(kUseTuple);
  }
}

/// Returns whether the nodes can try to reach a store on node 0, with `store_order_`.
bool HostCheck::choose_network() {
  std::vector<NodeNetwork> networks;
  std::vector<rendezvous::NodeSlots> slots;
  for (std::size_t i = 0; i < stage_.size(); ++i) {
    if (!usable(i)) continue;
    const CheckedNode& node = result_.nodes[i];
    const remote::Host& host = spec_.hosts[i];
    std::optional<int> devices;
    if (!host.devices.empty()) devices = static_cast<int>(host.devices.size());
    slots.push_back({host.name, host.slots, devices, static_cast<int>(node.hello.gpus),
                     static_cast<int>(node.hello.cpus)});
    networks.push_back(node_network(spec_, host, node.hello, node.connected));
    result_.networked.push_back(i);
  }
  if (slots.size() == stage_.size()) result_.plan = plan(std::move(slots));
  if (networks.empty()) return false;
  result_.network = launcher::choose_network(networks, spec_.network);
  if (!*result_.network || !usable(0)) return false;
  store_order_ = launcher::store_order(spec_, networks, **result_.network);
  store_order_.mode = StoreMode::kAgent;  // a store must answer the other nodes
  return true;
}

/// The spares come last and have no ranks.
Result<rendezvous::RankPlan> HostCheck::plan(std::vector<rendezvous::NodeSlots> slots) const {
  const std::size_t spares = std::min(slots.size() - 1, static_cast<std::size_t>(spec_.spares));
  slots.resize(slots.size() - spares);
  auto plan = rendezvous::plan_ranks(slots, spec_.nproc);
  if (!plan) return plan;
  plan->assignments.resize(plan->assignments.size() + spares);
  plan->reasons.resize(plan->assignments.size(), "a spare");
  return plan;
}

/// Node 0 opens a store, and the others try to reach it, as at the start of a job. Without node 0 that ends;
/// any other lost node is just not waited for.
Awaitable<> HostCheck::probe_network() {
  const auto deadline = Clock::now() + (spec_.start_timeout - answer_time());
  phase_ = Phase::kOpeningStore;
  nodes_.send(0, store_order_);
  co_await wait_until(deadline, [this] { return stopped() || !is_probing(0); });
  CheckedNode& first = result_.nodes[0];
  if (!stopped() && is_probing(0)) {
    first.reach = CheckedNode::Reach::kFailed;
    first.reach_text = "its agent did not open a port in time";
  }
  if (stopped() || first.reach != CheckedNode::Reach::kReached) co_return;

  phase_ = Phase::kProbing;
  probing_ = result_.networked;
  send_probes(master_.begin((*result_.network)->master_addrs(), probing_.size()));
  const auto any = [this] {
    return std::any_of(probing_.begin(), probing_.end(), [this](std::size_t i) { return is_probing(i); });
  };
  co_await wait_until(deadline, [this, any] { return stopped() || !any(); });
  if (!any() && !master_.is_exhausted()) note_route();
  for (const std::size_t i : probing_) {
    if (stopped() || !is_probing(i)) continue;
    result_.nodes[i].reach = CheckedNode::Reach::kFailed;
    result_.nodes[i].reach_text = "its agent did not report in time";
  }
}

/// Records the address that all nodes reach, and the better networks that were rejected.
void HostCheck::note_route() {
  result_.master_addr = master_.chosen();
  for (const NetRoute& route : (*result_.network)->routes) {
    if (route.master_addr == result_.master_addr) break;
    CheckResult::RejectedNetwork& passed = result_.rejected_networks.emplace_back();
    passed.master_addr = route.master_addr;
    passed.network = route.network;
    for (const std::size_t place : master_.all_cut_off(route.master_addr))
      passed.nodes.push_back(probing_[place]);
  }
}

Awaitable<> HostCheck::leave() {
  phase_ = Phase::kLeaving;
  for (std::size_t i = 0; i < stage_.size(); ++i) {
    if (stage_[i] != Stage::kAsked && stage_[i] != Stage::kAnswered) continue;
    stage_[i] = Stage::kLeaving;
    nodes_.send(i, rendezvous::Leave{});
  }
  co_await wait_until(Clock::now() + kLeaveTime, [this] {
    return interrupts_ > 1 || std::ranges::all_of(stage_, [](Stage stage) { return stage == Stage::kGone; });
  });
  for (std::size_t i = 0; i < stage_.size(); ++i)
    if (stage_[i] != Stage::kGone) nodes_.drop(i);
}

// ---- events

void HostCheck::node_up(std::size_t index, const rendezvous::Hello& hello, std::string connected) {
  if (stage_[index] != Stage::kConnecting) return;
  CheckedNode& node = result_.nodes[index];
  node.up = true;
  node.took = Clock::now() - began_;
  node.hello = hello;
  node.connected = std::move(connected);
  stage_[index] = scope_.inspect ? Stage::kAsked : Stage::kAnswered;
  changed_.cancel();
  if (!scope_.inspect) return;
  rendezvous::NodeCheck check;
  check.job = job_start(spec_, spec_.hosts[index], result_.nodes.size());
  check.has_program = scope_.has_program;
  check.clean = scope_.clean;
  check.timeout_ms = to_ms(answer_time() / 2);
  nodes_.send(index, check);
}

void HostCheck::node_failed(std::size_t node, Error error) {
  const Stage stage = std::exchange(stage_[node], Stage::kGone);
  if (stage == Stage::kGone) return;
  if (stage != Stage::kLeaving && !result_.nodes[node].error) result_.nodes[node].error = std::move(error);
  changed_.cancel();
}

void HostCheck::on_message(std::size_t index, const rendezvous::Message& message) {
  CheckedNode& node = result_.nodes[index];
  const bool opens = phase_ == Phase::kOpeningStore && index == 0;
  if (const auto* facts = std::get_if<rendezvous::NodeChecked>(&message)) {
    if (stage_[index] != Stage::kAsked) return;
    node.facts = *facts;
    stage_[index] = Stage::kAnswered;
  } else if (const auto* refused = std::get_if<rendezvous::Refused>(&message)) {
    if (opens) {
      node.reach = CheckedNode::Reach::kFailed;
      node.reach_text = refused->text;
    } else if (stage_[index] == Stage::kAsked) {
      give_up(index, Error{refused->code, refused->text, refused->sys});
    }
  } else if (const auto* opened = std::get_if<rendezvous::StoreOpened>(&message)) {
    if (!opens) return;
    result_.store_port = opened->port;
    store_token_ = opened->token;
    node.reach = CheckedNode::Reach::kReached;
  } else if (const auto* probed = std::get_if<rendezvous::ProbeResult>(&message)) {
    take_probe(index, *probed);
  }
  changed_.cancel();
}

void HostCheck::take_probe(std::size_t index, const rendezvous::ProbeResult& probed) {
  const auto at = std::find(probing_.begin(), probing_.end(), index);
  if (phase_ != Phase::kProbing || index == 0 || at == probing_.end()) return;
  const std::vector<std::string> candidates = (*result_.network)->master_addrs();
  const bool known = std::find(candidates.begin(), candidates.end(), probed.address) != candidates.end();
  CheckedNode& node = result_.nodes[index];
  node.reach = known ? CheckedNode::Reach::kReached : CheckedNode::Reach::kFailed;
  node.reach_text = known ? probed.address : probed.text;
  node.local = probed.local;
  const auto place = static_cast<std::size_t>(at - probing_.begin());
  send_probes(known ? master_.reached(place, probed.address) : master_.failed(place));
}

void HostCheck::send_probes(const std::vector<MasterAddress::AddressProbe>& probes) {
  const auto timeout = to_ms((spec_.start_timeout - answer_time()) / 2);
  for (const MasterAddress::AddressProbe& probe : probes) {
    const std::size_t node = probing_[probe.node];
    result_.nodes[node].reach = CheckedNode::Reach::kNotTried;
    nodes_.send(node, rendezvous::Probe{0, probe.addresses, result_.store_port, timeout, store_token_});
  }
}

void HostCheck::interrupt(int signal) {
  if (++interrupts_ == 1) result_.awaited = awaited_text();
  result_.stop_signal = signal;
  for (std::size_t i = 0; i < stage_.size(); ++i) {
    if (stage_[i] == Stage::kConnecting) give_up(i, Error{ErrorCode::kCancelled, "stopped by the user"});
    if (stage_[i] == Stage::kAsked)
      result_.nodes[i].error = Error{ErrorCode::kCancelled, "stopped by the user before its check had ended"};
  }
  changed_.cancel();
}

Error HostCheck::too_late(std::size_t node) const {
  const std::string limit = format_duration(answer_time());
  if (stage_[node] == Stage::kConnecting)
    return Error{ErrorCode::kTimeout, "no agent answered within " + limit};
  return Error{ErrorCode::kTimeout,
               "its agent answered, but did not finish its check within " + limit +
                   (has_setup(node) ? ", including --setup; --verbose shows the output of --setup"
                                    : "; check whether a network disk of this host is reachable")};
}

void HostCheck::give_up(std::size_t node, Error error) {
  DDP_REQUIRE(is_open(node), node, stage_[node]);
  result_.nodes[node].error = std::move(error);
  stage_[node] = Stage::kGone;
  nodes_.drop(node);
}

std::string HostCheck::awaited_text() const {
  std::map<std::string, std::vector<std::string>> by_step;
  for (std::size_t i = 0; i < stage_.size(); ++i) {
    std::string step;
    if (stage_[i] == Stage::kConnecting) step = start_steps_[i];
    if (stage_[i] == Stage::kAsked) step = has_setup(i) ? "running --setup" : "running its check";
    if (phase_ == Phase::kOpeningStore && i == 0 && usable(0)) step = "opening the store";
    if (phase_ == Phase::kProbing && is_probing(i))
      step = "trying to reach the store on " + spec_.hosts[0].name;
    if (!step.empty()) by_step[step].push_back(spec_.hosts[i].name);
  }
  return launcher::awaited_text(by_step, stage_.size());
}

// ---- the links

namespace {

/// A HostCheck with the links to its hosts, which start their agents as a job does.
class CheckMaster final : private NodeEvents {
 public:
  using ShowLines = std::function<void(std::string_view lines)>;

  CheckMaster(asio::io_context& loop, const JobSpec& spec, CheckScope scope, remote::Transport& remote,
              remote::Transport& local, remote::FanOutOptions options, ShowLines show)
      : loop_(loop),
        spec_(spec),
        show_lines_(std::move(show)),
        check_(loop.get_executor(), spec, scope,
               {[this](std::size_t node, const rendezvous::Message& message) { nodes_[node]->send(message); },
                [this](std::size_t node) {
                  if (nodes_[node]->opened()) nodes_[node]->close();
                }}),
        nodes_(loop, spec.hosts, check_.node_count(), remote, local, std::move(options), *this),
        waiting_timer_(loop),
        signals_(loop) {
    add_signals(signals_, {SIGINT, SIGTERM, SIGHUP});
  }

  CheckResult run() {
    nodes_.start_all(check_.answer_time());
    spawn(loop_.get_executor(), run_check());
    spawn(loop_.get_executor(), watch_signals());
    if (!spec_.quiet) spawn(loop_.get_executor(), report_waiting());
    nodes_.ping_every(kPingEvery);
    loop_.run();  // until run_check stops it
    CheckResult result = check_.take_result();
    measure_clocks(result);
    nodes_.close();
    error_code ignored;
    signals_.cancel(ignored);
    waiting_timer_.cancel();
    loop_.restart();
    loop_.run_for(kLastTasks);
    return result;
  }

 private:
  Awaitable<> run_check() {
    co_await check_.run();
    loop_.stop();
  }

  /// Compares a node's wall clock with the master's at the same moment. The node's monotonic clock
  /// identifies that moment.
  void measure_clocks(CheckResult& result) const {
    const nanoseconds here = steady_now();
    const nanoseconds wall_here = read_clock(CLOCK_REALTIME);
    for (std::size_t i = 0; i < result.nodes.size(); ++i) {
      CheckedNode& node = result.nodes[i];
      if (!node.facts) continue;
      const nanoseconds then = nodes_[i]->to_ours(node.facts->clock_ns);
      node.wall_ahead = nanoseconds(node.facts->wall_ns) - (wall_here - (here - then));
      node.wall_error = nodes_[i]->clock_error();
    }
  }

  void start_failed(std::size_t node, Error why) override { check_.node_failed(node, std::move(why)); }

  /// The output of a login shell is no finding and would disturb the table.
  void agent_started(NodeLink& node, const remote::StartedAgent& agent) override {
    if (!spec_.verbose) return;
    for (const std::string& line : agent.noise)
      show_lines_(spec_.hosts[node.index].name + ": " + line + "\n");
    if (!agent.errors.empty()) show_lines_(node.error_lines(agent.errors));
  }

  void agent_errors(const std::string& lines) override { show_lines_(lines); }

  void link_gone(NodeLink& node, NodeLink::LinkEnd end) override {
    check_.node_failed(node.index, std::move(end.why));
  }

  Result<> on_message(NodeLink& node, const rendezvous::Message& message) override {
    if (const auto* hello = std::get_if<rendezvous::Hello>(&message)) {
      check_.node_up(node.index, *hello, node.channel().address());
    } else if (const auto* notice = std::get_if<rendezvous::Notice>(&message)) {
      if (node.limits.notice() == NodeLimits::NoticeDecision::kNo) return {};
      if (!notice->detail || spec_.verbose)
        show_lines_(spec_.hosts[node.index].name + ": " + notice->text + "\n");
    } else {
      check_.on_message(node.index, message);
    }
    return {};
  }

  void note_start_steps() {
    for (const remote::FanOut::PendingHost& host : nodes_.starting())
      check_.set_start_step(host.host, host.step);
  }

  Awaitable<> report_waiting() {
    StartNotice notice;
    notice.begin(steady_now());
    for (;;) {
      waiting_timer_.expires_at(std::chrono::steady_clock::time_point(*notice.deadline()));
      const auto [error] = co_await waiting_timer_.async_wait(kUseTuple);
      if (error) co_return;
      note_start_steps();
      const auto waiting = notice.show(check_.awaited_text(), steady_now());
      if (waiting && waiting->due) show_lines_("ddplaunch: " + waiting->text + "\n");
    }
  }

  Awaitable<> watch_signals() {
    for (;;) {
      const auto [error, number] = co_await signals_.async_wait(kUseTuple);
      if (error) co_return;
      note_start_steps();
      check_.interrupt(number);
    }
  }

  asio::io_context& loop_;
  const JobSpec& spec_;
  const ShowLines show_lines_;
  HostCheck check_;
  MasterLinks nodes_;
  asio::steady_timer waiting_timer_;
  asio::signal_set signals_;
};

}  // namespace

CheckResult check_hosts(asio::io_context& loop, const JobSpec& spec, CheckScope scope,
                        remote::Transport& remote, remote::Transport& local, remote::FanOutOptions options,
                        std::function<void(std::string_view lines)> show) {
  return CheckMaster(loop, spec, scope, remote, local, std::move(options), std::move(show)).run();
}

}  // namespace ddp::launcher
