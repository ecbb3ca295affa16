#include "launcher/agent/agent.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "base/clock.h"
#include "base/text.h"
#include "launcher/keeper/process_tree.h"

namespace ddp::launcher {
namespace {

constexpr std::chrono::seconds kHeartbeat{1};
/// The time to send the last bytes to a master that may not read any more.
constexpr std::chrono::seconds kFlushTime{2};
/// Until the job says otherwise.
constexpr std::chrono::seconds kPatience{15};
constexpr std::chrono::seconds kLinkGrace{5};
/// The longest time that a slow network disk may delay the checks of a job.
constexpr std::chrono::milliseconds kSlowDisk{60'000};

}  // namespace

Agent::Agent(asio::io_context& loop, std::unique_ptr<ByteStream> stream, KeeperSocket& keeper,
             Options options)
    : loop_(loop),
      options_(std::move(options)),
      keeper_(keeper),
      link_(loop.get_executor(), std::move(stream)),
      core_({options_.own.has_value(), kKillBound, kPatience, kLinkGrace}, boot_now()),
      core_timer_(loop),
      store_(loop.get_executor(),
             [this](std::string words) { link_.send(rendezvous::Notice{std::move(words)}); }),
      disk_(loop.get_executor(), 1),
      preparation_(loop.get_executor(), disk_, options_.directory,
                   [this](const rendezvous::Notice& notice) { link_.send(notice); }),
      stdin_(
          loop.get_executor(), [this](const rendezvous::StdinTaken& taken) { link_.send(taken); },
          [this] { return core_.takes_stdin() && group_ && !group_->starting(); }),
      revoke_tasks_(loop.get_executor()),
      tree_(loop.get_executor(), keeper),
      hang_monitor_(
          loop.get_executor(), [this](const rendezvous::Message& message) { link_.send(message); },
          [this] { return credit_.room(1) == 0 || credit_.room(2) == 0; }),
      steps_timer_(loop),
      queries_(loop.get_executor(), [this](const rendezvous::QueryAnswer& answer) { link_.send(answer); }),
      usage_(loop.get_executor(), options_.directory,
             [this](const rendezvous::NodeSample& sample) { link_.send(sample); }),
      evidence_(loop.get_executor(), disk_),
      tick_(loop),
      keeper_fd_(loop),
      signals_(loop, SIGTERM, SIGINT, SIGHUP) {}

int Agent::run() {
  begin();
  loop_.run();  // returns when shut_down has ended every task
  return core_.exit_code();
}

void Agent::begin() {
  keeper_fd_.assign(::fcntl(keeper_.watch_fd(), F_DUPFD_CLOEXEC, 0));
  rendezvous::Hello hello = options_.facts.hello;
  hello.keeper = static_cast<std::uint32_t>(keeper_.keeper());
  hello.clock_ns = clock_ns();
  if (options_.own) hello.workers = options_.own->workers;
  link_.send(hello);
  // These tasks must wait before any event can end them: a link may close at its first read.
  spawn(loop_.get_executor(), heartbeat());
  spawn(loop_.get_executor(), watch_keeper());
  spawn(loop_.get_executor(), watch_signals());
  spawn(loop_.get_executor(), link_.write_all());
  spawn(loop_.get_executor(), serve());
}

// ---- the link

Awaitable<> Agent::serve() {
  for (;;) {
    auto message = link_.next();
    while (message && *message) {
      std::visit([this](const auto& m) { handle(m); }, **message);
      message = link_.next();
    }
    if (!message) break;
    const Result<> more = co_await link_.read_more();
    if (!more) break;
  }
  // sshd closes our stdin when its child, the keeper, has ended; the master still receives our messages.
  if (keeper_.is_keeper_alive()) {
    feed(node::LinkLost{});
  } else {
    feed(node::MustLeave{keeper_died()});
  }
}

void Agent::refuse(const Error& error) {
  link_.send(rendezvous::Refused{error.code, error.sys, error.text});
}

// ---- the core

/// Carries out what the core decides. Events that happen meanwhile add to the end.
void Agent::feed(const node::Event& event) {
  const bool nested = !actions_.empty();
  for (node::Action& action : core_.step(event, boot_now()))
    actions_.push_back(std::move(action));
  if (nested) return;
  for (; !actions_.empty(); actions_.pop_front())
    std::visit([this](const auto& action) { perform(action); }, actions_.front());
  arm_timer();
}

void Agent::arm_timer() {
  const auto due = core_.deadline();
  if (!due) {
    core_timer_.cancel();
    return;
  }
  core_timer_.expires_after(*due - boot_now());
  core_timer_.async_wait([this](const error_code& error) {
    if (!error) feed(node::Tick{});
  });
}

void Agent::perform(const node::OpenStore& action) {
  auto opened = store_.open(action.order);
  if (!opened) return refuse(opened.error());
  link_.send(*opened);
}

void Agent::perform(const node::SetLease& action) {
  keeper_.set_lease(std::chrono::ceil<std::chrono::milliseconds>(action.left));
}

// ---- the master's messages

void Agent::handle(const rendezvous::JobStart& job_start) {
  const rendezvous::JobStart message = options_.own ? lay_over(job_start, *options_.own) : job_start;
  begin_preparing(message);
  preparation_.prepare(message, [this, message](Result<NodeJob> job, bool predecessor_gone) {
    if (!job) return refuse(job.error());
    accept(message, std::move(*job), predecessor_gone);
  });
}

void Agent::handle(const rendezvous::NodeCheck& message) {
  // A check runs commands of the master; this node may run only what its own user gave.
  if (options_.own)
    return feed(node::MustLeave{"its master asked for a check, which a node that joins by itself refuses"});
  begin_preparing(message.job);
  preparation_.check(message, [this](const rendezvous::NodeChecked& checked) { link_.send(checked); });
}

void Agent::handle(const rendezvous::Query& message) {
  if (options_.own && !message.argv.empty()) {
    rendezvous::QueryAnswer refused{message.request, 0, {}, true, 0, {}};
    refused.trouble = "its node joined by itself and runs only the command of its own user";
    return link_.send(refused);
  }
  NodeQueries::Leaders leaders;
  for (const auto& [local, process] : core_.processes().all())
    leaders[rank_of(local)] = inspected(local, process.pid);
  queries_.start(message, std::move(leaders));
}

/// Gives the keeper a lease: the preparation of a job whose master is gone must end even if it hangs on a
/// disk or in --setup.
void Agent::begin_preparing(const rendezvous::JobStart& job) {
  const std::chrono::milliseconds patience(job.master_timeout_ms);
  feed(node::JobReceived{patience, std::chrono::milliseconds(job.link_grace_ms), job.may_restart});
  keeper_.set_sleep_rule(!job.may_restart ? SleepRule::kTree
                         : job.local      ? SleepRule::kTreeAndMaster
                                          : SleepRule::kNone);
  if (!job.local) keeper_.set_lease(std::max(patience, kSlowDisk));
  keeper_.set_job_mark(job.job_id);
}

void Agent::accept(const rendezvous::JobStart& order, NodeJob job, bool predecessor_gone) {
  rendezvous::JobAccepted accepted{job.program(), active_infiniband("")};
  accepted.no_infiniband = infiniband_trouble(accepted.infiniband, job.env(), order.explicit_env, "");
  accepted.predecessor_gone = predecessor_gone;
  job_ = std::move(job);
  credit_.start(order.credit);
  tree_.set_job(order.job_id);
  runs_setup_ = !order.setup.empty();
  hang_monitor_.set_timeout(std::chrono::milliseconds(order.activity_timeout_ms));
  stop_leaders_ = order.stop_leaders;
  feed(node::JobAccepted{order.local});
  link_.send(accepted);
}

void Agent::handle(const rendezvous::Probe& message) {
  spawn(loop_.get_executor(), probe(message));
}

Awaitable<> Agent::probe(rendezvous::Probe request) {
  StoreRoute route =
      co_await find_store(loop_.get_executor(), std::move(request.addresses), request.port,
                          std::move(request.token), std::chrono::milliseconds(request.timeout_ms));
  link_.send(rendezvous::ProbeResult{request.attempt, std::move(route.address), std::move(route.failures),
                                     std::move(route.local)});
}

void Agent::handle(const rendezvous::Spawn& message) {
  // The output of ended workers belongs to the previous attempt.
  if (core_.has_survivors()) group_->drop_ended();
  feed(message);
}

void Agent::handle(const rendezvous::Ping& message) {
  feed(node::Pinged{});  // too late, it closes the link
  link_.send(rendezvous::Pong{message.sequence, clock_ns()});
}

// ---- the end

/// No output is sent any more, but the pipes are drained, so that no worker hangs in a write.
void Agent::perform(const node::CloseLink&) {
  link_.close();
  credit_.lift();
  if (group_) group_->resume_output();
}

Awaitable<> Agent::shut_down() {
  co_await preparation_.all_ends();
  remove_sockets();
  down_ = true;
  tick_.expires_after(kFlushTime);  // the heartbeat sees `down_` and closes a link that does not drain
  co_await link_.flushed();
  link_.close();
  store_.stop();
  tick_.cancel();
  error_code ignored;
  keeper_fd_.cancel(ignored);
  signals_.cancel(ignored);
}

/// The keeper has no sockets to remove once the last worker has ended.
void Agent::remove_sockets() {
  if (!worker_listener_) return;
  const std::string directory = worker_listener_->directory();
  worker_listener_.reset();
  // The keeper removes a directory that this process could not remove.
  if (::access(directory.c_str(), F_OK) != 0 && errno == ENOENT) keeper_.set_directory({});
}

/// Orphans of workers would stay zombies otherwise. A worker that is being started is not a known child.
void Agent::reap_orphans() {
  if (!core_.running() || !group_ || group_->starting() || usage_.starting()) return;
  std::vector<pid_t> others_reap = group_->pids();
  for (const std::vector<pid_t>& pids : {hang_monitor_.pids(), queries_.pids(), usage_.pids()})
    others_reap.insert(others_reap.end(), pids.begin(), pids.end());
  reap_adopted(others_reap);
}

Awaitable<> Agent::heartbeat() {
  while (!down_) {
    feed(node::HeartbeatDue{Clock::now() - link_.last_heard()});
    reap_orphans();
    tick_.expires_after(kHeartbeat);
    co_await tick_.async_wait(kUseTuple);
  }
  while (!link_.closed()) {
    const auto [error] = co_await tick_.async_wait(kUseTuple);
    if (!error) link_.close();
  }
}

Awaitable<> Agent::watch_keeper() {
  const error_code error = co_await until_readable(keeper_fd_);
  if (!error) feed(node::MustLeave{keeper_died()});
}

/// The keeper of a node that joined by itself is the ddplaunch that the user started there.
std::string Agent::keeper_died() const {
  return options_.own ? "its ddplaunch was killed" : "the keeper of its agent was killed";
}

Awaitable<> Agent::watch_signals() {
  const auto [error, number] = co_await signals_.async_wait(kUseTuple);
  const std::string sender = keeper_.stop_sender();
  if (!error)
    feed(node::MustLeave{"stopped by " + signal_name(number) + (sender.empty() ? "" : " from " + sender),
                         number});
}

}  // namespace ddp::launcher
