#include "launcher/check/check_run.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/result.h"
#include "base/text.h"
#include "launcher/supervisor/attempt_start.h"

namespace ddp::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// The largest part of --start-timeout that is spent on the network between the nodes.
constexpr milliseconds kMostNetworkTime{10'000};
/// The time from the deadline of an agent's start until the failure is reported.
constexpr milliseconds kReportTime{300};
/// The time from Leave to the end of the link.
constexpr seconds kLeaveTime{3};

}  // namespace

CheckRun::CheckRun(const JobSpec& spec, CheckScope scope) : spec_(spec), scope_(scope) {
  const std::size_t count = hosts_used(spec);
  result_.nodes.resize(count);
  stage_.assign(count, Stage::kConnecting);
  start_steps_.assign(count, "connecting");
}

milliseconds CheckRun::answer_time() const {
  return spec_.start_timeout - std::min(kMostNetworkTime, spec_.start_timeout / 4);
}

CheckRun::Actions CheckRun::start(Time now) {
  DDP_REQUIRE(state_ == State::kAsking && !deadline_, state_);  // it starts once
  began_ = now;
  deadline_ = now + answer_time() + kReportTime;
  return std::exchange(actions_, {});
}

CheckRun::Actions CheckRun::step(const Event& event, Time now) {
  DDP_REQUIRE(finished() || deadline_, state_);
  if (state_ != State::kFinished) std::visit([&](const auto& e) { on(e, now); }, event);
  return std::exchange(actions_, {});
}

void CheckRun::on(const NodeUp& event, Time now) {
  CheckedNode& node = result_.nodes[event.node];
  if (stage_[event.node] != Stage::kConnecting) return;
  node.up = true;
  node.took = now - began_;
  node.hello = event.hello;
  node.connected = event.connected;
  if (!scope_.inspect) return answered(event.node, now);
  stage_[event.node] = Stage::kAsked;
  rendezvous::NodeCheck check;
  check.job = job_start(spec_, spec_.hosts[event.node], result_.nodes.size());
  check.has_program = scope_.has_program;
  check.clean = scope_.clean;
  check.timeout_ms = to_ms(answer_time() / 2);
  actions_.push_back(ToNode{event.node, std::move(check)});
}

void CheckRun::on(const NodeFailed& event, Time now) {
  Stage& stage = stage_[event.node];
  if (stage == Stage::kGone) return;
  const bool expected = stage == Stage::kLeaving;
  stage = Stage::kGone;
  if (!expected && !result_.nodes[event.node].error) result_.nodes[event.node].error = event.error;
  if (state_ == State::kAsking) return try_network(now);
  // Without node 0 the check ends. Any other lost node is just not waited for.
  if (state_ == State::kProbing) leave_if_probed(now);
  if (state_ == State::kOpeningStore && event.node == 0) leave_all(now);
  finish_if_gone();
}

void CheckRun::on(const FromNode& event, Time now) {
  CheckedNode& node = result_.nodes[event.node];
  if (const auto* facts = std::get_if<rendezvous::NodeChecked>(&event.message)) {
    if (stage_[event.node] != Stage::kAsked) return;
    node.facts = *facts;
    return answered(event.node, now);
  }
  if (const auto* refused = std::get_if<rendezvous::Refused>(&event.message)) {
    const Error error{static_cast<ErrorCode>(refused->code), refused->text, refused->sys};
    if (state_ == State::kOpeningStore && event.node == 0) {
      node.reach = CheckedNode::Reach::kFailed;
      node.reach_text = error.text;
      return leave_all(now);
    }
    if (stage_[event.node] == Stage::kAsked) {
      give_up(event.node, error);
      try_network(now);
    }
    return;
  }
  if (const auto* opened = std::get_if<rendezvous::StoreOpened>(&event.message)) {
    if (state_ != State::kOpeningStore || event.node != 0) return;
    result_.store_port = opened->port;
    store_token_ = opened->token;
    node.reach = CheckedNode::Reach::kReached;
    return probe_all(now);
  }
  if (const auto* probed = std::get_if<rendezvous::ProbeResult>(&event.message))
    on_probed(event.node, *probed, now);
}

void CheckRun::on_probed(std::size_t index, const rendezvous::ProbeResult& probed, Time now) {
  const auto at = std::find(probing_.begin(), probing_.end(), index);
  if (state_ != State::kProbing || index == 0 || at == probing_.end()) return;
  const std::vector<std::string> candidates = (*result_.network)->master_addrs();
  const bool known = std::find(candidates.begin(), candidates.end(), probed.address) != candidates.end();
  CheckedNode& node = result_.nodes[index];
  node.reach = known ? CheckedNode::Reach::kReached : CheckedNode::Reach::kFailed;
  node.reach_text = known ? probed.address : probed.text;
  node.local = probed.local;
  const auto place = static_cast<std::size_t>(at - probing_.begin());
  send_probes(known ? master_.reached(place, probed.address) : master_.failed(place));
  leave_if_probed(now);
}

void CheckRun::on(const UserInterrupt& event, Time now) {
  if (result_.stop_signal != 0) deadline_ = now;  // a second signal means: do not wait for the nodes to leave
  if (result_.stop_signal == 0) result_.awaited = awaited_text();
  result_.stop_signal = event.number;
  for (std::size_t i = 0; i < stage_.size(); ++i) {
    if (stage_[i] == Stage::kConnecting) give_up(i, Error{ErrorCode::kCancelled, "stopped by the user"});
    if (stage_[i] == Stage::kAsked)
      result_.nodes[i].error = Error{ErrorCode::kCancelled, "stopped by the user before its check had ended"};
  }
  leave_all(now);
  on(Tick{}, now);
}

void CheckRun::on(const Tick&, Time now) {
  if (!deadline_ || now < *deadline_) return;
  switch (state_) {
    case State::kAsking:
      for (std::size_t i = 0; i < stage_.size(); ++i) {
        if (stage_[i] == Stage::kConnecting || stage_[i] == Stage::kAsked) give_up(i, too_late(i));
      }
      return try_network(now);
    case State::kOpeningStore:
      result_.nodes[0].reach = CheckedNode::Reach::kFailed;
      result_.nodes[0].reach_text = "its agent did not open a port in time";
      return leave_all(now);
    case State::kProbing:
      for (const std::size_t i : probing_) {
        CheckedNode& node = result_.nodes[i];
        if (!usable(i) || node.reach != CheckedNode::Reach::kNotTried) continue;
        node.reach = CheckedNode::Reach::kFailed;
        node.reach_text = "its agent did not report in time";
      }
      return leave_all(now);
    case State::kLeaving:
      for (std::size_t i = 0; i < stage_.size(); ++i) {
        if (stage_[i] == Stage::kGone) continue;
        actions_.push_back(Disconnect{i});
        stage_[i] = Stage::kGone;
      }
      return finish_if_gone();
    case State::kFinished:
      return;
  }
}

void CheckRun::answered(std::size_t node, Time now) {
  DDP_REQUIRE(stage_[node] == Stage::kConnecting || stage_[node] == Stage::kAsked, node, stage_[node]);
  stage_[node] = Stage::kAnswered;
  try_network(now);
}

Error CheckRun::too_late(std::size_t node) const {
  const std::string limit = format_duration(answer_time());
  if (stage_[node] == Stage::kConnecting)
    return Error{ErrorCode::kTimeout, "no agent answered within " + limit};
  return Error{ErrorCode::kTimeout,
               "its agent answered, but did not finish its check within " + limit +
                   (has_setup(node) ? ", including --setup; --verbose shows the output of --setup"
                                    : "; check whether a network disk of this host is reachable")};
}

std::string CheckRun::awaited_text() const {
  std::map<std::string, std::vector<std::string>> by_step;
  for (std::size_t i = 0; i < stage_.size(); ++i) {
    std::string step;
    if (stage_[i] == Stage::kConnecting) step = start_steps_[i];
    if (stage_[i] == Stage::kAsked) step = has_setup(i) ? "running --setup" : "running its check";
    if (usable(i) && state_ == State::kOpeningStore && i == 0) step = "opening the store";
    if (usable(i) && state_ == State::kProbing && result_.nodes[i].reach == CheckedNode::Reach::kNotTried)
      step = "trying to reach the store on " + spec_.hosts[0].name;
    if (!step.empty()) by_step[step].push_back(spec_.hosts[i].name);
  }
  return launcher::awaited_text(by_step, stage_.size());
}

void CheckRun::give_up(std::size_t node, Error error) {
  DDP_REQUIRE(stage_[node] == Stage::kConnecting || stage_[node] == Stage::kAsked, node, stage_[node]);
  result_.nodes[node].error = std::move(error);
  stage_[node] = Stage::kGone;
  actions_.push_back(Disconnect{node});
}

/// The spares come last and have no ranks.
Result<rendezvous::RankPlan> CheckRun::plan(std::vector<rendezvous::NodeSlots> slots) const {
  const std::size_t spares = std::min(slots.size() - 1, static_cast<std::size_t>(spec_.spares));
  slots.resize(slots.size() - spares);
  auto plan = rendezvous::plan_ranks(slots, procs_wanted(spec_));
  if (plan) plan->nodes.resize(plan->nodes.size() + spares, {0, 0, 0, "a spare"});
  return plan;
}

/// Chooses the network when every host has answered or failed.
void CheckRun::try_network(Time now) {
  const auto open_question = [](Stage stage) {
    return stage == Stage::kConnecting || stage == Stage::kAsked;
  };
  if (state_ != State::kAsking || std::any_of(stage_.begin(), stage_.end(), open_question)) return;
  if (scope_.clean) return leave_all(now);
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
  if (networks.empty()) return leave_all(now);
  result_.network = choose_network(networks, spec_.network);
  if (!*result_.network || !usable(0)) return leave_all(now);

  rendezvous::OpenStore open = store_order(spec_, networks, **result_.network);
  open.mode = static_cast<std::uint8_t>(StoreMode::kAgent);  // a store must answer the other nodes
  state_ = State::kOpeningStore;
  deadline_ = now + (spec_.start_timeout - answer_time());
  actions_.push_back(ToNode{0, std::move(open)});
}

void CheckRun::probe_all(Time now) {
  state_ = State::kProbing;
  probing_ = result_.networked;
  for (const std::size_t i : probing_) {
    if (i != 0) result_.nodes[i].reach = CheckedNode::Reach::kNotTried;
  }
  send_probes(master_.begin((*result_.network)->master_addrs(), probing_.size()));
  leave_if_probed(now);
}

void CheckRun::send_probes(const std::vector<MasterAddress::AddressProbe>& probes) {
  const auto timeout = to_ms((spec_.start_timeout - answer_time()) / 2);
  for (const MasterAddress::AddressProbe& probe : probes) {
    const std::size_t node = probing_[probe.node];
    result_.nodes[node].reach = CheckedNode::Reach::kNotTried;
    actions_.push_back(
        ToNode{node, rendezvous::Probe{0, probe.addresses, result_.store_port, timeout, store_token_}});
  }
}

void CheckRun::leave_if_probed(Time now) {
  for (const std::size_t i : probing_) {
    if (usable(i) && result_.nodes[i].reach == CheckedNode::Reach::kNotTried) return;
  }
  if (!master_.is_exhausted()) note_route();
  leave_all(now);
}

/// Records the address that all nodes reach, and the better networks that were rejected.
void CheckRun::note_route() {
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

void CheckRun::leave_all(Time now) {
  if (state_ == State::kLeaving || state_ == State::kFinished) return;
  state_ = State::kLeaving;
  deadline_ = now + kLeaveTime;
  for (std::size_t i = 0; i < stage_.size(); ++i) {
    if (stage_[i] != Stage::kAsked && stage_[i] != Stage::kAnswered) continue;
    stage_[i] = Stage::kLeaving;
    actions_.push_back(ToNode{i, rendezvous::Leave{}});
  }
  finish_if_gone();
}

void CheckRun::finish_if_gone() {
  if (state_ != State::kLeaving) return;
  if (std::any_of(stage_.begin(), stage_.end(), [](Stage stage) { return stage != Stage::kGone; })) return;
  state_ = State::kFinished;
  deadline_.reset();
}

}  // namespace ddp::launcher
